"""Reading several files at once: one that cannot be read does not stop the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dtprof.errors import DtprofError, InputError

# above this many bytes of files, tables stay in the cache until they are asked for
KEEP_BYTES = 64 * 2**20

Progress = Callable[[str, int, int], None]
T = TypeVar("T")


def read_all(
    files: Sequence[Path],
    read: Callable[[Path, bool, bool], T],
    executor: Executor | None,
    use_cache: bool,
    progress: Progress | None,
) -> tuple[list[T], list[tuple[Path, DtprofError]]]:
    """What ``read(file, keep, use_cache)`` returns for each file, and the files that it could not read.

    ``executor``: None for threads, one per core. InputError where a worker dies.
    """
    keep = sum(f.stat().st_size for f in files) <= KEEP_BYTES
    own = executor is None
    workers = max(1, min(len(files), os.cpu_count() or 1))
    pool = executor if executor is not None else ThreadPoolExecutor(workers, thread_name_prefix="dtprof-ingest")
    found: list[T] = []
    failed: list[tuple[Path, DtprofError]] = []
    try:
        futures: list[Future[T]] = [pool.submit(read, f, keep, use_cache) for f in files]
        for done, (file, future) in enumerate(zip(files, futures, strict=True), 1):
            try:
                found.append(future.result())
            except DtprofError as error:
                failed.append((file, error))
            except BrokenExecutor as error:
                raise InputError(
                    f"{file}: the worker that read it died ({error})", "give it more memory or fewer workers"
                ) from error
            if progress:
                progress(file.name, done, len(files))
    finally:
        if own:
            pool.shutdown(cancel_futures=True)
    return found, failed
