"""Who wrote a Kineto file: rank, host, device, as the file itself says."""

from __future__ import annotations

import numpy as np

from dtprof.ingest.kineto.events import Events
from dtprof.ingest.kineto.raw import RawTrace
from dtprof.run import Part
from dtprof.schema import MISSING


def identity(raw: RawTrace, source: str, events: Events) -> Part:
    """A part with ordinal 0 and all that the file says about its process; what it does not say stays None."""
    info = raw.header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    part = Part(ordinal=0, source=source, host=raw.header.get("host_name"), backend=info.get("backend"), extra={})
    part.world_size = info.get("world_size") if isinstance(info.get("world_size"), int) else None
    if isinstance(info.get("rank"), int):
        part.rank, part.rank_from = info["rank"], "distributedInfo"
    else:
        ranks = raw.args.get("Rank")
        values = np.unique(ranks.values[ranks.values != MISSING]) if ranks is not None else np.empty(0)
        if len(values) == 1:
            part.rank, part.rank_from = int(values[0]), "communication arguments"
            sizes = raw.args.get("Group size")
            if part.world_size is None and sizes is not None and len(sizes.values):
                part.world_size = int(sizes.values.max())
                part.extra["world_size_from"] = "the largest group: a lower bound"
    pids = np.unique(events.lanes.process[events.lanes.process > 0])
    part.pid = int(pids[0]) if len(pids) == 1 else None
    part.device = _device_name(raw, events)
    if len(events.ts):
        part.extra |= {"first_ns": int(events.ts[0]), "last_ns": int((events.ts + events.dur).max())}
    return part


def _device_name(raw: RawTrace, events: Events) -> str | None:
    listed = raw.header.get("deviceProperties")
    if not isinstance(listed, list):
        return None
    used = np.unique(events.lanes.device[events.lane[events.device]]).tolist()
    for entry in listed:
        if isinstance(entry, dict) and used and entry.get("id") == used[0]:
            return str(entry.get("name")) or None
    return None
