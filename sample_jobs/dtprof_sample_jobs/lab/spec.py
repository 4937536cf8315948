"""What a lab is asked to be: ``rate=1gbit,rtt=2ms,cpu=50%,hosts=2,rate.1=200mbit`` as a value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from dtprof.errors import InputError

# holds the specification in the environment of everything that runs in a lab
LAB = "DTPROF_LAB"
MAX_HOSTS = 64
_EXAMPLE = "write it as in --lab rate=1gbit,rtt=2ms,cpu=50%,rate.1=200mbit"
_RATE_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_TIME_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}


class Planted(Protocol):
    """A fault as ``common.faults`` reads it; of interest here are those of kind slow_link: a rank and bits per second."""

    @property
    def kind(self) -> str:
        """Its name."""

    @property
    def where(self) -> int | None:
        """The rank."""

    @property
    def amount(self) -> float:
        """The rate."""


@dataclass(frozen=True)
class LabSpec:
    """A network of ``hosts`` with ``ranks`` in contiguous blocks.

    ``rates`` is host -> bits per second that leave it, ``rtt_us`` the round trip between two hosts in us (0: no delay
    added), ``cpus`` rank -> share of one core. Hosts without a rate are not shaped, ranks without a share not limited.
    """

    ranks: int
    hosts: int
    rates: Mapping[int, int] = field(default_factory=dict)
    rtt_us: int = 0
    cpus: Mapping[int, float] = field(default_factory=dict)

    def host_of(self, rank: int) -> int:
        """Host on which a rank runs."""
        return rank * self.hosts // self.ranks

    def slow_link(self, rank: int, rate: int) -> LabSpec:
        """The same lab with another rate, in bits per second, for the host of one rank: the fault slow_link."""
        if not 0 <= rank < self.ranks:
            raise InputError(f"slow_link={rank}: there is no rank {rank}", f"ranks are 0 to {self.ranks - 1}")
        return replace(self, rates={**self.rates, self.host_of(rank): rate})


def lab_knob() -> dict[str, str]:
    """The lab that this process runs in, as one of its job's knobs; nothing outside a lab."""
    return {"lab": os.environ[LAB]} if LAB in os.environ else {}


def lab_for(text: str, ranks: int, faults: Iterable[Planted] = ()) -> LabSpec:
    """Read a specification and slow down the links that faults name."""
    spec = parse_lab(text, ranks)
    for fault in faults:
        if fault.kind == "slow_link" and fault.where is not None:
            spec = spec.slow_link(fault.where, round(fault.amount))
    return spec


def parse_lab(text: str, ranks: int) -> LabSpec:
    """Read a specification; InputError names the item that makes no sense. See docs/lab.md for the keys."""
    items = _items(text)
    hosts = _integer("hosts", items.pop("hosts", str(ranks)))
    if not 1 <= hosts <= MAX_HOSTS or ranks % hosts:
        raise InputError(
            f"--lab hosts={hosts} cannot hold {ranks} ranks in equal parts", f"give a divisor of {ranks}, {MAX_HOSTS} at most"
        )
    rtt_us = parse_time_us(items.pop("rtt", "0us"))
    rates: dict[int, int] = {}
    cpus: dict[int, float] = {}
    for key, value in sorted(items.items(), key=lambda item: "." in item[0]):
        name, dot, number = key.partition(".")
        if name not in ("rate", "cpu"):
            raise InputError(f"--lab knows no {key!r}; keys are rate, rtt, cpu, hosts, rate.HOST, cpu.RANK", _EXAMPLE)
        count = hosts if name == "rate" else ranks
        where = [_integer(key, number)] if dot else range(count)
        if not all(0 <= n < count for n in where):
            last = count - 1
            raise InputError(f"--lab {key}: there is no such {'host' if name == 'rate' else 'rank'}", f"they are 0 to {last}")
        if name == "rate":
            rates |= dict.fromkeys(where, parse_rate(value))
        else:
            cpus |= dict.fromkeys(where, _share(value))
    return LabSpec(ranks, hosts, rates, rtt_us, cpus)


def _items(text: str) -> dict[str, str]:
    items: dict[str, str] = {}
    for item in text.split(","):
        key, equals, value = item.strip().partition("=")
        if not equals or not value:
            raise InputError(f"--lab {item!r} is no KEY=VALUE", _EXAMPLE)
        if key in items:
            raise InputError(f"--lab has {key} twice", _EXAMPLE)
        items[key] = value
    return items


def parse_rate(text: str) -> int:
    """``200mbit``, ``1gbit``, ``2.5g`` in bits per second."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:bit)?", text.lower())
    rate = round(float(found[1]) * _RATE_UNITS[found[2]]) if found else 0
    if not 100_000 <= rate <= 100_000_000_000:
        raise InputError(f"{text!r} is no rate of a lab", "write 200mbit, 1gbit, …; from 100kbit to 100gbit")
    return rate


def parse_time_us(text: str) -> int:
    """``500us``, ``2ms``, ``0.1s`` in whole microseconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text.lower())
    time_us = round(float(found[1]) * _TIME_UNITS[found[2]]) if found else -1
    if not 0 <= time_us <= 1_000_000:
        raise InputError(f"{text!r} is no round-trip time of a lab", "write 500us, 2ms, …; up to 1s")
    return time_us


def _share(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    share = float(found[1]) / 100 if found else 0.0
    if not 0.01 <= share <= 64:
        raise InputError(f"--lab {text!r} is no share of a core", "write 50%, or 200% for two cores; 1% at least")
    return share


def _integer(key: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise InputError(f"--lab {key}: {text!r} is no number", _EXAMPLE)
    return int(text)
