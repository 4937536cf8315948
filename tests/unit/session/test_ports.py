"""The machine's ports: looking for them never costs a run its description."""

import pytest

from dtprof.session import ports


@pytest.mark.parametrize("error", [PermissionError("no such luck"), ValueError("no number")])
def test_what_cannot_be_read_is_no_port_and_raises_nothing(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(ports, "ports", fail)
    assert ports.of_this_machine.__wrapped__() == ()


def test_rates_that_are_none_are_not_stated(tmp_path):
    for name, rate in (("good", "100 Gb/sec (4X EDR)"), ("half", "2.5 Gb/sec (1X SDR)"), ("odd", "fast"), ("dot", ".")):
        folder = tmp_path / "sys/class/infiniband" / name / "ports/1"
        folder.mkdir(parents=True)
        (folder / "state").write_text("4: ACTIVE\n")
        (folder / "rate").write_text(rate)
    found = {one["name"]: one["mbit_s"] for one in ports.ports(tmp_path)}
    assert found == {"dot:1": None, "good:1": 100_000, "half:1": 2500, "odd:1": None}
    assert sorted(ports.between_machines(ports.ports(tmp_path))) == [0.3125, 12.5]
