"""What ``dtprof run`` tells the processes of a job, through one environment variable, and what they tell back.

A session that the script itself begins follows it: the folder of ``dtprof run`` counts, and its window and collectors
where they were given. ``facts`` is what this process knows of how it is measured; it goes into part.json and, from
rank 0, into the manifest. ``begun_by_script`` is True once the script has called ``dtprof.profile``.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dtprof.session.guard import caught
from dtprof.session.identity import process_group, run_key

VARIABLE = "DTPROF_LAUNCH"
MARKED, INFERRED = "marked by the script", "inferred from optimizer steps"
RUN_ID_FILE = ".run_id"
_STORE_KEY = "dtprof/run_id"

facts: dict[str, Any] = {}
begun_by_script = False


@dataclass(frozen=True)
class Plan:
    """One measured launch. ``capture`` and ``collectors`` override a script's own where ``given`` names them.

    ``out`` is an absolute path; ``notes`` a folder on the launching machine, or ""; ``edits`` maps key to value;
    ``anomaly`` captures after a slow step; ``command`` is what ``dtprof run`` was given.
    """

    out: str
    run_id: str
    capture: str | None = "5:8"
    collectors: list[str] | None = None
    edits: dict[str, Any] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)
    notes: str = ""
    measured: bool = True
    anomaly: bool = False
    command: list[str] = field(default_factory=list)

    def over(self, own: dict[str, Any]) -> dict[str, Any]:
        """A script's own ``out``, ``capture`` and ``collectors`` with what ``dtprof run`` was told in their place."""
        asked = {"capture": self.capture, "collectors": self.collectors}
        return {**own, "out": self.out, **{key: asked[key] for key in self.given if key in asked}}

    def to_text(self) -> str:
        """The value of the environment variable."""
        return json.dumps(asdict(self))


def plan() -> Plan | None:
    """The plan under which this process runs; None where it was not started by ``dtprof run``, or the text is damaged."""
    known = {f.name for f in fields(Plan)}
    try:
        told = json.loads(os.environ[VARIABLE])
        # another version of dtprof may have written it
        return Plan(**{key: value for key, value in told.items() if key in known})
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def knobs() -> dict[str, Any]:
    """``facts`` for the manifest, where there are any."""
    return {"launch": dict(facts)} if facts else {}


def new_run_id() -> str:
    """A text that no other run has."""
    return uuid.uuid4().hex[:12]


def agree_on_run_id(asked: Plan) -> None:
    """Put the run's id where ``run_key`` finds it: the one that the first rank to come here left in the job's own store.

    One request to a store that the job has opened anyway, and no collective: nobody waits for another rank. Several
    nodes without a common disk, each with its own ``dtprof run``, so come to one id. It is kept in the folder, which
    tells the launcher that a process was here, and later attempts which id to take. Before there is a process group,
    ranks of other nodes are asked for nothing: what the launcher's variables say is then the id (see ``run_key``).
    """
    kept = os.path.join(asked.out, RUN_ID_FILE)
    if not os.environ.get("DTPROF_RUN_ID"):
        agreed = _agreed(asked, kept)
        if agreed:
            os.environ["DTPROF_RUN_ID"] = agreed
    try:
        os.makedirs(asked.out, exist_ok=True)
        with open(kept, "w", encoding="utf-8") as file:
            file.write(run_key())
    except OSError:
        return


def _agreed(asked: Plan, kept: str) -> str:
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    agreed = (_read(kept) if restarted else "") or asked.run_id
    dist = process_group()
    if dist is None:
        elsewhere = os.environ.get("WORLD_SIZE", "1") != os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))
        return "" if elsewhere else agreed
    if dist.get_world_size() > 1:
        answers: list[str] = []
        # a store of anybody's making
        error = caught(lambda: answers.append(_first_comer(dist, agreed)))
        if error is not None:
            facts["run_id"] = f"not agreed with other nodes ({type(error).__name__}: {error})"
        return answers[0] if answers and answers[0] else agreed
    return agreed


def _first_comer(dist: Any, mine: str) -> str:
    """The run id of whoever came first to the job's store."""
    store = dist.distributed_c10d._get_default_store()
    return str(store.compare_set(_STORE_KEY, "", mine).decode())


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(100).strip()
    except OSError:
        return ""


def tell(what: str, text: str = "") -> None:
    """Leave a line for the launcher in its folder of notes, if this is its machine. Never raises."""
    asked = plan()
    if asked is None or not asked.notes:
        return
    try:
        with open(os.path.join(asked.notes, f"{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, "text": text}) + "\n")
    except OSError:
        return


def told_of(edit: object) -> dict[str, Any]:
    """The facts of one edit, to be added to: ``applied_to`` counts objects; target, before, failed where there is such."""
    edits: dict[str, dict[str, Any]] = facts.setdefault("edits", {})
    return edits.setdefault(str(edit), {"applied_to": 0})


def edit_failed(edit: object, name: str, why: Exception | str) -> None:
    """An edit could not be applied to an object of that name; the script's own stands."""
    why = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    told_of(edit)["failed"] = f"{name}: {why}"
    tell("edit failed", f"{edit}: {name} refused it ({why})")
