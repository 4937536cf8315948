"""One colour, one meaning: the parts of a step, their words and their colours, and the colours of page and status.

Checked under simulated colour blindness (Machado et al. 2009, severity 1): compute, waiting and transfer stay at least
13 CIEDE2000 apart in both themes; the rest is told by fixed order, gaps and labels, so no reading depends on hue alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.analyse.results import ACCOUNTING
from dtprof.findings import Severity


@dataclass(frozen=True)
class PartStyle:
    """One key of the accounting: its words, its colours (light, dark), the text on it, and its letter without colour."""

    key: str
    label: str
    fill: str
    letter: str
    light: str
    dark: str
    on_light: str
    on_dark: str

    @property
    def on(self) -> str:
        """Name of the CSS variable for text on it."""
        return f"on-{self.fill}"


_WHITE, _INK, _DARK_INK, _PAGE = "#FFFFFF", "#1B222C", "#E7EAEE", "#12161C"
PARTS: dict[str, PartStyle] = {
    style.key: style
    for style in (
        PartStyle("compute_ns", "compute", "compute", "c", "#1A75B5", "#2079BB", _WHITE, _WHITE),
        PartStyle("copy_exposed_ns", "copy", "copy", "y", "#2BBCCB", "#70CFC9", _INK, _PAGE),
        PartStyle("comm_wait_ns", "waiting", "wait", "w", "#E37A22", "#EB8919", _INK, _PAGE),
        PartStyle("comm_transfer_ns", "moving data", "transfer", "m", "#6B2E77", "#C4A5FE", _WHITE, _PAGE),
        PartStyle("comm_unsplit_ns", "communication, not split", "unsplit", "u", "#E37A22", "#EB8919", _INK, _PAGE),
        PartStyle("idle_host_ns", "idle: not launched yet", "idle-host", "-", "#979EA7", "#7A838E", _INK, _PAGE),
        PartStyle("idle_dependency_ns", "idle: dependency", "idle-dep", ":", "#C3C8CF", "#565E68", _INK, _DARK_INK),
        PartStyle("idle_input_ns", "idle: input", "idle-input", "i", "#E0D254", "#F1DF83", _INK, _PAGE),
        PartStyle("idle_checkpoint_ns", "idle: checkpoint", "idle-ckpt", "k", "#966A63", "#A06C5B", _WHITE, _WHITE),
        PartStyle("idle_other_ns", "idle: other", "idle-other", ".", "#E6E9ED", "#323A45", _INK, _DARK_INK),
    )
}  # fmt: skip

SURFACE: dict[str, tuple[str, str]] = {
    "page": ("#FFFFFF", "#12161C"),
    "raise": ("#F7F8FA", "#191F27"),
    "line": ("#DFE3E8", "#303844"),
    "hair": ("#EEF0F3", "#232A34"),
    "ink": ("#1B222C", "#E7EAEE"),
    "muted": ("#5A6573", "#9BA6B3"),
    "wait-ink": ("#A34A06", "#F7A648"),
    "compute-ink": ("#155E93", "#6BB4EA"),
    "transfer-ink": ("#6B2E77", "#CDB4FF"),
    "ok": ("#1E7B4F", "#5CC795"),
    "ok-bg": ("#E9F5EF", "#16291F"),
    "medium": ("#8A6100", "#E3B341"),
    "medium-bg": ("#FBF3DF", "#2B2412"),
    "high": ("#B3261E", "#FF8A80"),
    "high-bg": ("#FCECEA", "#301B1A"),
}

SIGNS: dict[Severity, str] = {"high": "▲", "medium": "■", "low": "●"}
LAST = "▶"


def tokens(dark: bool) -> dict[str, str]:
    """CSS variables of one theme: name -> colour."""
    theme = {name: pair[dark] for name, pair in SURFACE.items()}
    for key in ACCOUNTING:
        style = PARTS[key]
        if style.fill != "unsplit":
            theme[style.fill] = style.dark if dark else style.light
            theme[style.on] = style.on_dark if dark else style.on_light
    return theme
