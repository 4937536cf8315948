from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtprof import numbers as n


def plain(text):
    return text.replace(n.NBSP, " ")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 us"),
        (1, "1 ns"),
        (850, "850 ns"),
        (999, "999 ns"),
        (1000, "1 us"),
        (1500, "2 us"),
        (1499, "1 us"),
        (86_000, "86 us"),
        (504_400, "504 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (7_625_000, "7.63 ms"),
        (7_624_999, "7.62 ms"),
        (9_995_000, "10.0 ms"),
        (14_462_000, "14.5 ms"),
        (99_950_000, "100 ms"),
        (115_000_000, "115 ms"),
        (999_500_000, "1.00 s"),
        (1_060_000_000, "1.06 s"),
        (59_900_000_000, "59.9 s"),
        (59_960_000_000, "1.00 min"),
        (150_000_000_000, "2.50 min"),
        (-7_630_000, "−7.63 ms"),
        (2.5, "3 ns"),
        (None, "not known"),
    ],
)
def test_time(ns, text):
    assert plain(n.time(ns)) == text


def test_unit_is_glued_to_its_number():
    for text in (n.time(86_000), n.size(448), n.memory(448), n.bandwidth(2.0), n.interval(1e6, 2e6), n.counted(3, "event")):
        assert n.NBSP in text


def test_seconds():
    assert plain(n.seconds(0.0044)) == "4.40 ms"
    assert n.seconds(None) == "not known"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (0.00049, "under 0.1%"),
        (0.0005, "0.1%"),
        (0.014, "1.4%"),
        (0.07349, "7.3%"),
        (0.0995, "10%"),
        (0.09949, "9.9%"),
        (0.394, "39%"),
        (0.395, "40%"),
        (1.0, "100%"),
        (-0.26, "−26%"),
        (None, "not known"),
    ],
)
def test_percent(share, text):
    assert n.percent(share) == text


def test_change_has_a_sign():
    assert n.change(-0.26) == "−26%"
    assert n.change(0.08) == "+8.0%"
    assert n.change(0.0) == "0%"


def test_interval_has_one_unit():
    assert plain(n.interval(57_000_000, 59_300_000)) == "57.0 to 59.3 ms"
    assert plain(n.interval(900_000, 1_100_000)) == "0.90 to 1.10 ms"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (448, "448 B"),
        (1536, "1.5 kB"),
        (24_576, "24.6 kB"),
        (907_776, "907.8 kB"),
        (999_960, "1.00 MB"),
        (1_580_000, "1.58 MB"),
        (26_214_400, "26.2 MB"),
        (1_073_741_824, "1.07 GB"),
        (None, "not known"),
    ],
)
def test_size_is_decimal(count, text):
    assert plain(n.size(count)) == text


def test_memory_is_binary():
    assert plain(n.memory(512)) == "512 B"
    assert plain(n.memory(1536)) == "1.5 KiB"
    assert plain(n.memory(12 * 2**30)) == "12.0 GiB"
    assert plain(n.memory(5 * 2**60)) == "5,242,880.0 TiB"
    assert n.memory(None) == "not known"


def test_bandwidth():
    assert plain(n.bandwidth(32.09)) == "32.1 GB/s"
    assert n.bandwidth(None) == "not known"


def test_counts():
    assert n.count(1912) == "1,912"
    assert n.count(None) == "not known"
    assert plain(n.counted(1, "event")) == "1 event"
    assert plain(n.counted(40, "event")) == "40 events"
    assert plain(n.counted(2, "process", "processes")) == "2 processes"
    assert [n.spelled(i) for i in (0, 1, 8, 12, 13, 1300)] == ["no", "one", "eight", "twelve", "13", "1,300"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([7], "rank 7"),
        ([5, 4], "ranks 4, 5"),
        (range(8), "ranks 0 to 7"),
        ([0, 1, 2, 3, 7], "ranks 0 to 3, 7"),
        ([3, 3], "rank 3"),
    ],
)
def test_named(ranks, text):
    assert n.named("rank", ranks) == text


def test_scale_is_fixed_for_a_column():
    scale = n.Scale.of([18_500_000, 20_000, None])
    assert (scale.unit, scale.text(10_849_000), scale.text(20_000), scale.text(None)) == ("ms", "10.85", "0.02", "not known")
    assert n.Scale.of([504_000]).text(10_400) == "10"
    assert n.Scale.of([]).unit == "us"
    assert n.Scale.of([250_000_000]).text(12_345_678) == "12.3"
    assert plain(n.Scale.of([7_110_000]).with_unit(890_000)) == "0.89 ms"
    assert n.MILLISECONDS.text(1_062_400) == "1.062"


def test_round_half_up_not_to_even():
    assert [n.fixed(v, 0) for v in (0.5, 1.5, 2.5, -0.5)] == ["1", "2", "3", "−1"]
    assert n.fixed(-0.001, 2) == "0.00"
    assert n.fixed(Decimal("1.005"), 2) == "1.01"
    assert n.fixed(1234567.0, 0) == "1,234,567"


@given(st.integers(0, 10**13))
def test_written_time_is_within_its_last_digit(ns):
    number, unit = n.time(ns).replace(",", "").split(n.NBSP)
    size = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}[unit]
    last = size / 10 ** len(number.partition(".")[2])
    assert abs(float(number) * size - ns) <= last / 2 * 1.0001


@given(st.floats(1e-3, 1e12))
def test_ticks_are_four_to_seven(top):
    ticks = n.ticks(top)
    assert 4 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] <= top * 1.0001
    assert top - ticks[-1] <= (ticks[1] - ticks[0]) * 1.0001
