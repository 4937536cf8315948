"""What the NVTX spans of a process mean, and the columns that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dtprof.ingest.distinct import distinct_rows
from dtprof.ingest.kineto.raw import Sparse
from dtprof.ingest.kineto.spans import Rows
from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.meanings import OURS, Meaning, meaning_of
from dtprof.ingest.nsys.spans import Array, Spans, argument
from dtprof.schema import MISSING
from dtprof.table import Strings

if TYPE_CHECKING:
    from dtprof.ingest.nsys.trace import Gathered


@dataclass(frozen=True)
class Ranges:
    """The distinct meanings of NVTX spans, which of them each span has (``meant``), and each span's ``row`` in the trace."""

    meanings: list[Meaning]
    meant: Ints
    row: Rows

    def numbers(self, attribute: str) -> Ints:
        """An attribute of the meaning of every span, MISSING for None."""
        values = [getattr(meaning, attribute) for meaning in self.meanings]
        return np.array([MISSING if v is None else v for v in values], np.int64)[self.meant]

    def operators(self, count: int) -> Ints:
        """Operator ids of the ``count`` rows of the trace."""
        op = self.numbers("op_id")
        if (op == MISSING).all():
            return np.broadcast_to(np.int64(MISSING), count)
        out = np.full(count, MISSING, np.int64)
        out[self.row] = op
        return out

    def emitted(self) -> dict[str, Sparse]:
        """Sequence numbers and shapes that ``emit_nvtx`` writes into names, as arguments."""
        sequence, sizes = self.numbers("sequence"), Strings.of(m.sizes for m in self.meanings)
        out: dict[str, Sparse] = {}
        if len(told := self._by_row(sequence != MISSING)):
            out["Sequence number"] = Sparse(self.row[told], sequence[told])
        if len(told := self._by_row(sizes.codes[self.meant] >= 0)):
            out["Input Dims"] = Sparse(self.row[told], Strings(sizes.codes[self.meant][told], sizes.values))
        return out

    def _by_row(self, wanted: Array) -> Ints:
        found = np.flatnonzero(wanted)
        return found[np.argsort(self.row[found], kind="stable")]


def understood(got: Gathered, key: int, pieces: list[Spans], row: Rows) -> Ranges:
    """Meanings of the NVTX spans of ``pieces``, which have these rows.

    Texts are read once per distinct (name, domain, category, payload); the last two count in our own ranges only.
    """
    name = np.concatenate([piece.columns["name"][: len(piece)] for piece in pieces]) if pieces else np.empty(0, np.int64)
    domain, category, payload = (argument(pieces, key) for key in ("domain", "category", "payload"))
    named = {d: got.text(n) for (process, d), n in got.nvtx.domains.items() if process == key}
    mine = np.isin(domain, [d for d, text in named.items() if text == OURS])
    keys = np.stack((name.astype(np.int64), domain, np.where(mine, category, 0), np.where(mine, payload, 0)))
    first, meant = distinct_rows(keys)
    meanings = []
    for at in first.tolist():
        label = got.nvtx.categories.get((key, int(domain[at]), int(category[at])))
        number = int(payload[at])
        meanings.append(
            meaning_of(
                got.text(int(name[at])), named.get(int(domain[at])),
                None if number == MISSING or not mine[at] else number, None if label is None else got.text(label),
            )
        )  # fmt: skip
    return Ranges(meanings, meant, row)
