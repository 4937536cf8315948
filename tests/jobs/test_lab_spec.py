"""What may be asked of the lab."""

from types import SimpleNamespace

import pytest

from dtprof.errors import InputError
from dtprof_sample_jobs.lab.network import bucket
from dtprof_sample_jobs.lab.spec import LabSpec, lab_for, parse_lab, parse_rate, parse_time_us


def test_everything_that_can_be_asked():
    spec = parse_lab("rate.1=200mbit,rate=1gbit,rtt=2ms,cpu=50%,cpu.3=25%,hosts=2", ranks=4)
    assert spec == LabSpec(
        ranks=4, hosts=2, rates={0: 10**9, 1: 2 * 10**8}, rtt_us=2000, cpus={0: 0.5, 1: 0.5, 2: 0.5, 3: 0.25}
    )
    assert [spec.host_of(rank) for rank in range(4)] == [0, 0, 1, 1]


def test_without_hosts_every_rank_has_its_own():
    spec = parse_lab("rtt=500us", ranks=3)
    assert spec == LabSpec(ranks=3, hosts=3, rtt_us=500)
    assert [spec.host_of(rank) for rank in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("text", "rate"), [("200mbit", 2e8), ("1gbit", 1e9), ("2.5g", 2.5e9), ("640Kbit", 640_000)])
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(("text", "time_us"), [("2ms", 2000), ("0.5ms", 500), ("80us", 80), ("1s", 1_000_000), ("0us", 0)])
def test_times(text, time_us):
    assert parse_time_us(text) == time_us


NONSENSE = [
    ("", "is no KEY=VALUE"),
    ("rate", "is no KEY=VALUE"),
    ("rate=", "is no KEY=VALUE"),
    ("rate=1gbit,rate=2gbit", "has rate twice"),
    ("speed=1gbit", "keys are rate, rtt, cpu, hosts"),
    ("rate=fast", "is no rate"),
    ("rate=10", "is no rate"),
    ("rate=1000gbit", "is no rate"),
    ("rtt=2", "is no round-trip time"),
    ("rtt=2s", "is no round-trip time"),
    ("cpu=0.5", "is no share of a core"),
    ("cpu=0%", "is no share of a core"),
    ("rate.2=1gbit", "no such host; they are 0 to 1"),
    ("cpu.2=50%", "no such rank; they are 0 to 1"),
    ("rate.x=1gbit", "is no number"),
    ("hosts=3", "cannot hold 2 ranks in equal parts"),
    ("hosts=0", "cannot hold 2 ranks in equal parts"),
]


@pytest.mark.parametrize(("text", "said"), NONSENSE)
def test_what_makes_no_sense_is_named(text, said):
    with pytest.raises(InputError, match=said):
        parse_lab(text, ranks=2)


def test_the_fault_slow_link_is_another_rate_of_one_host():
    faults = [SimpleNamespace(kind="slow_link", where=2, amount=2e8), SimpleNamespace(kind="slow_rank", where=0, amount=5.0)]
    assert lab_for("rate=1gbit,hosts=2", 4, faults).rates == {0: 10**9, 1: 2 * 10**8}
    with pytest.raises(InputError, match="no rank 4"):
        lab_for("rate=1gbit", 4, [SimpleNamespace(kind="slow_link", where=4, amount=2e8)])


@pytest.mark.parametrize(
    ("rate", "burst", "limit"),
    [(2 * 10**8, 70_000, 4_000_000), (5 * 10**9, 125_000, 31_250_000), (10**10, 250_000, 62_500_000)],
)
def test_a_bucket_holds_a_whole_unsegmented_frame_and_200_us(rate, burst, limit):
    assert bucket(rate) == ["rate", f"{rate}bit", "burst", str(burst), "limit", str(limit)]
