"""pytest: ``dtprof_gate`` runs two training functions in pairs and fails the test when the candidate is slower.

    @pytest.mark.dtprof_gate(margin="5%", pairs=12, steps=10)
    def test_the_new_loss_is_not_slower(dtprof_gate):
        dtprof_gate(old_step, new_step)

FAIL fails the test. INCONCLUSIVE is no pass: it skips the test with the reason, or fails it under
``--dtprof-inconclusive=fail``. ``--dtprof-pairs N`` overrides the number of pairs everywhere.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dtprof.check.result import Result

SHARES = ("margin", "alpha", "detect")
OPTIONS = ("pairs", "margin", "alpha", "steps", "warm_up", "seed", "confirm", "detect")


@dataclass(frozen=True)
class Settings:
    """What the marker may set. ``steps`` calls of each function count per measurement, after ``warm_up`` that do not."""

    pairs: int = 12
    margin: float = 0.05
    alpha: float = 0.01
    steps: int = 5
    warm_up: int = 1
    seed: int = 0
    confirm: bool = True
    detect: float | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options."""
    group = parser.getgroup("dtprof")
    group.addoption(
        "--dtprof-inconclusive", choices=("skip", "fail"), default="skip", help="what an inconclusive dtprof_gate does (skip)"
    )
    group.addoption("--dtprof-pairs", type=int, metavar="N", help="pairs of every dtprof_gate, in place of the marker's")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", f"dtprof_gate({', '.join(OPTIONS)}): how the fixture of that name measures and decides")


class Gate:
    """The value of the fixture: call it with the two functions."""

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        self._request, self.settings = request, settings

    def __call__(self, baseline: Callable[[], object], candidate: Callable[[], object], **changes: Any) -> Result:
        """Measure and decide; ``changes`` are settings for this call alone. Returns the result of a pass."""
        from dtprof.check.gate import gate_result
        from dtprof.errors import InputError
        from dtprof.launch.pairs import Pair
        from dtprof.launch.trial import Plan, run_trial

        own = replace(self.settings, **_checked(changes))
        plan = Plan(pairs=own.pairs, margin=own.margin, alpha=own.alpha, detect=own.detect, confirm=own.confirm)
        try:
            plan.check()
        except InputError as error:
            pytest.fail(f"dtprof_gate: {error.message}", pytrace=False)
        for _ in range(own.warm_up):
            baseline()
            candidate()
        pairs: list[Pair] = []

        def measure(number: int) -> tuple[float, float]:
            sides = [(0, baseline), (1, candidate)]
            if random.Random(f"{own.seed}/{number}").random() >= 0.5:
                sides.reverse()
            took = {i: timed(function, own.steps, own.warm_up) for i, function in sides}
            pairs.append(Pair(number, took[0], took[1], own.steps, "ab"[sides[0][0]], ("", "")))
            return took[0], took[1]

        name = self._request.node.nodeid
        result = gate_result(run_trial(measure, plan), pairs, title=name)
        self._request.node.user_properties.append(("dtprof_gate", result.headline))
        if result.outcome == "fail" or (result.outcome == "inconclusive" and self._strict):
            pytest.fail(result.headline, pytrace=False)
        if result.outcome == "inconclusive":
            pytest.skip(result.headline)
        return result

    @property
    def _strict(self) -> bool:
        return bool(self._request.config.getoption("--dtprof-inconclusive") == "fail")


@pytest.fixture
def dtprof_gate(request: pytest.FixtureRequest) -> Gate:
    """``dtprof_gate(baseline, candidate)``: fails the test when calls of ``candidate`` take longer than the margin allows."""
    found: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("dtprof_gate"))):
        if marker.args:
            pytest.fail(f"the marker dtprof_gate takes keywords only: {', '.join(OPTIONS)}", pytrace=False)
        found |= marker.kwargs
    pairs = request.config.getoption("--dtprof-pairs")
    return Gate(request, replace(Settings(), **_checked(found | ({} if pairs is None else {"pairs": pairs}))))


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Known settings with shares as numbers; the test fails where one makes no sense, with what is wrong."""
    unknown = sorted(set(settings) - set(OPTIONS))
    if unknown:
        pytest.fail(f"dtprof_gate has no setting {unknown[0]!r}; there are {', '.join(OPTIONS)}", pytrace=False)
    for name, least in (("pairs", 1), ("steps", 1), ("warm_up", 0)):
        value = settings.get(name, least)
        if not isinstance(value, int) or value < least:
            pytest.fail(f"dtprof_gate: {name}={value!r} is no number of {least} or more", pytrace=False)
    return {name: _share(name, value) if name in SHARES else value for name, value in settings.items()}


def _share(name: str, value: object) -> float | None:
    """``"5%"`` or 0.05 as a number; None stays (``detect``)."""
    if value is None and name == "detect":
        return None
    text = str(value)
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        pytest.fail(f"dtprof_gate: {name}={value!r} is no share; write it as '5%' or 0.05", pytrace=False)


def timed(function: Callable[[], object], steps: int, warm_up: int) -> float:
    """Median seconds of a call over ``steps`` calls after ``warm_up``; what the other side left is collected before."""
    gc.collect()
    for _ in range(warm_up):
        function()
    took = []
    for _ in range(steps):
        begin = time.perf_counter()
        function()
        took.append(time.perf_counter() - begin)
    return median(took)
