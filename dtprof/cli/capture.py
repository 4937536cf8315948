"""``dtprof capture RUN``: have a live run captured now, the same steps on all ranks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dtprof.errors import InputError
from dtprof.session.asking import Answer, Live, answers, ask, live_parts
from dtprof.session.windows import MAX_CAPTURED_STEPS, Request

LOOK_S = 0.2
PATIENCE_S = 60.0


class CaptureCommand:
    """The verb ``capture``."""

    name = "capture"
    summary = "Have a live run captured now: the same steps on all ranks. Exits 0 when all did, 2 when some did not."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("run", metavar="RUN", help="the folder that the running job writes to")
        parser.add_argument("--steps", type=int, default=3, metavar="N", help="how many steps (3)")
        parser.add_argument(
            "--at", type=int, metavar="STEP", help="the first of them; without it, the next that all ranks can reach"
        )
        parser.add_argument(
            "--lead", type=float, default=2.0, metavar="S", help="seconds in which every rank will have seen the request (2)"
        )
        parser.add_argument(
            "--timeout",
            type=float,
            metavar="S",
            help="give up waiting after that many seconds (as long as it should take, and a minute)",
        )
        parser.add_argument("--no-wait", action="store_true", help="ask, and do not wait for the traces")

    def run(self, args: argparse.Namespace) -> int:
        """Ask, wait, say what came."""
        if not 1 <= args.steps <= MAX_CAPTURED_STEPS:
            raise InputError(f"--steps {args.steps}: not from 1 to {MAX_CAPTURED_STEPS}", "three are enough for most questions")
        if args.lead < 0 or (args.timeout is not None and args.timeout < 0):
            raise InputError("--lead and --timeout are seconds, 0 or more", "leave them out for the defaults")
        run = Path(args.run)
        live = _wait_for_live(run, PATIENCE_S if args.timeout is None else args.timeout)
        request = ask(run, live, args.steps, args.lead, args.at)
        _say(_announcement(request, live))
        took = (request.end - min(one.step for one in live)) * max(one.step_ns for one in live) / 1e9
        patience = took * 2 + PATIENCE_S if args.timeout is None else args.timeout
        found = answers(live, request) if args.no_wait else _wait(live, request, patience)
        whole = all(answer.whole for answer in found)
        if args.json:
            document = {"id": request.id, "first": request.first, "end": request.end, "whole": whole}
            rows = [{**asdict(answer), "whole": answer.whole} for answer in found]
            sys.stdout.write(json.dumps({**document, "ranks": rows}, indent=1) + "\n")
        else:
            sys.stdout.write("".join(f"{_sentence(answer, request)}\n" for answer in found))
            if whole:
                sys.stdout.write(f"see them with: dtprof report {run}\n")
        return 0 if whole or args.no_wait else 2


def _wait_for_live(run: Path, patience_s: float) -> list[Live]:
    """The processes that train now; a run that has just begun is waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        live = live_parts(run)
        if live:
            return live
        if not any(_begins(path) for path in run.glob("part*/part.json")) or time.monotonic() > deadline:
            raise InputError(
                f"{run}: no process of it is training", "a capture needs a live run; dtprof report reads one that has ended"
            )
        time.sleep(LOOK_S)


def _begins(path: Path) -> bool:
    """Does this part.json say that its process has begun and not ended?"""
    try:
        return json.loads(path.read_bytes())["extra"].get("ended_ns", 0) is None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _wait(live: list[Live], request: Request, patience_s: float) -> list[Answer]:
    deadline = time.monotonic() + patience_s
    while True:
        found = answers(live, request)
        if all(answer.settled for answer in found) or time.monotonic() > deadline:
            return found
        time.sleep(LOOK_S)


def _announcement(request: Request, live: list[Live]) -> str:
    last = request.end - 1
    steps = f"step {last}" if last == request.first else f"steps {request.first} to {last}"
    text = f"asked {len(live)} rank{'s' * (len(live) != 1)} for {steps}; step {max(one.step for one in live)} is under way"
    world = max((one.part.world_size or 0 for one in live), default=0)
    return text + (f". {len(live)} of {world} ranks write to this folder" if world > len(live) else "")


def _sentence(answer: Answer, request: Request) -> str:
    who = f"rank {answer.rank}" if answer.rank is not None else answer.part
    what = {
        "done": f"steps {request.first}:{request.end} captured",
        "partial": "captured in part",
        "missed": "captured nothing",
        "refused": "refused",
        "gone": "ended before it was captured",
        "unseen": "has not seen the request yet",
    }.get(answer.state, "not done yet")
    where = f": {answer.file} ({answer.bytes:,} bytes)" if answer.file else ""
    return f"{who}: {what}{where}" + (f" ({answer.reason})" if answer.reason else "")


def _say(text: str) -> None:
    sys.stderr.write(f"dtprof: {text}\n")
