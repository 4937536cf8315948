"""How numbers are written for people: one place for units, digits and rounding.

Prose takes a number with its unit (``7.63 ms``); a column or chart takes one ``Scale`` and bare numbers with fixed
decimals. All rounding is half up. Between number and unit stands a non-breaking space. What is not known is the
words ``not known``, never 0, never a dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

NBSP = "\u00a0"
MINUS = "\u2212"
NOT_KNOWN = "not known"

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TIME = (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9))
_DECIMAL = (("B", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12))
_BINARY = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))


def fixed(value: float | Decimal, decimals: int) -> str:
    """``value`` with this many decimals, rounded half up, thousands with a comma, a true minus."""
    exact = value if isinstance(value, Decimal) else Decimal(repr(value))
    rounded = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{abs(rounded):,f}" if rounded >= 0 or rounded == 0 else f"{MINUS}{abs(rounded):,f}"


def digits(value: float | Decimal) -> str:
    """Two decimals below 10, one below 100, none above; decided after rounding, so 9.996 is ``10.0``."""
    size = abs(value if isinstance(value, Decimal) else Decimal(repr(value)))
    for decimals, limit in ((2, 10), (1, 100)):
        if size.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP) < limit:
            return fixed(value, decimals)
    return fixed(value, 0)


def time(ns: float | None) -> str:
    """Nanoseconds for prose: ``850 ns``, ``86 us``, ``7.63 ms``, ``1.06 s``, ``2.50 min``."""
    if ns is None:
        return NOT_KNOWN
    unit = _time_unit(abs(Decimal(repr(ns))))
    size = dict(_TIME)[unit]
    value = Decimal(repr(ns)) / size
    return f"{fixed(value, 0) if unit in ('ns', 'us') else digits(value)}{NBSP}{unit}"


def seconds(value: float | None) -> str:
    """Seconds for prose, in the unit that ``time`` picks."""
    return time(None if value is None else value * 1e9)


def interval(low_ns: float, high_ns: float) -> str:
    """``57.0 to 59.3 ms``: one unit and one number of decimals, both of the upper end."""
    scale = Scale.for_prose(high_ns)
    return f"{scale.text(low_ns)} to {scale.text(high_ns)}{NBSP}{scale.unit}"


def percent(share: float | None) -> str:
    """A ratio as percent: whole from 10, one decimal below; a trace of something is ``under 0.1%``."""
    if share is None:
        return NOT_KNOWN
    value = Decimal(repr(share)) * 100
    size = abs(value)
    if 0 < size < Decimal("0.05"):
        return "under 0.1%"
    if size == 0:
        return "0%"
    small = size.quantize(Decimal("0.1"), ROUND_HALF_UP) < 10
    return f"{fixed(value, 1 if small else 0)}%"


def change(share: float) -> str:
    """A relative change with its sign: ``−26%``, ``+8.0%``."""
    text = percent(share)
    return text if share <= 0 or text.startswith("under") else f"+{text}"


def size(count: int | None) -> str:
    """Bytes, decimal: ``448 B``, ``24.6 kB``, ``1.58 MB``, ``26.2 MB``."""
    if count is None:
        return NOT_KNOWN
    return _bytes(count, _DECIMAL, 1000)


def memory(count: int | None) -> str:
    """Bytes of memory, binary: ``512 B``, ``1.5 KiB``, ``12.0 GiB``."""
    if count is None:
        return NOT_KNOWN
    return _bytes(count, _BINARY, 1024)


def bandwidth(gb_per_s: float | None) -> str:
    """Bandwidth in decimal GB/s: ``32.1 GB/s``."""
    return NOT_KNOWN if gb_per_s is None else f"{digits(gb_per_s)}{NBSP}GB/s"


def count(number: int | None) -> str:
    """A whole number with thousands: ``1,912``."""
    return NOT_KNOWN if number is None else f"{number:,}".replace("-", MINUS)


def spelled(number: int) -> str:
    """A small count in words, a larger one in figures."""
    return _WORDS[number] if 0 <= number < len(_WORDS) else count(number)


def counted(number: int, one: str, many: str = "") -> str:
    """``1 event``, ``40 events``."""
    return f"{count(number)}{NBSP}{one if number == 1 else many or one + 's'}"


def listing(numbers: Iterable[int]) -> str:
    """Ranks or steps: ``0 to 7``, ``4, 5``, ``0 to 3, 7``; runs of three and more are drawn together."""
    out: list[str] = []
    for first, last in _runs(sorted(set(numbers))):
        if last - first >= 2:
            out.append(f"{first} to {last}")
        else:
            out.extend(str(n) for n in range(first, last + 1))
    return ", ".join(out)


def named(word: str, numbers: Sequence[int]) -> str:
    """``rank 7``, ``ranks 0 to 7``, ``no rank``."""
    distinct = sorted(set(numbers))
    if not distinct:
        return f"no {word}"
    return f"{word if len(distinct) == 1 else word + 's'} {listing(distinct)}"


@dataclass(frozen=True)
class Scale:
    """One time unit with fixed decimals, for a column or a chart: ``text`` gives numbers without the unit."""

    unit: str
    size: int
    decimals: int

    @classmethod
    def of(cls, values_ns: Iterable[float | None]) -> Scale:
        """The scale of a column, from its largest value: whole ns and us, two decimals below 100, one above."""
        largest = max((abs(Decimal(repr(v))) for v in values_ns if v is not None), default=Decimal(0))
        unit = _time_unit(largest)
        size = dict(_TIME)[unit]
        return cls(unit, size, 0 if unit in ("ns", "us") else 2 if largest / size < 100 else 1)

    @classmethod
    def for_prose(cls, value_ns: float) -> Scale:
        """The unit and decimals that ``time`` would give this value."""
        number, _, unit = time(value_ns).partition(NBSP)
        return cls(unit, dict(_TIME)[unit], len(number.partition(".")[2]))

    def text(self, ns: float | None) -> str:
        """The number alone, or ``not known``."""
        return NOT_KNOWN if ns is None else fixed(Decimal(repr(ns)) / self.size, self.decimals)

    def with_unit(self, ns: float | None) -> str:
        """The number with the unit of the scale."""
        return NOT_KNOWN if ns is None else f"{self.text(ns)}{NBSP}{self.unit}"


MILLISECONDS = Scale("ms", 10**6, 3)


def ticks(top: float) -> list[float]:
    """4 to 7 round tick values from 0, the last at or below ``top`` (which is > 0)."""
    step = Decimal(1).scaleb(Decimal(repr(top)).adjusted() - 1)
    for factor in (1, 2, 3, 5, 10, 20, 30, 50):
        steps = int(Decimal(repr(top)) / (step * factor))
        if steps <= 6:
            return [float(step * factor * i) for i in range(steps + 1)]
    raise ValueError(f"no ticks for {top}")


def _time_unit(size_ns: Decimal) -> str:
    """The unit whose rounded number stays below the next unit: 999.6 us is written in ms."""
    if size_ns == 0:
        return "us"
    for unit, size, limit in (("ns", 1, 1000), ("us", 10**3, 1000), ("ms", 10**6, 1000), ("s", 10**9, 60)):
        decimals = 0 if limit == 1000 else 1
        if (size_ns / size).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP) < limit:
            return unit
    return "min"


def _bytes(number: int, units: Sequence[tuple[str, int]], limit: int) -> str:
    for unit, size in units:
        decimals = 0 if size == 1 else 1 if unit in ("kB", "KiB") or abs(number) >= 10 * size else 2
        rounded = Decimal(abs(number)) / size
        if rounded.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP) < limit or unit == units[-1][0]:
            return f"{fixed(Decimal(number) / size, decimals)}{NBSP}{unit}"
    raise AssertionError("the last unit takes everything")


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], n)
        else:
            runs.append((n, n))
    return runs
