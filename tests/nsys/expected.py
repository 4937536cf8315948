"""What nsys must report of a run, told from dtprof's tables alone: plain loops over rows, nothing of the exporter."""

from collections import Counter, defaultdict

from dtprof.schema import MISSING

DEVICE = ("kernel", "comm", "memcpy", "memset")
DOMAIN = {"range": "dtprof", "cpu_op": "torch", "comm": "communication", "python": "python"}
FUNCTION = {
    "all_reduce": "ncclAllReduce", "all_gather": "ncclAllGather", "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclAlltoAll", "broadcast": "ncclBroadcast", "reduce": "ncclReduce", "gather": "ncclGather",
    "scatter": "ncclScatter", "send": "ncclSend", "recv": "ncclRecv", "send_recv": "ncclGroupEnd", "barrier": "ncclAllReduce",
}  # fmt: skip


class Part:
    """Events of one part as plain rows."""

    def __init__(self, run, part):
        self.run, self.part = run, part
        table, lanes = run.table("events", part.ordinal), run.table("lanes", part.ordinal)
        device = dict(zip(lanes["id"].tolist(), lanes["device"].tolist(), strict=True))
        self.roles = dict(zip(lanes["id"].tolist(), lanes.text("role"), strict=True))
        columns = (
            table.text("kind"),
            table.text("name"),
            *(table[c].tolist() for c in ("ts", "dur", "lane", "launch", "bytes")),
        )
        self.events = [
            {"row": i, "kind": k, "name": n or "", "ts": t, "dur": d, "lane": lane, "launch": call, "bytes": size,
             "device": device.get(lane, -1)}
            for i, (k, n, t, d, lane, call, size) in enumerate(zip(*columns, strict=True))
        ]  # fmt: skip
        self.ops = [e for e in self.events if e["device"] >= 0 and e["kind"] in DEVICE]
        self.kernels = [e for e in self.ops if e["kind"] in ("kernel", "comm")]
        self.calls = [e for e in self.events if e["device"] < 0 and e["kind"] == "runtime"]
        self.spans = [e for e in self.events if e["device"] < 0 and e["kind"] not in ("runtime", "kernel", "memcpy", "memset")]

    def ranges(self):
        """(name as nsys prints it, start, dur, lane) of every push/pop range."""
        out = [(f"{DOMAIN.get(e['kind'], 'other')}:{e['name']}", e["ts"], e["dur"], e["lane"]) for e in self.spans]
        return out + self.steps() + self.nccl()

    def steps(self):
        steps = self.run.table("steps", self.part.ordinal)
        marked = {e["name"] for e in self.events}
        rows = zip(steps["step"].tolist(), steps["host_ts"].tolist(), steps["host_dur"].tolist(), strict=True)
        lane = next((lane for lane, role in self.roles.items() if role == "training"), None)
        return [
            (f"dtprof:ProfilerStep#{s}", t, d, lane)
            for s, t, d in rows
            if t != MISSING and d != MISSING and f"ProfilerStep#{s}" not in marked
        ]

    def nccl(self):
        """A range around the launch call, 1 ns wider on both sides, and 1 more for each operation before it."""
        comm = self.run.table("comm", self.part.ordinal)
        out, seen = [], Counter()
        for op, event in zip(comm.text("op"), comm["event"].tolist(), strict=True):
            kernel = self.events[event]
            if kernel["launch"] < 0 or kernel["device"] < 0:
                continue
            call = self.events[kernel["launch"]]
            wider = 1 + seen[kernel["launch"]]
            seen[kernel["launch"]] += 1
            out.append((f"NCCL:{FUNCTION.get(op, 'nccl')}", call["ts"] - wider, call["dur"] + 2 * wider, call["lane"]))
        return out

    def launched_elsewhere(self):
        """(range, lane): ranges of training threads, and other threads that launched device work inside them."""
        launching = defaultdict(list)
        for call in {e["launch"] for e in self.ops if e["launch"] >= 0}:
            launching[self.events[call]["lane"]].append(self.events[call])
        ranges = [e for e in self.spans if e["kind"] == "range" and self.roles.get(e["lane"]) == "training"]
        return [
            (r, lane)
            for r in ranges
            for lane, calls in launching.items()
            if lane != r["lane"] and any(encloses(r, c) for c in calls)
        ]

    def projections(self):
        """Row of an annotated range -> (first start, last end, launch calls) of the device work of all threads."""
        calls = defaultdict(list)
        for op in self.ops:
            if op["launch"] >= 0:
                calls[op["launch"]].append(op)
        out = {}
        for r in self.spans:
            if r["kind"] != "range" or self.roles.get(r["lane"]) != "training":
                continue
            inside = [c for c in calls if encloses(r, self.events[c])]
            ops = [op for c in inside for op in calls[c]]
            if ops:
                out[r["row"]] = (min(o["ts"] for o in ops), max(o["ts"] + o["dur"] for o in ops), len(inside))
        return out


def encloses(outer, inner):
    return outer["ts"] <= inner["ts"] and outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"]


def sums(pairs):
    """name -> (count, total, least, most) of (name, duration)."""
    found = defaultdict(list)
    for name, dur in pairs:
        found[name].append(dur)
    return {name: (len(d), sum(d), min(d), max(d)) for name, d in found.items()}


def reported(rows, name, count="Instances"):
    """The same from a report."""
    return {
        row[name]: (int(row[count]), int(row["Total Time (ns)"]), int(row["Min (ns)"]), int(row["Max (ns)"]))
        for row in rows or []
    }


def counted(rows, *keys):
    """How often each combination of values occurs."""
    return Counter(tuple(row[k] for k in keys) for row in rows or [])
