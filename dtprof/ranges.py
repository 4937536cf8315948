"""Names of annotated ranges: ``base`` followed by ``#key=value`` tags, in one text that every tracer carries.

``forward#microbatch=2#layer=blocks.0`` is the range ``forward`` of micro-batch 2 in layer ``blocks.0``. Tags come in
the order of TAGS, unknown keys are no tags but part of the base, and ``%`` and ``#`` inside a value are written
``%25`` and ``%23``. A name without tags is itself; ``ProfilerStep#5`` stays what it is, for ``5`` has no key.
"""

from __future__ import annotations

from collections.abc import Mapping

INT_TAGS = ("step", "microbatch", "stage", "bucket", "expert")
TEXT_TAGS = ("phase", "layer")
TAGS = ("step", "phase", "microbatch", "stage", "layer", "bucket", "expert")


def format_range(base: str, tags: Mapping[str, int | str | None]) -> str:
    """The text form; tags whose value is None are left out."""
    parts = [base]
    for key in TAGS:
        value = tags.get(key)
        if value is not None:
            parts.append(f"{key}={_escape(str(value))}")
    return "#".join(parts)


def parse_range(name: str) -> tuple[str, dict[str, int | str]]:
    """Split a range's name into its base and its tags: the inverse of ``format_range``, and total on any text."""
    base, tags = name, dict[str, int | str]()
    while "#" in base:
        rest, _, last = base.rpartition("#")
        key, equals, text = last.partition("=")
        if not equals or not rest or key in tags or not _valid(key, text):
            break
        tags[key] = int(text) if key in INT_TAGS else _unescape(text)
        base = rest
    return base, {key: tags[key] for key in TAGS if key in tags}


def _valid(key: str, text: str) -> bool:
    if key in INT_TAGS:
        digits = text.removeprefix("-")
        return digits.isascii() and digits.isdigit() and len(digits) <= 18
    return key in TEXT_TAGS


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("#", "%23")


def _unescape(text: str) -> str:
    return text.replace("%23", "#").replace("%25", "%")
