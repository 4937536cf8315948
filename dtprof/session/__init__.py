"""The training side: one session per process, which records raw files and never disturbs the loop.

    with dtprof.profile("runs/a") as prof:
        for batch in batches:
            with dtprof.annotate("forward"):
                loss = model(batch)
            ...
            prof.step(loss=loss.item())

What it promises
    Fail open: nothing raised inside dtprof reaches the loop (a signal handler's exception that happens to be raised while
    our code runs does). What failed is switched off, logged once and named in part.json and the manifest; if the folder
    cannot be written at all, training goes on unmeasured after one warning.
    No collective, no barrier, no communication hook is added. Forked children write nothing. No signal handler is
    installed; what waits is written at exit, and a killed process loses about a second of lines.
    Bounded: a capture holds at most MAX_CAPTURED_STEPS steps; each .jsonl file is a ring of CAP_BYTES on disk and 64 KiB
    in memory.

Steps
    Step k lasts from the end of our work at the end of step k-1 to the call of ``step()`` that ends it; our own work lies
    between steps and is recorded as ``own_ns`` of the step before. Steps are numbered from ``first_step``; a capture
    window is given in these numbers and is therefore the same on all ranks.

Files
    RUN/manifest.json       ``dtprof.run.Manifest``, by rank 0, at the start, when something changes, and at the end
    RUN/part00000/part.json ``dtprof.run.Part``; its ``extra`` has run_key, started_ns, ended_ns (null while running or
                            killed), first_step, steps_done, capture [first, end] or null, collectors [{name, state: on |
                            off, facts, failure?, missing?}], failures [{name, hook, step, error}], notes [text],
                            own_cost {fraction, low, high, steps} or null, network, versions, limits
    RUN/part00000/steps.jsonl one line per step: step, host_ts (Unix ns), host_dur (ns), captured (traced as a whole),
                            kind, own_ns, input_ns (waiting for input, where a loader is watched), and tokens,
                            samples, loss where given
    RUN/part00000/metrics.jsonl numbers that the job gave with ``metric``; see ``dtprof.session.metrics``
    The other files belong to the collectors and are described in their modules.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dtprof.protocols import Collector
from dtprof.session import launched
from dtprof.session.anomaly import options_of
from dtprof.session.core import MAX_CAPTURED_STEPS as MAX_CAPTURED_STEPS
from dtprof.session.core import Layout as Layout
from dtprof.session.core import Session as Session
from dtprof.session.core import active as active
from dtprof.session.inputs import loader as loader
from dtprof.session.inputs import timed_input as timed_input
from dtprof.session.marks import Annotation as Annotation
from dtprof.session.marks import annotate as annotate
from dtprof.session.metrics import metric as metric


def profile(
    out: str | os.PathLike[str],
    *,
    capture: str | tuple[int, int] | None = "5:8",
    collectors: Sequence[str | Collector | type[Collector]] | None = None,
    job: str | None = None,
    knobs: Mapping[str, Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    first_step: int = 0,
    mesh: Mapping[str, int] | None = None,
    coordinates: Mapping[int, Mapping[str, int]] | None = None,
    groups: Sequence[Mapping[str, Any]] = (),
    anomaly: bool | Mapping[str, Any] = False,
) -> Session:
    """A session that writes to the run folder ``out`` (one for all ranks): a context manager, or ``start()`` and ``stop()``.

    ``capture`` is a window of step numbers, "5:8" for 5, 6 and 7, or None. ``collectors`` are names, classes or objects;
    None takes all that are installed. ``job`` and ``knobs`` are written to the manifest. ``options`` maps a collector's
    name to its options. ``first_step`` numbers the first step, for a job that resumes. ``mesh`` (axis to size), ``coordinates``
    (rank to axis to index) and ``groups`` ({"name", "ranks", …} each) say in the manifest how the job is laid out.
    ``anomaly`` (True, or a mapping of ``AnomalyOptions``) has all ranks capture a few steps after one that is slower than its
    own history; see ``dtprof.session.anomaly``.
    Under ``dtprof run`` its folder takes the place of ``out``, and its window and collectors, where given, those of the script.
    Raises InputError for a capture window or an anomaly option that is none; nothing after that.
    """
    watch = options_of(anomaly)
    layout = Layout(dict(mesh or {}), {str(r): dict(c) for r, c in (coordinates or {}).items()}, [dict(g) for g in groups])
    own: dict[str, Any] = {"out": out, "capture": capture, "collectors": collectors}
    launched.begun_by_script = True
    asked = launched.plan()
    if asked is not None and asked.measured:
        own = asked.over(own)
    return Session(**own, job=job, knobs=knobs, options=options, first_step=first_step, layout=layout, anomaly=watch)


def step(*, loss: Any = None, tokens: int | None = None, samples: int | None = None, kind: str | None = None) -> None:
    """End the current step of the running session; does nothing where none is running."""
    session = active()
    if session is not None:
        session.step(loss=loss, tokens=tokens, samples=samples, kind=kind)
