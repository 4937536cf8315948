"""What NVTX ranges carry: binary structures with a registered layout, and JSON, as entry name -> value.

A binary payload is a 32-byte head (domain, layout, size) and the structure; the layouts are in ``NVTX_PAYLOAD_SCHEMAS`` and
``NVTX_PAYLOAD_SCHEMA_ENTRIES``. Numbers of layouts differ between versions and processes, names of entries do not. Type codes:
NVTX's ``nvToolsExtPayload.h`` (NVTX_PAYLOAD_ENTRY_TYPE_*).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.source import Batch, Source, records

_HEAD = struct.Struct("<IIIIQQ")
_FORMATS = {
    1: "c", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b", 12: "B", 13: "h", 14: "H",
    15: "i", 16: "I", 17: "q", 18: "Q", 19: "f", 20: "d", 22: "Q", 23: "Q",
}  # fmt: skip
# types from here on are the program's own: enumerations, which NCCL's reductions are
_OWN_TYPES = 2**24


class Payloads:
    """The layouts of a report, and payloads read by them."""

    def __init__(self, source: Source) -> None:
        self._layouts: dict[tuple[int, int], dict[str, tuple[int, str]]] = {}
        rows = records(
            source, "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId="int", schemaId="int", type="int", name="text", offset="int"
        )
        for row in rows:
            if row["name"] and row["schemaId"] is not None:
                kind = row["type"] or 0
                form = "i" if kind >= _OWN_TYPES else _FORMATS.get(kind)
                if form:
                    layout = self._layouts.setdefault((row["domainId"] or 0, row["schemaId"]), {})
                    layout[row["name"]] = (row["offset"] or 0, form)
        self._ids = {schema for _, schema in self._layouts}
        self._texts: dict[int, str] | None = None
        self._source = source

    def of(self, batch: Batch, rows: Ints) -> Iterator[tuple[int, dict[str, Any]]]:
        """(place among ``rows``, entries) of the events that carry a structure."""
        if batch.has("jsonText") or batch.has("jsonTextId"):
            texts, ids = batch["jsonText"], batch.ints("jsonTextId")
            for place, row in enumerate(rows.tolist()):
                text = texts[row] if texts[row] else self._text(int(ids[row])) if ids[row] >= 0 else None
                if text and (found := _json(text)):
                    yield place, found
        if batch.has("binaryData"):
            data = batch["binaryData"]
            for place, row in enumerate(rows.tolist()):
                if data[row] and (found := self._binary(data[row])):
                    yield place, found

    def _text(self, number: int) -> str | None:
        if self._texts is None:
            rows = records(self._source, "StringIds", id="int", value="text")
            self._texts = {r["id"]: r["value"] for r in rows if r["value"] and r["value"][:1] in "{["}
        return self._texts.get(number)

    def _binary(self, data: bytes) -> dict[str, Any]:
        """Entries of a structure; empty where its layout is not known or it is cut short. Old exports hold hexadecimal text."""
        if len(data) >= 2 * _HEAD.size and all(c in b"0123456789abcdefABCDEF" for c in data[:16]):
            try:
                data = bytes.fromhex(data.decode("ascii"))
            except ValueError:
                return {}
        if len(data) < _HEAD.size:
            return {}
        domain, _, schema, _, size, _ = _HEAD.unpack_from(data)
        layout = self._layouts.get((domain, schema)) or self._only(schema)
        out: dict[str, Any] = {}
        for name, (offset, form) in layout.items():
            width = struct.calcsize(form)
            if offset + width <= min(size, len(data) - _HEAD.size):
                (value,) = struct.unpack_from("<" + form, data, _HEAD.size + offset)
                out[name] = value
        return out

    def _only(self, schema: int) -> dict[str, tuple[int, str]]:
        """The layout of that number where one domain alone has it."""
        found = [layout for (_, number), layout in self._layouts.items() if number == schema]
        return found[0] if found and all(layout == found[0] for layout in found) else {}


def _json(text: str) -> dict[str, Any]:
    """Entries of a JSON payload; nsys puts structures into a list."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
