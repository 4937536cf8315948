"""A wrapped loader is the loader, and its waiting is booked on the step that waits."""

import pickle
import threading

import pytest

import dtprof
from dtprof.jsonl import read_lines
from dtprof.session import inputs


class Source:
    """Something iterable whose ``next`` takes a known time on a clock of the test."""

    def __init__(self, now, n=3, ns=1000):
        self.now, self.n, self.ns, self.epoch, self.sampler = now, n, ns, 0, self

    def __len__(self):
        return self.n

    def __iter__(self):
        for k in range(self.n):
            self.now[0] += self.ns
            yield k
        self.now[0] += self.ns

    def set_epoch(self, epoch):
        self.epoch = epoch


@pytest.fixture
def now(monkeypatch):
    time = [0]
    monkeypatch.setattr("dtprof.session.inputs.time.perf_counter_ns", lambda: time[0])
    return time


def waits(folder):
    return [r.get("input_ns") for r in read_lines(folder / "part00000" / "steps.jsonl")[0]]


def test_the_wait_is_booked_on_the_step_that_waits(tmp_path, now):
    batches = dtprof.loader(Source(now))
    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        for _epoch in range(2):
            for _ in batches:
                now[0] += 50_000
                prof.step()
        prof.step()
    # the end of an epoch costs one more call of next(), in the step that follows
    assert waits(tmp_path) == [1000, 1000, 1000, 2000, 1000, 1000, 1000]


def test_nothing_is_said_of_input_where_no_loader_is_wrapped(tmp_path):
    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        prof.step()
    assert waits(tmp_path) == [None]


def test_a_wrapped_loader_stays_what_it_is(now):
    source = Source(now)
    wrapped = dtprof.loader(source)
    assert len(wrapped) == 3 and bool(wrapped) and list(wrapped) == [0, 1, 2] == list(wrapped)
    wrapped.sampler.set_epoch(4)
    wrapped.extra = "x"
    assert source.epoch == wrapped.epoch == 4 and source.extra == "x"
    del wrapped.extra
    assert not hasattr(source, "extra") and not hasattr(wrapped, "absent")
    with pytest.raises(AttributeError, match="absent"):
        _ = wrapped.absent


def test_only_what_it_wraps_has_a_length(now):
    def numbers():
        yield from range(3)

    stream = dtprof.loader(numbers())
    assert not hasattr(stream, "__len__") and bool(stream)
    with pytest.raises(TypeError):
        len(stream)
    assert iter(stream) is stream
    assert next(stream) == 0 and list(stream) == [1, 2] and list(stream) == []
    assert dtprof.loader([5, 6])[1] == 6 and 5 in dtprof.loader([5, 6])
    assert bool(dtprof.loader([])) is False
    assert not hasattr(dtprof.loader([5]), "__next__")


def test_what_the_loader_raises_passes_and_its_time_counts(tmp_path, now):
    def bad():
        now[0] += 700
        raise ValueError("broken sample")
        yield

    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        with pytest.raises(ValueError, match="broken sample"):
            next(dtprof.loader(bad()))
        prof.step()
    assert waits(tmp_path) == [700]


def test_nested_loaders_count_once_and_other_threads_not_at_all(tmp_path, now):
    def elsewhere():
        list(dtprof.loader(Source(now)))

    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        assert list(dtprof.loader(dtprof.loader(Source(now)))) == [0, 1, 2]
        prof.step()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        prof.step()
        inputs.timed_input(list, Source(now))
        prof.step()
    assert waits(tmp_path) == [4000, None, 4000]


def test_a_loop_in_another_thread_is_the_one_that_is_booked(tmp_path, now):
    def loop():
        prof.step()
        for _ in dtprof.loader(Source(now, 2)):
            prof.step()

    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
    assert waits(tmp_path) == [None, 1000, 1000]


def test_without_a_session_nothing_is_kept(now):
    assert list(dtprof.loader(Source(now))) == [0, 1, 2]
    assert inputs._clock is None


def test_it_can_be_sent_to_another_process():
    assert list(pickle.loads(pickle.dumps(dtprof.loader([1, 2])))) == [1, 2]


def test_a_torch_data_loader_with_workers(tmp_path):
    data = pytest.importorskip("torch.utils.data")
    wrapped = dtprof.loader(data.DataLoader(list(range(8)), batch_size=2, num_workers=1, persistent_workers=False))
    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        for _ in range(2):
            seen = []
            for batch in wrapped:
                seen += batch.tolist()
                prof.step()
            assert seen == list(range(8))
    assert wrapped.batch_size == 2 and len(wrapped) == 4
    assert all(w and w > 0 for w in waits(tmp_path))
