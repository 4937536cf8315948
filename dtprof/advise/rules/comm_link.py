"""A rule about one link that is slower than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import per_rank, severity_of, step_ns
from dtprof.analyse.links import Link, LinksResult
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named, percent, size, time
from dtprof.protocols import Lens

_LEAST_SHARE = 0.01


class SlowLink:
    """What leaves one host, or reaches it, goes at a fraction of the other links' rate."""

    id = "comm.slow_link"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where connections were not recorded, and where no two links between hosts carry alike amounts."""
        result: LinksResult = study.result("links")
        accounting: AccountingResult = study.result("accounting")
        if not result.slow:
            return
        whole, usual = step_ns(accounting), result.usual_bytes_per_s
        longest = max(1e9 * x.bytes_per_step * (1 / x.bytes_per_s - 1 / usual) for x in result.slow)
        cost, most = _saved(accounting, result)
        if cost < _LEAST_SHARE * whole:
            return
        senders, receivers = ({getattr(x, end) for x in result.slow} for end in ("source", "target"))
        out = len(senders) <= len(receivers)
        ranks = tuple(sorted(senders if out else receivers))
        verb = "sends" if out else "receives"
        who, links = named("rank", ranks), ", ".join(_told(x) for x in result.slow[:6])
        others = [x for x in result.links if x not in result.slow]
        remedy = f"look at the network of the host of {who}: negotiated speed, cable, errors of the port, other traffic"
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"What {who} {verb} goes at {percent(result.slow[0].bytes_per_s / usual)} of the rate of the other links",
            ranks=ranks,
            steps=(),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(f"Sent by TCP's own counters, while there was something to send: {links}."),
                Evidence(f"The other {counted(len(others), 'link')}: {', '.join(_told(x) for x in others[:6])}."),
                Evidence(
                    f"{time(longest)} per step is what {size(round(result.slow[0].bytes_per_step))} take longer than at "
                    f"{_rate(usual)}, the others' rate. Round trips are in all of these rates: the link itself differs more."
                ),
                Evidence(most),
            ),
            why=f"a collective lasts as long on all its ranks; the counters of their connections tell that {who} "
            f"{verb} at {_rate(result.slow[0].bytes_per_s)}, the others at {_rate(usual)}",
            next=remedy,
            apply=remedy,
            verify="measure again: the rates of the links should be alike, and exposed communication shorter",
            share=cost / whole,
            bound=result.reached_bytes_per_s is None,
        )


def _saved(accounting: AccountingResult, result: LinksResult) -> tuple[float, str]:
    """What of the exposed moving goes if data move as fast as over the other links, ns per step, and how that is known."""
    moving, either = (per_rank(accounting, name).values() for name in ("comm_transfer_ns", "comm_unsplit_ns"))
    whole = 1e9 * max(x.bytes_per_step / x.bytes_per_s for x in result.slow)
    exposed = max(moving, default=0.0) + (float(np.mean(list(either))) if either else 0.0)
    exposed = min(exposed, whole)
    known = f"{time(exposed)} per step move data, of this or along with it, while nothing computes"
    if result.reached_bytes_per_s is None:
        return exposed, f"{known}; how fast the others can be is not known, as the network hardly ever was their limit."
    left = min(result.slow[0].bytes_per_s / result.reached_bytes_per_s, 1.0)
    at = f"{_rate(result.reached_bytes_per_s)}, which the others reach when the network is their limit"
    return exposed * (1 - left), f"{known}; {percent(left)} of it is left at {at}."


def _told(link: Link) -> str:
    return f"rank {link.source} to rank {link.target} {_rate(link.bytes_per_s)}"


def _rate(bytes_per_s: float) -> str:
    return f"{8 * bytes_per_s / 1e6:,.0f} Mbit/s"
