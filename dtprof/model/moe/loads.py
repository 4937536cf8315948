"""Tokens of every expert, step by step, and what they become where experts are even or have a capacity."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dtprof.run import Run

Expert = tuple[int, int]  # ordinal of the part that computes it, number of the expert


@dataclass(frozen=True)
class Load:
    """Assignments of one layer in one step among the ranks that share its experts: ``tokens`` that each expert computed, and
    ``dropped``, by number of the expert, those beyond a capacity that the run had.
    """

    tokens: Mapping[Expert, float]
    dropped: Mapping[int, float] = field(default_factory=dict)

    def of(self, part: int) -> float:
        """Tokens of one part."""
        return sum(n for (owner, _), n in self.tokens.items() if owner == part)

    @property
    def computed(self) -> float:
        """All tokens that were computed."""
        return sum(self.tokens.values())

    @property
    def wanted(self) -> float:
        """All assignments, the dropped ones included."""
        return self.computed + sum(self.dropped.values())


def read(run: Run, groups: Iterable[tuple[int, ...]]) -> dict[tuple[tuple[int, ...], str, int], Load]:
    """(parts that share the experts, layer, step) -> load, from the metrics ``moe_tokens`` and ``moe_dropped``."""
    group_of = {part: group for group in groups for part in group}
    tokens: dict[tuple[tuple[int, ...], str, int], dict[Expert, float]] = defaultdict(lambda: defaultdict(float))
    dropped: dict[tuple[tuple[int, ...], str, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for part, group in group_of.items():
        table = run.table("metrics", part)
        rows = table.take(table.is_("metric", "moe_tokens", "moe_dropped") & table.known("expert") & table.known("layer"))
        columns = (rows[name].tolist() for name in ("step", "expert", "value"))
        for metric, layer, step, expert, value in zip(rows.text("metric"), rows.text("layer"), *columns, strict=True):
            key = group, str(layer), step
            if metric == "moe_tokens":
                tokens[key][part, expert] += value
            else:
                dropped[key][expert] += value
    return {key: Load(dict(mine), dict(dropped.get(key, {}))) for key, mine in tokens.items()}


def owned_twice(load: Load) -> int | None:
    """An expert that several ranks of one group record; None where each has its own."""
    numbers = [expert for _, expert in load.tokens]
    return next((expert for expert in numbers if numbers.count(expert) > 1), None)


def changed(load: Load, sources: int, *, even: bool, capacity: float | None, by_chance: bool = False) -> Load:
    """The load where experts are ``even``, and take ``capacity`` times their even share from each of ``sources`` ranks.

    The limit is ceil(c k T / E) of the k T assignments of a rank (GShard, Lepikhin et al. 2020). How an expert's tokens are
    divided among the ranks that send them is not recorded: equally, or ``by_chance``, a Poisson number from each. A capacity
    that the run had stays where no other is given.
    """
    many = len(load.tokens)
    wanted = {key: load.wanted / many if even else n + load.dropped.get(key[1], 0.0) for key, n in load.tokens.items()}
    if capacity is None:
        if not any(load.dropped.values()):
            return Load(wanted)
        limit = max(n for key, n in load.tokens.items() if load.dropped.get(key[1], 0.0))
        kept = {key: min(n, limit) if even else load.tokens[key] for key, n in wanted.items()}
    else:
        limit = math.ceil(round(capacity * load.wanted / sources / many, 6))
        take = _least_by_chance if by_chance else min
        kept = {key: sources * take(n / sources, limit) for key, n in wanted.items()}
    return Load(kept, {expert: wanted[part, expert] - n for (part, expert), n in kept.items()})


def _least_by_chance(mean: float, limit: float) -> float:
    """The mean of min(N, limit) for N of a normal distribution with the mean and the variance of a Poisson one."""
    if mean <= 0:
        return 0.0
    sigma = math.sqrt(mean)
    z = (limit - mean) / sigma
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    above = math.erfc(z / math.sqrt(2)) / 2
    return mean - sigma * (density - z * above)
