import json
import shutil

import msgspec
import pytest

from dtprof.cli import main
from dtprof.errors import InputError
from dtprof.ingest import open_run
from dtprof.launch.merge import merge
from dtprof.run import Manifest, Part

SECOND = 1_000_000_000


def node(folder, ranks, *, host="a", key="k", world=4, ended=9 * SECOND, started=SECOND, manifest=None):
    """A run folder as one node leaves it."""
    for rank in ranks:
        part = folder / f"part{rank:05d}"
        part.mkdir(parents=True)
        extra = {"run_key": key, "started_ns": started, "ended_ns": ended, "steps_done": 2}
        described = Part(ordinal=rank, rank=rank, world_size=world, host=host, pid=100 + rank, source=part.name, extra=extra)
        (part / "part.json").write_bytes(msgspec.json.encode(described))
        lines = [{"step": n, "host_ts": n * SECOND, "host_dur": SECOND, "kind": "train"} for n in range(2)]
        (part / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (part / ".reserve").write_text("x")
    if manifest if manifest is not None else 0 in ranks:
        (folder / "manifest.json").write_bytes(msgspec.json.encode(Manifest(run_id=key, world_size=world, job="j")))
    return folder


def test_what_two_nodes_wrote_is_one_run(tmp_path):
    a, b = node(tmp_path / "a", [0, 1]), node(tmp_path / "b", [2, 3], host="b")
    merged = merge([b, a], tmp_path / "run")
    assert (merged.parts, merged.ranks, merged.missing, merged.hosts, merged.notes) == (4, [0, 1, 2, 3], [], ["a", "b"], [])
    run = open_run(tmp_path / "run")
    assert run.ranks == [0, 1, 2, 3] and run.manifest.job == "j" and run.manifest.hosts == ["a", "b"]
    assert [len(run.table("steps", part=p.ordinal)) for p in run.parts] == [2, 2, 2, 2]
    assert not list((tmp_path / "run").glob("*/.reserve"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "run"]


def test_what_is_missing_is_said(tmp_path):
    a, c = node(tmp_path / "a", [1]), node(tmp_path / "c", [3], host="c", ended=None, started=500 * SECOND)
    merged = merge([a, c], tmp_path / "run")
    assert merged.missing == [0, 2]
    said = "\n".join(merged.notes)
    assert "of 4 ranks these are missing: 0, 2" in said
    assert "no source has a manifest.json" in said
    assert "rank 3 did not end its session" in said
    assert "clocks of a and c are 491 s or more apart" in said


def test_folders_of_different_runs_are_refused_by_name(tmp_path):
    a, b = node(tmp_path / "a", [0]), node(tmp_path / "b", [1], key="other")
    with pytest.raises(InputError, match=r"a/part00000 belongs to the run k, .*b/part00001 to the run other"):
        merge([a, b], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_folder_given_twice_counts_once_and_two_processes_of_one_rank_are_refused(tmp_path):
    a = node(tmp_path / "a", [0, 1])
    copy = shutil.copytree(a, tmp_path / "copy")
    merged = merge([a, copy], tmp_path / "run")
    assert merged.parts == 2 and len([n for n in merged.notes if "taken once" in n]) == 2
    b = node(tmp_path / "b", [1], host="b")
    with pytest.raises(InputError, match="both are rank 1, attempt 0, of different processes"):
        merge([a, b], tmp_path / "other")


def test_parts_of_one_number_both_stay(tmp_path):
    a, b = node(tmp_path / "a", [0]), node(tmp_path / "b", [1], host="b")
    (b / "part00001").rename(b / "part00000")
    merge([a, b], tmp_path / "run")
    assert open_run(tmp_path / "run").ranks == [0, 1]


def test_a_part_that_cannot_describe_itself_comes_along(tmp_path):
    a, b = node(tmp_path / "a", [0]), node(tmp_path / "b", [1])
    (b / "part00001" / "part.json").write_text("{")
    merged = merge([a, b], tmp_path / "run")
    assert merged.parts == 2
    assert any("missing or unreadable" in note for note in merged.notes)
    assert open_run(tmp_path / "run").ranks == [0, 1]


def test_single_part_folders_may_be_given(tmp_path):
    a = node(tmp_path / "a", [0, 1])
    assert merge([a / "part00001"], tmp_path / "run").ranks == [1]


def test_bad_input_is_one_line(tmp_path, capsys):
    a = node(tmp_path / "a", [0])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for words, text in [
        ([str(tmp_path / "no"), "-o", str(tmp_path / "r")], "no such folder"),
        ([str(tmp_path / "empty"), "-o", str(tmp_path / "r")], "holds no part folder"),
        ([str(a), "-o", str(a)], "exists already"),
        ([str(a), "-o", str(tmp_path / "file" / "r")], "cannot be written"),
        ([str(a)], "--out"),
    ]:
        assert main(["merge", *words]) == 3
        said = capsys.readouterr().err
        assert text in said and said.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "empty", "file"]


def test_the_verb_says_what_it_joined(tmp_path, capsys):
    a = node(tmp_path / "a", [0, 1, 2])
    assert main(["merge", str(a), "-o", str(tmp_path / "r")]) == 0
    assert "3 ranks of 1 host" in capsys.readouterr().out
    assert main(["merge", "--json", str(a), "-o", str(tmp_path / "s")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ranks"], document["missing"], document["path"]) == ([0, 1, 2], [3], str(tmp_path / "s"))
