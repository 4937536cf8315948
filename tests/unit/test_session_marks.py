import sys
import threading
import types

import pytest

import dtprof
from dtprof.session import marks
from dtprof.session.guard import Guard
from dtprof.session.phases import PhaseClock


class Profiler(types.ModuleType):
    """Stands in for torch.autograd.profiler."""

    def __init__(self):
        super().__init__("torch.autograd.profiler")
        self._is_profiler_enabled = True
        self.log = log = []

        class RecordFunction:
            def __init__(self, name):
                self.name = name

            def __enter__(self):
                log.append(f"+{self.name}")

            def __exit__(self, *exc):
                log.append(f"-{self.name}")

        self.record_function = RecordFunction


class Nvtx(types.ModuleType):
    """Stands in for nvtx with a tool attached."""

    def __init__(self):
        super().__init__("nvtx")
        self.log = []

    def enabled(self):
        return True

    def get_domain(self, name):
        self.log.append(f"domain {name}")
        return self

    def get_event_attributes(self, message, category, payload):
        return (message, category, payload)

    def push_range(self, attributes):
        self.log.append(attributes)

    def pop_range(self):
        self.log.append("pop")


def resting():
    return marks.Annotation.__enter__ is marks._do_nothing


def spent(clock, now=0):
    return clock.spent(clock.take(now))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "DTPROF_NVTX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("_tracer", marks._NO_TRACER),
        ("_domain", None),
        ("_domain_sought", False),
        ("_guard", Guard()),
        ("_clock", None),
        ("_hear", None),
        ("_compiling", bool),
        ("_named", {}),
        ("_tagged", {}),
    ):
        monkeypatch.setattr(marks, name, value)
    monkeypatch.delitem(sys.modules, "torch.autograd.profiler", raising=False)
    marks._wake()
    yield
    marks._wake()


@pytest.fixture
def profiler(monkeypatch):
    module = Profiler()
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", module)
    return module


@pytest.fixture
def nvtx(monkeypatch):
    module = Nvtx()
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/tool.so")
    return module


def test_where_nobody_listens_one_object_is_reused():
    first, second = dtprof.annotate("forward", microbatch=1), dtprof.annotate("forward", microbatch=1)
    assert first is second
    assert first is not dtprof.annotate("forward", microbatch=2)
    assert dtprof.annotate("forward") is dtprof.annotate("forward") is not first
    with first, second, first:
        pass


def test_the_torch_profiler_gets_the_name_with_its_tags(profiler):
    with dtprof.annotate("forward", microbatch=2, layer="blocks.0"), dtprof.annotate("inner"):
        pass
    assert profiler.log == ["+forward#microbatch=2#layer=blocks.0", "+inner", "-inner", "-forward#microbatch=2#layer=blocks.0"]


def test_nvtx_gets_domain_category_and_payload(nvtx):
    with dtprof.annotate("forward", step=7, phase="forward", microbatch=2), dtprof.annotate("x", bucket=3):
        pass
    with dtprof.annotate("plain"):
        pass
    assert nvtx.log == [
        "domain dtprof", ("forward#phase=forward#microbatch=2", "forward", 7), ("x#bucket=3", "x", 3), "pop", "pop",
        ("plain", "plain", None), "pop",
    ]  # fmt: skip


def test_without_a_tool_nvtx_is_left_alone(nvtx, monkeypatch):
    monkeypatch.delenv("NVTX_INJECTION64_PATH")
    with dtprof.annotate("forward"):
        pass
    assert nvtx.log == []


def test_as_a_decorator_it_listens_at_call_time(profiler):
    profiler._is_profiler_enabled = False

    @dtprof.annotate("f")
    def f(x, *, y):
        """Doc."""
        return x + y

    assert f(1, y=2) == 3
    profiler._is_profiler_enabled = True
    assert f(1, y=2) == 3
    assert profiler.log == ["+f", "-f"]
    assert (f.__name__, f.__doc__) == ("f", "Doc.")


def test_a_range_is_closed_when_the_body_raises(profiler):
    with pytest.raises(ZeroDivisionError), dtprof.annotate("f"):
        raise ZeroDivisionError
    assert profiler.log == ["+f", "-f"]


def test_a_profiler_that_comes_or_goes_inside_a_range_sees_whole_ranges_only(profiler):
    profiler._is_profiler_enabled = False
    with dtprof.annotate("outer"):
        profiler._is_profiler_enabled = True
        with dtprof.annotate("inner"):
            pass
    with dtprof.annotate("outer"):
        profiler._is_profiler_enabled = False
    assert profiler.log == ["+inner", "-inner", "+outer", "-outer"]


def test_threads_share_the_object_and_not_its_state(profiler):
    shared, inside, leave = dtprof.annotate("f"), threading.Event(), threading.Event()

    def other():
        with shared:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    profiler._is_profiler_enabled = False
    with shared:
        pass
    assert profiler.log == ["+f"]
    leave.set()
    thread.join()
    assert profiler.log == ["+f", "-f"]


