"""``dtprof plugins``: everything that is installed, from where, and what is broken."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dtprof.cli.parser import BUILT_IN
from dtprof.plugins import GROUPS, Plugin, loaded


class PluginsCommand:
    """The verb ``plugins``."""

    name = "plugins"
    summary = "What is installed, from where, and what is broken."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """No arguments of its own."""

    def run(self, args: argparse.Namespace) -> int:
        """List; a broken plugin is shown with its error and is no error of ours."""
        rows = [*built_in(), *(plugin for group in GROUPS for plugin in loaded(group))]
        if args.json:
            sys.stdout.write(json.dumps({"plugins": [_document(p) for p in rows]}, indent=1) + "\n")
        else:
            _print(rows)
        return 0


def built_in() -> list[Plugin]:
    """What dtprof itself brings, in the form of plugins."""
    from dtprof import __version__
    from dtprof.advise.rules import RULES
    from dtprof.analyse import ANALYSES
    from dtprof.export import EXPORTERS
    from dtprof.ingest import READERS

    def one(group: str, name: str, thing: Any) -> Plugin:
        kind = thing if hasattr(thing, "__qualname__") else type(thing)
        return Plugin(group, name, "dtprof", __version__, f"{kind.__module__}:{kind.__qualname__}", thing)

    return [
        *(one("readers", reader.name, reader) for reader in READERS),
        *(one("analyses", name, analysis) for name, analysis in ANALYSES.items()),
        *(one("rules", rule.id, rule) for rule in RULES),
        *(one("exporters", exporter.name, exporter) for exporter in EXPORTERS),
        *(Plugin("commands", name, "dtprof", __version__, target, target) for name, (target, _) in BUILT_IN.items()),
    ]


def _document(plugin: Plugin) -> dict[str, Any]:
    fields = {key: value for key, value in asdict_shallow(plugin).items() if key != "value"}
    return {**fields, "error": plugin.error or None, "ok": not plugin.error}


def asdict_shallow(plugin: Plugin) -> dict[str, Any]:
    """The fields of a plugin, values untouched."""
    return {name: getattr(plugin, name) for name in plugin.__dataclass_fields__}


def _print(rows: list[Plugin]) -> None:
    from rich.console import Console

    from dtprof.report.text_layout import Column, table

    console = Console(highlight=False)
    for group in GROUPS:
        mine = [p for p in rows if p.group == group]
        console.print(f"[bold]{group}[/bold]")
        if not mine:
            console.print("  none installed", style="dim")
            continue
        columns = [
            Column("  name", [f"  {p.name}" for p in mine], right=False),
            Column("from", [f"{p.package} {p.version}" for p in mine], right=False),
            Column(
                "what",
                [f"broken: {' '.join(p.error.split())}" if p.error else p.target for p in mine],
                right=False,
                flexible=True,
            ),
        ]
        for line, plugin in zip(table(columns, console.width), [None, *mine], strict=True):
            console.print(line, style="red" if plugin and plugin.error else "", soft_wrap=True)
