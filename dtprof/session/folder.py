"""The part folder of one process: claimed without asking the other ranks, described by part.json at every stage."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from dtprof.run import Manifest, Part
from dtprof.session.identity import Identity

RESERVE_BYTES = 64 << 10
_STALE_S = 60.0
# what other ranks were writing when the disk was full goes away again: pauses before another try
_PAUSES_S = (0.1, 0.4, None)


class PartFolder:
    """``RUN/part00000``: where one process writes.

    64 KiB are held in reserve in a file, and given back before part.json is written for the last time: on a disk that
    has filled up meanwhile, what was lost can still be said.
    """

    def __init__(self, out: Path, who: Identity, key: str, started_ns: int) -> None:
        # a job may change its working directory while it runs
        out = out.absolute()
        self.out, self.key, self.started_ns = out, key, started_ns
        out.mkdir(parents=True, exist_ok=True)
        self.ordinal, self.window = self._claim(who)
        self.path = out / f"part{self.ordinal:05d}"
        self._reserve = self.path / ".reserve"
        self._reserve.write_bytes(os.urandom(RESERVE_BYTES))

    def _claim(self, who: Identity) -> tuple[int, int]:
        """Make the folder: attempt x world size + rank, or the next free number where that one is taken by a live process."""
        ordinal = who.attempt * who.world_size + who.rank
        spare = (who.attempt + 1) * who.world_size
        window = 0
        while True:
            path = self.out / f"part{ordinal:05d}"
            try:
                path.mkdir()
                return ordinal, window
            except FileExistsError:
                owner = describe(path)
                if self._abandoned(path, owner, who):
                    self._set_aside(path)
                    continue
                if owner is not None and owner.pid == who.pid and owner.host == who.host:
                    window += 1
                ordinal, spare = spare, spare + 1

    def _abandoned(self, path: Path, owner: Part | None, who: Identity) -> bool:
        """Is this what an earlier run left? (No part.json for a minute, another run's key and a process that is gone.)"""
        if owner is None:
            return time.time() - path.stat().st_mtime > _STALE_S
        if owner.extra.get("run_key") == self.key or (owner.pid == who.pid and owner.host == who.host):
            return False
        return owner.extra.get("ended_ns") is not None or not _alive(owner, who)

    def _set_aside(self, path: Path) -> None:
        aside = self.out / "previous"
        aside.mkdir(exist_ok=True)
        os.replace(path, aside / f"{path.name}-{path.stat().st_mtime_ns}")

    def set_others_aside(self, who: Identity) -> None:
        """Rank 0: move what an earlier, finished run left in the same folder to ``previous/``."""
        for path in sorted(self.out.glob("part[0-9]*")):
            owner = describe(path)
            if path != self.path and owner is not None and self._abandoned(path, owner, who):
                self._set_aside(path)

    def release_reserve(self) -> None:
        """Give the reserved bytes back to the file system."""
        self._reserve.unlink(missing_ok=True)

    def write_part(self, part: Part, *, patient: bool = False) -> None:
        """Write part.json whole or not at all; ``patient``: wait a little for room on a full disk."""
        _replace(self.path / "part.json", part, patient)

    def write_manifest(self, manifest: Manifest, *, patient: bool = False) -> None:
        """Write RUN/manifest.json whole or not at all; ``patient`` as above."""
        _replace(self.out / "manifest.json", manifest, patient)


def _replace(path: Path, value: msgspec.Struct, patient: bool) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    data = msgspec.json.format(msgspec.json.encode(value), indent=1)
    for pause_s in _PAUSES_S if patient else (None,):
        try:
            temporary.write_bytes(data)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if pause_s is None or error.errno != errno.ENOSPC:
                raise
            time.sleep(pause_s)
        else:
            os.replace(temporary, path)
            return


def describe(path: Path) -> Part | None:
    """The part.json of a part folder, or None where there is none that can be read."""
    try:
        return msgspec.json.decode((path / "part.json").read_bytes(), type=Part)
    except (OSError, msgspec.MsgspecError):
        return None


def _alive(owner: Part, who: Identity) -> bool:
    if owner.host != who.host or owner.pid is None:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def to_plain(value: Any) -> Any:
    """A value that JSON can hold: what is none of its types is written as text."""
    return json.loads(json.dumps(value, default=str))