def test_a_listener_that_raises_is_left_alone_from_then_on(profiler, caplog):
    def broken(name):
        raise RuntimeError("planted")

    profiler.record_function = broken
    for _ in range(3):
        with dtprof.annotate("f"):
            pass
    assert len(caplog.records) == 1


def test_a_torch_without_the_flag_is_no_listener(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", types.ModuleType("torch.autograd.profiler"))
    with dtprof.annotate("f"):
        pass
    assert marks._tracer is marks._NO_TRACER


def test_the_cache_is_bounded():
    for n in range(3 * marks._CACHE_SIZE):
        dtprof.annotate("f", step=n)
        dtprof.annotate(f"f{n}")
    assert len(marks._tagged) <= marks._CACHE_SIZE
    assert len(marks._named) <= marks._CACHE_SIZE


def test_the_price_of_a_range_is_measured_without_being_booked(profiler):
    profiler._is_profiler_enabled = False
    clock = PhaseClock()
    marks.listen(clock)
    best, worst = marks.price_ns()
    assert 0 < best <= worst
    assert marks._clock is clock
    assert (clock.calls, spent(clock)) == (0, {})
    profiler._is_profiler_enabled = True
    assert marks.price_ns() == (0.0, 0.0)
    assert profiler.log == []


def test_ranges_rest_until_somebody_listens(profiler):
    profiler._is_profiler_enabled = False
    kept = dtprof.annotate("kept")
    with kept, dtprof.annotate("f"):
        pass
    assert resting()
    with kept:
        profiler._is_profiler_enabled = True
        with dtprof.annotate("f"), kept:
            pass
    assert profiler.log == ["+f", "+kept", "-kept", "-f"]
    profiler._is_profiler_enabled = False
    with dtprof.annotate("f"):
        marks.listen(PhaseClock())
        assert not resting()
    marks.listen(None)
    assert resting()


def test_a_tag_that_is_none_is_refused():
    with pytest.raises(TypeError, match="has no tag 'colour'"):
        dtprof.annotate("f", colour=1)


def test_phases_are_timed_while_a_session_runs(monkeypatch):
    now = [0]
    monkeypatch.setattr("dtprof.session.marks._now", lambda: now[0])
    clock = PhaseClock()
    marks.listen(clock)

    def spend(name, ns, **tags):
        with dtprof.annotate(name, **tags):
            now[0] += ns

    spend("forward", 5)
    spend("forward", 7, microbatch=1)
    spend("anything", 11, phase="backward")
    spend("anything", 13)
    with dtprof.annotate("optimizer"), dtprof.annotate("optimizer"), dtprof.annotate("data"):
        now[0] += 17
    assert spent(clock, now[0]) == {"forward": 12, "backward": 11, "optimizer": 17, "data": 17}
    assert clock.calls == 7
    with dtprof.annotate("evaluation"):
        now[0] += 19
        assert spent(clock, now[0]) == {"evaluation": 19}
        now[0] += 23
    assert spent(clock, now[0]) == {"evaluation": 23}
    thread = threading.Thread(target=spend, args=("forward", 29))
    thread.start()
    thread.join()
    assert spent(clock, now[0]) == {}


def test_phases_of_several_steps_may_be_worked_out_later(monkeypatch):
    now = [0]
    monkeypatch.setattr("dtprof.session.marks._now", lambda: now[0])
    clock, taken = PhaseClock(), []
    marks.listen(clock)
    with dtprof.annotate("evaluation"):
        for ns in (3, 5):
            with dtprof.annotate("forward"):
                now[0] += ns
            taken.append(clock.take(now[0]))
    taken.append(clock.take(now[0]))
    assert clock.calls == 3
    assert [clock.spent(t) for t in taken] == [
        {"forward": 3, "evaluation": 3},
        {"forward": 5, "evaluation": 5},
        {"evaluation": 0},
    ]
    assert clock.calls == 3


def test_of_a_step_with_too_many_ranges_no_phase_is_known(monkeypatch):
    monkeypatch.setattr("dtprof.session.phases.MAX_EVENTS", 6)
    clock = PhaseClock()
    marks.listen(clock)
    for _ in range(4):
        with dtprof.annotate("forward"):
            pass
    assert len(clock.events) == 6
    assert spent(clock) == {}
    with dtprof.annotate("backward"):
        pass
    assert set(spent(clock)) == {"backward"}


def test_a_session_that_ends_or_changes_inside_a_range_loses_only_that_range():
    first, second = PhaseClock(), PhaseClock()
    marks.listen(first)
    with dtprof.annotate("forward"):
        marks.listen(second)
        with dtprof.annotate("backward"):
            marks.listen(None)
    assert set(spent(first)) == {"forward"}
    assert set(spent(second)) == {"backward"}


def test_real_nvtx_takes_what_we_give_it(monkeypatch):
    pytest.importorskip("nvtx")
    monkeypatch.setenv("DTPROF_NVTX", "1")
    with dtprof.annotate("forward", step=1, phase="forward", microbatch=2), dtprof.annotate("plain"):
        pass
    assert marks._domain is not None
    assert not marks._guard.failures
