"""What is kept of a run is what is found out, and it is found out again when anything has changed."""

import pickle
import shutil
import subprocess
import sys

import pytest

import dtprof
from dtprof.analyse import study_of
from dtprof.cli import main
from dtprof.ingest.store import all_tables
from dtprof.report import facts, kept
from dtprof.report.document import document, document_of
from dtprof.run import write_manifest, write_tables
from tests.unit.kineto_maker import Trace
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own, in which every file counts as large enough."""
    monkeypatch.setenv("DTPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dtprof.ingest.cache.LEAST_BYTES", 0)
    return tmp_path / "cache"


@pytest.fixture
def gathered(monkeypatch):
    """The paths of the runs whose facts were gathered, in order."""
    calls = []

    def gather(study):
        calls.append(study.run.path)
        return facts.gather(study)

    monkeypatch.setattr(kept, "gather", gather)
    return calls


@pytest.fixture
def traces(tmp_path):
    """A folder of two ranks, of which rank 1 starts its collective late."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in (0, 1):
        make(folder, rank)
    return folder


def make(folder, rank, late=3000):
    trace = Trace(rank, 2)
    for step in range(3):
        begin = step * 10_000
        trace.step(step, begin, begin + 9_500)
        trace.run("gemm", begin + 10, begin + 100, begin + 2_000 + rank * late)
        comm = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float",
                "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}  # fmt: skip
        trace.run("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 20, begin + 2_100 + rank * late, begin + 9_000, 20, **comm)
    trace.write(folder / f"rank{rank}.pt.trace.json")


def asked(path):
    """The document of the run, through what is kept."""
    return document_of(kept.facts_of(dtprof.open_run(path))[1])


def test_the_kept_document_is_the_computed_one(traces, cache, gathered):
    without = document(study_of(dtprof.open_run(traces, cache=False)))
    assert without["findings"]
    assert [asked(traces) for _ in range(3)] == [without] * 3
    assert gathered == [str(traces)]


def test_every_result_is_kept(traces, cache):
    first, _ = kept.facts_of(dtprof.open_run(traces))
    again, _ = kept.facts_of(dtprof.open_run(traces))
    assert again.results.keys() == first.results.keys() > {"accounting", "comm", "kernels", "stragglers"}
    assert again.result("accounting") == first.result("accounting")


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_shape_of_run_can_be_kept(name, tmp_path, cache, gathered):
    path = tmp_path / name
    run = matched(SHAPES[name]())
    write_tables(path / "tables", all_tables(run))
    write_manifest(path / "manifest.json", run.manifest)
    without = document(study_of(dtprof.open_run(path)))
    assert [asked(path), asked(path)] == [without, without]
    assert len(gathered) == 1


def test_a_changed_trace_is_computed_again(traces, cache, gathered):
    before = asked(traces)
    make(traces, 1, late=5000)
    after = asked(traces)
    assert len(gathered) == 2
    assert after == document(study_of(dtprof.open_run(traces, cache=False))) != before


def test_a_rank_that_is_gone_is_computed_again(traces, cache, gathered):
    asked(traces)
    (traces / "rank1.pt.trace.json").unlink()
    assert asked(traces)["source"]["ranks"] == [0]
    assert len(gathered) == 2


def test_other_code_computes_again(traces, cache, gathered, monkeypatch):
    asked(traces)
    monkeypatch.setattr(kept, "code", lambda: "0" * 64)
    asked(traces)
    asked(traces)
    assert len(gathered) == 2


def test_the_digest_of_the_code_is_of_its_contents(tmp_path, monkeypatch):
    package = tmp_path / "package"
    shutil.copytree(kept.Path(dtprof.__file__).parent / "advise", package / "advise")
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(kept.dtprof, "__file__", str(package / "__init__.py"))
    kept.code.cache_clear()
    try:
        before = kept.code()
        file = package / "advise" / "places.py"
        file.write_text(file.read_text().replace("1", "2", 1))
        kept.code.cache_clear()
        assert kept.code() != before
    finally:
        kept.code.cache_clear()


def test_plugins_that_take_part_keep_nothing(traces, cache, gathered, monkeypatch):
    monkeypatch.setattr(kept, "announced", lambda group: ("a rule",) if group == "rules" else ())
    asked(traces)
    asked(traces)
    assert len(gathered) == 2 and not (cache / "facts").exists()


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "text", "folder"])
def test_a_damaged_file_is_computed_again(traces, cache, gathered, harm):
    without = asked(traces)
    (file,) = (cache / "facts").iterdir()
    data = file.read_bytes()
    file.unlink()
    if harm == "folder":
        file.mkdir()
    else:
        flipped = data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]
        file.write_bytes({"cut": data[:-9], "flip": flipped, "empty": b"", "text": b"no pickle\n"}[harm])
    assert asked(traces) == without
    assert len(gathered) == 2


def test_nothing_of_a_foreign_file_is_called(traces, cache, gathered, tmp_path):
    class Evil:
        def __reduce__(self):
            return (kept.Path.touch, (tmp_path / "touched",))

    without = asked(traces)
    (file,) = (cache / "facts").iterdir()
    head = file.read_bytes().partition(b"\n")[0].rpartition(b" ")[0] + b" "
    body = pickle.dumps(Evil())
    file.write_bytes(head + kept.hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert asked(traces) == without
    assert not (tmp_path / "touched").exists() and len(gathered) == 2


def test_a_cache_that_cannot_be_written_is_no_error(traces, cache, gathered):
    asked(traces)
    shutil.rmtree(cache / "facts")
    (cache / "facts").write_text("in the way")
    assert asked(traces)["findings"]
    assert len(gathered) == 2


def test_what_cannot_be_kept_is_gathered_each_time(traces, cache, gathered, monkeypatch):
    """As where an analysis finds something with a function in it."""
    real = kept.study_of

    def study_of(run, *more):
        study = real(run, *more)
        study._results["odd"] = lambda: None
        return study

    monkeypatch.setattr(kept, "study_of", study_of)
    assert asked(traces) == asked(traces)
    assert len(gathered) == 2 and not (cache / "facts").exists()


def test_without_an_ingest_cache_nothing_is_kept(traces, cache, gathered, monkeypatch):
    monkeypatch.setattr("dtprof.ingest.cache.LEAST_BYTES", 10**9)
    asked(traces)
    asked(traces)
    assert len(gathered) == 2


def test_report_tells_the_same_with_and_without(traces, cache, gathered, capsys):
    told = []
    for _ in range(2):
        assert main(["report", str(traces), "--json"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and len(gathered) == 1


def test_a_kept_report_imports_no_pandas(traces, cache):
    asked(traces)
    program = (
        "import sys, dtprof; from dtprof.report.kept import facts_of;"
        f"facts_of(dtprof.open_run({str(traces)!r})); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
