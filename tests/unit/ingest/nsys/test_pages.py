"""Pages against SQLite itself: every value of every table of real and of awkward files."""

import random
import sqlite3

import numpy as np
import pytest

from dtprof.ingest.nsys.pages import PageFile, Stored, whole
from dtprof.schema import MISSING


def tables_of(path):
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        for name, root in database.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = database.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,)).fetchall()
            key = next((c for c, kind, pk in columns if pk and kind.upper() == "INTEGER"), None)
            kinds = {
                c: "int" if "INT" in kind.upper() else "float" if kind.upper() == "REAL" else "text" for c, kind, _ in columns
            }
            listed = ", ".join(f'"{c}"' for c in kinds)
            yield name, Stored(root, tuple(kinds), key), kinds, database.execute(f'SELECT {listed} FROM "{name}"').fetchall()


def check(path):
    rows = 0
    with PageFile(path) as pages:
        for name, stored, kinds, expected in tables_of(path):
            got = whole(pages.batches(stored, kinds), kinds)
            for index, (column, kind) in enumerate(kinds.items()):
                wanted = [row[index] for row in expected]
                found = list(got.get(column, []))
                if kind == "int":
                    found = [None if v == MISSING else v for v in np.asarray(found).tolist()]
                    wanted = [v if isinstance(v, int) else None if not isinstance(v, float) else int(v) for v in wanted]
                elif kind == "float":
                    found = [None if v != v else v for v in found]
                else:
                    wanted = [v if v is None or isinstance(v, str) else str(v) for v in wanted]
                assert found == wanted, (name, column)
            rows += len(expected)
        assert pages.lost == 0
    return rows


@pytest.mark.parametrize("name", ["h100_2gpu_train_schema3.25.sqlite", "rtx3080_small.sqlite"])
def test_real_exports_have_the_values_that_sqlite_reads(truth, name):
    assert check(truth / "traces" / "nsys" / name) > 1000


@pytest.mark.parametrize("page", [512, 1024, 4096, 65536])
def test_values_of_every_width_nulls_and_long_texts(tmp_path, page):
    chance = random.Random(page)
    path = tmp_path / "x.sqlite"
    widths = [0, 1, -1, 127, -128, 128, 2**15, -(2**15), 2**23, -(2**23), 2**31, 2**47, -(2**47), 2**63 - 1, -(2**63) + 1, None]
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA page_size={page}")
        database.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, x INTEGER, y REAL, t TEXT, z INTEGER)")
        for i in range(3000):
            text = chance.choice([None, "", "plain", "ü" * chance.randrange(300), "k" * chance.choice([100, 5000, 70_000])])
            number = chance.choice([None, 0.5, 3, -7.25e300])
            database.execute("INSERT INTO a VALUES (?, ?, ?, ?, ?)", (i * 7 - 900, chance.choice(widths), number, text, i))
        database.execute("DELETE FROM a WHERE id % 5 = 0")
        database.execute("ALTER TABLE a ADD COLUMN late INTEGER")
        database.execute("CREATE TABLE empty (x INTEGER)")
    database.close()
    assert check(path) == 2400


def test_a_utf_16_file(tmp_path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA encoding = 'UTF-16le'")
        database.execute("CREATE TABLE a (t TEXT)")
        database.executemany("INSERT INTO a VALUES (?)", [("gemm",), ("größer",), (None,)])
    database.close()
    assert check(path) == 3


def test_a_cut_file_gives_what_is_left_and_counts_the_rest(tmp_path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE a (x INTEGER, t TEXT)")
        database.executemany("INSERT INTO a VALUES (?, ?)", ((i, "t" * 50) for i in range(5000)))
    database.close()
    stored = next(s for n, s, _, _ in tables_of(path) if n == "a")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with PageFile(path) as pages:
        got = whole(pages.batches(stored, {"x": "int"}), {"x": "int"})["x"].tolist()
        assert pages.lost > 10
    assert 2000 < len(got) < 3000
    assert got == list(range(len(got)))


def test_bytes_turned_over_raise_nothing(tmp_path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE a (x INTEGER, t TEXT, y REAL)")
        database.executemany("INSERT INTO a VALUES (?, ?, ?)", ((i, "t" * (i % 90), i / 3) for i in range(2000)))
    database.close()
    stored = next(s for n, s, _, _ in tables_of(path) if n == "a")
    data = path.read_bytes()
    kinds = {"x": "int", "t": "text", "y": "float"}
    chance = random.Random(1)
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(30):
            broken[chance.randrange(4096, len(data))] = chance.randrange(256)
        path.write_bytes(broken)
        with PageFile(path) as pages:
            got = whole(pages.batches(stored, kinds), kinds)
        assert len(got.get("x", [])) == len(got.get("t", []))


def test_pages_that_point_at_themselves_end(tmp_path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA page_size=512")
        database.execute("CREATE TABLE a (x INTEGER, t TEXT)")
        database.executemany("INSERT INTO a VALUES (?, ?)", ((i, "t" * 900) for i in range(300)))
    database.close()
    stored = next(s for n, s, _, _ in tables_of(path) if n == "a")
    data = bytearray(path.read_bytes())
    at = (stored.root - 1) * 512
    assert data[at] == 5
    for number in range(1, len(data) // 512):
        if data[number * 512] == 5:
            data[number * 512 + 8 : number * 512 + 12] = stored.root.to_bytes(4, "big")
        elif data[number * 512] == 0:
            data[number * 512 : number * 512 + 4] = (number + 1).to_bytes(4, "big")
    path.write_bytes(data)
    with PageFile(path) as pages:
        got = whole(pages.batches(stored, {"x": "int"}), {"x": "int"})["x"].tolist()
        assert pages.lost >= 1
    assert got == sorted(got) and 0 < len(got) <= 300
