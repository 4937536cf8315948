"""``dtprof export``."""

import json
from pathlib import Path

import pytest

from dtprof.cli import main
from dtprof.cli.export import parse_ranks
from dtprof.errors import InputError
from dtprof.export import export_run
from tests.unit.export.samples import hostile


@pytest.fixture
def source(tmp_path):
    """A run on disk."""
    export_run(hostile(), ["nsys"], tmp_path / "source")
    return tmp_path / "source" / "nsys"


def test_all_formats_and_what_was_written(source, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", str(source), "--to", "chrome,perfetto,nsys,csv", "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {f["format"] for f in document["files"]} == {"chrome", "perfetto", "nsys", "csv"}
    for file in document["files"]:
        path = Path(file["path"])
        assert path.is_relative_to(out)
        assert file["bytes"] == (path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.iterdir()))
        assert isinstance(file["rows"], int)


def test_a_window(source, tmp_path, capsys):
    words = ["export", str(source), "--to", "csv", "-o", str(tmp_path / "out"), "--steps", "2:4", "--ranks", "1", "--json"]
    assert main(words) == 0
    rows = {Path(f["path"]).name: f["rows"] for f in json.loads(capsys.readouterr().out)["files"]}
    assert rows["steps.csv"] == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "xml"], "there are chrome, csv, nsys, perfetto"),
        (["--to", ","], "no exporter given"),
        (["--to", "csv", "--steps", "9"], "--steps 9"),
        (["--to", "csv", "--ranks", "x"], "--ranks x"),
        (["--to", "csv", "--ranks", "9"], "its ranks are 0, 1"),
        (["--to", "csv", "--steps", "90:91"], "its steps are 0 to"),
    ],
)
def test_bad_usage_is_one_line(source, tmp_path, capsys, more, said):
    assert main(["export", str(source), "-o", str(tmp_path / "out"), *more]) == 3
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_foreign_folder_is_not_written_to(source, capsys):
    assert main(["export", str(source), "--to", "csv", "-o", str(source / "out")]) == 3
    assert "lies in the folder of the traces" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(source, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["export", str(source), "--to", "csv", "-o", str(tmp_path / "file")]) == 3
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "ranks"), [("0", {0}), ("0,3", {0, 3}), ("0-2,7", {0, 1, 2, 7})])
def test_ranks(text, ranks):
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1-", "0,,1", "0-99999999999"])
def test_what_is_no_rank(text):
    with pytest.raises(InputError, match="--ranks"):
        parse_ranks(text)
