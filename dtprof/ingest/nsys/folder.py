"""Parquet and Arrow exports: a folder with one file per table, ``X_pqtdir/NVTX_EVENTS.parquet`` or ``X_arwdir/….arrow``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtprof.errors import InputError
from dtprof.ingest.nsys.cells import Kind
from dtprof.ingest.nsys.source import KNOWN_TABLES, Loss, check_known
from dtprof.schema import MISSING

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".arrow", ".feather")
_ROWS = 100_000


def table_files(folder: Path) -> dict[str, Path]:
    """Table name -> file, for a folder that holds an export; empty where it holds none."""
    try:
        found = {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in ENDINGS and p.is_file()}
    except OSError:
        return {}
    return found if set(found) & set(KNOWN_TABLES) else {}


class FolderSource:
    """One export as a folder of Parquet or Arrow files; a file that cannot be read costs its own table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses: list[Loss] = []
        self._files: dict[str, Path] = {}
        self.tables: Mapping[str, tuple[str, ...]] = self._list()

    def _list(self) -> dict[str, tuple[str, ...]]:
        import pyarrow as pa

        found: dict[str, tuple[str, ...]] = {}
        for name, file in table_files(self.path).items():
            try:
                found[name] = tuple(_schema(file).names)
                self._files[name] = file
            except (pa.ArrowInvalid, OSError) as error:
                self.losses.append(Loss(f"{file.name} cannot be read ({_first_line(error)})", 1, "that table is missing"))
        if not found and self.losses:
            raise InputError(f"{self.path}: {self.losses[0].what}", "export the report again: nsys export --type parquetdir")
        check_known(self.path, found, "a folder of Parquet or Arrow files")
        return found

    def batches(self, table: str, kinds: Mapping[str, Kind]) -> Iterator[dict[str, Any]]:
        """Rows in the order of the file."""
        import pyarrow as pa

        names = [name for name in kinds if name in self.tables[table]]
        try:
            for batch in _batches(self._files[table], names):
                if batch.num_rows:
                    yield {name: _column(batch.column(name), kinds[name]) for name in names}
        except (pa.ArrowInvalid, OSError) as error:
            what = f"{self._files[table].name} breaks off ({_first_line(error)})"
            self.losses.append(Loss(what, 1, "what comes before is read"))

    def close(self) -> None:
        """Nothing is kept open."""


def _schema(file: Path) -> pa.Schema:
    import pyarrow.ipc as ipc
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        return pq.read_schema(file)
    with _opened(file, ipc) as reader:
        return reader.schema


def _opened(file: Path, ipc: Any) -> Any:
    """An Arrow file, or an Arrow stream, which is what ``nsys export --type arrowdir`` writes."""
    with file.open("rb") as start:
        is_file = start.read(6) == b"ARROW1"
    return ipc.open_file(str(file)) if is_file else ipc.open_stream(str(file))


def _batches(file: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow.ipc as ipc
    import pyarrow.parquet as pq

    if file.suffix == ".parquet":
        with pq.ParquetFile(file) as parquet:
            yield from parquet.iter_batches(_ROWS, columns=names)
        return
    with _opened(file, ipc) as reader:
        pieces = (
            reader if not hasattr(reader, "num_record_batches") else map(reader.get_batch, range(reader.num_record_batches))
        )
        for batch in pieces:
            yield batch.select(names)


def _column(array: pa.Array, kind: Kind) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind in ("text", "blob"):
        return [v if v is None or isinstance(v, bytes if kind == "blob" else str) else _as(v, kind) for v in array.to_pylist()]
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        return np.full(len(array), MISSING, np.int64) if kind == "int" else np.full(len(array), np.nan)
    if kind == "float":
        return pc.fill_null(array.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False)
    return pc.fill_null(array.cast(pa.int64(), safe=False), MISSING).to_numpy(zero_copy_only=False)


def _as(value: Any, kind: Kind) -> Any:
    if kind == "blob":
        return str(value).encode()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
