"""How many files a training process has open at the end of every step: a leak in a data loader shows here.

Raw file
    open_files.jsonl    one line per step: step, ts (Unix ns), open
"""

import json
import os

import msgspec

from dtprof.epoch import epoch_ns
from dtprof.jsonl import Appender, read_lines
from dtprof.run import quality_rows
from dtprof.table import Table


class Line(msgspec.Struct):
    """One step; a line with other types counts as torn."""

    step: int
    ts: int
    open: int


class OpenFiles:
    """The collector: both halves."""

    name = "open_files"
    lines = None

    def start(self, context):
        self.lines = Appender(context.folder / "open_files.jsonl")

    def on_step(self, step):
        if self.lines is not None:
            self.lines.add(Line(step, epoch_ns(), len(os.listdir("/proc/self/fd"))))

    def stop(self):
        lines, self.lines = self.lines, None
        if lines is not None:
            lines.close()

    def tables(self, folder):
        lines, torn = read_lines(folder / "open_files.jsonl", Line)
        rows = [{"ts": x.ts, "metric": "open_files", "value": float(x.open), "unit": "files", "device": -1} for x in lines]
        tables = {"samples": Table.from_rows("samples", rows)}
        if torn:
            tables["quality"] = quality_rows([("open_files.jsonl", "torn lines", torn, "those readings are missing")])
        return tables


class MostOpenFiles:
    """The verb ``dtprof most_open_files RUN``."""

    name = "most_open_files"
    summary = "The most files that each rank had open."

    def configure(self, parser):
        parser.add_argument("path", metavar="RUN")

    def run(self, args):
        import dtprof

        run, most = dtprof.open_run(args.path), {}
        for part in run.parts:
            samples = run.table("samples", part.ordinal)
            values = samples["value"][samples.is_("metric", "open_files")]
            if len(values):
                most[str(part.rank)] = int(values.max())
        print(json.dumps(most) if args.json else "\n".join(f"rank {rank}: {n}" for rank, n in most.items()))
        return 0
