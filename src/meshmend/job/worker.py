"""Runs the user's script as a worker: `python -m meshmend.job.worker SCRIPT ARGS…`.

It is the script as plain `python` would run it, with two additions. An exception is put down for the launcher, which
tells it once for all workers that meet it. And a worker whose launcher and agent are gone for `ORPHAN` seconds ends.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType

from meshmend.base.env import Settings
from meshmend.base.processes import is_alive
from meshmend.errors import MeshmendError, NotFinite
from meshmend.job.shm.segment import Segment
from meshmend.telemetry.events import Log, Raised

ORPHAN = 600.0
"""Seconds that a worker waits for somebody to attach to a run whose launcher was killed."""
LOOK = 0.5
OURS = str(Path(__file__).parent)
HALT = 30.0
"""Seconds that a worker may take until it writes a checkpoint, before it is ended."""


def main(words: list[str]) -> None:
    """Run a script as `__main__`."""
    settings = Settings.begin()
    segment = Segment(settings.run, settings.rank)
    threading.Thread(target=end_with_owner, args=[segment], name="meshmend orphan", daemon=True).start()
    log = Log(settings.folder, f"worker-{settings.rank}")

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if Settings.here() is None:
            sys.__excepthook__(kind, error, trace)  # a fork of this worker
            return
        ours = isinstance(error, MeshmendError)
        text = shown(error)
        last = traceback.format_exception_only(kind, error)[-1].strip()
        # A sum that is not finite is told in a sentence too, but nobody made a mistake in what they asked.
        mistake = ours and not isinstance(error, NotFinite)
        said = (str(error), str(error)) if ours else (last, text)
        segment.write_error(segment["step"], *said, mistake=mistake)
        log.write(Raised(rank=settings.rank, step=segment["step"], error=last, trace=text))

    sys.excepthook = told
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as leaving:
        if Settings.here() is not None:
            segment["left"] = not leaving.code
        raise
    if Settings.here() is not None:
        segment["left"] = 1


def shown(error: BaseException) -> str:
    """An exception and what led to it, as Python tells it, with the user's own frames."""
    found = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException | None] = [found]
    for one in chain:
        if one is not None:
            one.stack = traceback.StackSummary.from_list([f for f in one.stack if not hidden(f.filename)])
            if one.__context__ is not None and all(hidden(f.filename) for f in one.__context__.stack):
                one.__context__ = None  # a StopIteration of our own, while the user's function was called
            chain += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(found.format())


def hidden(file: str) -> bool:
    """Whether a frame says nothing to the user: what lies between their script and their function."""
    return file.startswith((OURS, "<frozen runpy>", runpy.__file__))


def end_with_owner(segment: Segment) -> None:
    """Wait for the owner to be gone for so long that nobody will come back for this worker."""
    gone = 0.0
    while gone < ORPHAN:
        time.sleep(LOOK)
        gone = 0.0 if is_alive(segment["owner"]) else gone + LOOK
        if gone and not segment.path("control").exists():
            break  # somebody has cleaned up after this run
    segment["halt"] = 1  # a worker that can, writes a checkpoint and ends
    segment.ring("worker")
    time.sleep(HALT)
    while segment["saving"]:
        time.sleep(LOOK)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
