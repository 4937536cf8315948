"""The line between the hosts of a group, from the ports that its processes recorded, as a range.

How much of a host's ports a group gets is not recorded: at least its ranks' share, each rank no more than the fastest port;
at most all of them. A rank sends and receives through its own PCIe slot in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dtprof.catalogue.hardware import PCIE_X16_GB_S, Gpu
from dtprof.run import Part, Run
from dtprof.session.ports import between_machines


def line_between(run: Run, parts: Sequence[Part], gpu: Gpu) -> tuple[float, float] | str:
    """GB/s per direction of a group's line out of a host, the least and the most that it may be; or why nobody knows.

    ``parts``: the processes of the group, one per rank, with their hosts; the narrowest host counts.
    """
    near = Counter(p.host for p in parts)
    # ranks that are not recorded may share any host
    missing = max((run.world_size or 0) - len(run.ranks), 0)
    on_host = {host: missing + len({p.rank for p in run.parts if p.host == host}) for host in near}
    found = []
    for host, ranks in near.items():
        told = [p.extra["network"] for p in parts if p.host == host and p.extra.get("network")]
        rates = between_machines(told[0]) if told else []
        if not rates:
            return f"the ports of {host or 'its hosts'} are not recorded"
        own = ranks * PCIE_X16_GB_S[gpu.pcie]
        share = min(sum(rates) / on_host[host], max(rates))
        found.append((min(ranks * share, own), min(sum(rates), own)))
    return min(least for least, _ in found), min(most for _, most in found)
