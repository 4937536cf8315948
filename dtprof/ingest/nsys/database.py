"""SQLite exports: opened without a write, without a lock left behind, and as far as they go where they are cut off."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dtprof.errors import InputError, NotATrace
from dtprof.ingest.nsys.cells import Kind
from dtprof.ingest.nsys.pages import MAGIC, NotSqlite, PageFile, Stored, whole
from dtprof.ingest.nsys.source import EXPORT, KNOWN_TABLES, Loss, check_known

_MASTER = Stored(1, ("type", "name", "tbl_name", "rootpage", "sql"))
_LOCK_WAIT_S = 2.0


class SqliteSource:
    """One SQLite export, read from its pages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses: list[Loss] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._holder: sqlite3.Connection | None = None
        try:
            self._pages = PageFile(self._settled())
            self._stored = self._list()
        except (OSError, NotSqlite, sqlite3.Error, UnicodeDecodeError) as error:
            self._release()
            raise _unreadable(path, error) from error
        except BaseException:
            self._release()
            raise
        self.tables: Mapping[str, tuple[str, ...]] = {name: s.columns for name, s in self._stored.items()}

    def batches(self, table: str, kinds: Mapping[str, Kind]) -> Iterator[dict[str, Any]]:
        """Rows in order of row id."""
        before = self._pages.lost
        yield from self._pages.batches(self._stored[table], kinds)
        if self._pages.lost > before:
            effect = "the rest of the file is read"
            self.losses.append(Loss(f"pages of {table} that the file does not hold", self._pages.lost - before, effect))

    def close(self) -> None:
        """Let go of the file and of a copy that was made."""
        self._pages.__exit__()
        self._release()

    def _release(self) -> None:
        if self._holder is not None:
            self._holder.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _settled(self) -> Path:
        """The file whose pages are complete: itself, or a copy into which its write-ahead log has been merged."""
        with self.path.open("rb") as file:
            head = file.read(100)
        if not head:
            raise InputError(f"{self.path}: the file is empty", f"export the report again: {EXPORT}")
        if not head.startswith(MAGIC) or len(head) < 100:
            raise NotATrace(f"{self.path}: not an SQLite database (at byte 0)", f"give what this writes: {EXPORT}")
        log = self.path.with_name(self.path.name + "-wal")
        if head[18] == 2 and log.exists() and log.stat().st_size:
            return self._merged(log)
        if head[18] != 2:
            self._hold()
        return self.path

    def _merged(self, log: Path) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="dtprof-nsys-")
        copy = Path(self._folder.name) / "copy.sqlite"
        shutil.copyfile(self.path, copy)
        shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
        connection = sqlite3.connect(copy)
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.execute("PRAGMA journal_mode=DELETE").fetchall()
        finally:
            connection.close()
        self.losses.append(Loss("a write-ahead log lies beside the file", 1, "read with it; it may still be written to"))
        return copy

    def _hold(self) -> None:
        """Keep writers from committing while the pages are read; InputError where one is at work."""
        try:
            self._holder = sqlite3.connect(
                f"file:{quote(str(self.path.resolve()))}?mode=ro", uri=True, timeout=_LOCK_WAIT_S, check_same_thread=False
            )
            self._holder.execute("BEGIN")
            self._holder.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise InputError(
                    f"{self.path}: another program is writing it (the database is locked)", "wait until its export has ended"
                ) from error
            if self.path.with_name(self.path.name + "-journal").exists():
                what = "a journal lies beside the file: its last write was not finished"
                self.losses.append(Loss(what, 1, "what is there is read; export it again"))
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            self.losses.append(Loss("SQLite calls the file damaged", 1, "read as far as its pages go"))

    def _list(self) -> dict[str, Stored]:
        """The tables, their columns as SQLite itself reads their definitions."""
        kinds: dict[str, Kind] = {"type": "text", "name": "text", "rootpage": "int", "sql": "text"}
        master = whole(self._pages.batches(_MASTER, kinds), kinds)
        found: dict[str, Stored] = {}
        scratch = sqlite3.connect(":memory:")
        try:
            for kind, name, root, sql in zip(*(master.get(k, []) for k in kinds), strict=True):
                if kind == "table" and name and sql and root > 0 and not name.startswith("sqlite_"):
                    stored = _columns(scratch, name, int(root), sql)
                    if stored is not None:
                        found[name] = stored
        finally:
            scratch.close()
        missing = self._pages.stated - self._pages.count
        if not found and (missing > 0 or self._pages.lost):
            raise InputError(f"{self.path}: cut off before its list of tables", f"copy or export it again: {EXPORT}")
        if missing > 0 and _states_its_size(self._pages.path):
            what = f"the file is cut off: {self._pages.count} of {self._pages.stated} pages are there"
            self.losses.append(Loss(what, missing, "what is there is read; copy or export it again"))
        check_known(self.path, found, "an SQLite database")
        return found


def _states_its_size(path: Path) -> bool:
    """Is the page count in the header to be trusted? (File format, section 1.3.7: change counter = version-valid-for.)"""
    with path.open("rb") as file:
        head = file.read(100)
    return struct.unpack_from(">I", head, 24) == struct.unpack_from(">I", head, 92)


def _columns(scratch: sqlite3.Connection, name: str, root: int, sql: str) -> Stored | None:
    """The stored columns of a table by its definition; None where it has no plain rows (virtual, WITHOUT ROWID)."""
    if not sql.lstrip()[:12].upper().startswith("CREATE TABLE"):
        return None
    try:
        scratch.execute(sql)
        rows = scratch.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,)).fetchall()
        hidden = scratch.execute("SELECT count(*) FROM pragma_table_xinfo(?) WHERE hidden", (name,)).fetchone()[0]
        scratch.execute(f'SELECT rowid FROM "{name}"')
    except sqlite3.Error:
        return None
    if hidden:
        return None
    keys = [column for column, kind, pk in rows if pk]
    whole_key = len(keys) == 1 and any(pk and str(kind).upper() == "INTEGER" for _, kind, pk in rows)
    return Stored(root, tuple(column for column, _, _ in rows), keys[0] if whole_key else None)


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"{path}: cannot be read ({reason})", f"check the file, or export it again: {EXPORT}")


def looks_exported(path: Path) -> bool:
    """Does an SQLite file list a table of an Nsight Systems export? Where its list cannot be read, its name decides."""
    kinds: dict[str, Kind] = {"name": "text"}
    try:
        with PageFile(path) as pages:
            names = whole(pages.batches(_MASTER, kinds), kinds).get("name", [])
    except (OSError, NotSqlite):
        return False
    return bool(set(names) & set(KNOWN_TABLES)) if names else path.suffix == ".sqlite"
