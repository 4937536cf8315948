"""What verbs print: one JSON document, or lines for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dtprof.cli.output import until_reader_leaves

if TYPE_CHECKING:
    from rich.text import Text


def print_json(document: Any) -> None:
    """The document, as JSON's own types."""
    from dtprof.report.document import plain

    with until_reader_leaves():
        sys.stdout.write(json.dumps(plain(document), allow_nan=False, indent=1) + "\n")


def print_lines(render: Callable[[int], Iterable[str | Text]]) -> None:
    """Lines for a terminal of the width that ``render`` is told (40 to 120 cells); texts are wrapped."""
    from rich.console import Console

    from dtprof.report.text_layout import plain, wrap

    console = Console(highlight=False)
    width = max(40, min(console.width, 120))
    with until_reader_leaves():
        for line in render(width):
            for piece in map(plain, wrap(line, width)) if isinstance(line, str) else [line]:
                console.print(piece, soft_wrap=True, markup=False)
