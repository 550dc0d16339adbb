"""Runs the user's script as a worker: `python -P -m meshmend.job.worker SCRIPT ARGS…`.

The script runs as plain `python` would run it, with some additions. An exception is recorded for the launcher, which
prints it once for all workers that raise it. A worker whose agent has been gone for `ORPHAN` seconds exits. Signals
that reach every process of a run do not kill it (`signals.py`), nor does a disk without room for its output.
"""

from __future__ import annotations

import errno
import faulthandler
import io
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from meshmend.base.clocks import ORPHAN, OWNER_POLL
from meshmend.base.env import Settings
from meshmend.errors import DeviceError, MeshmendError, NotFinite
from meshmend.job.device.block_layout import layout_for
from meshmend.job.device.failures import device_failure
from meshmend.job.shm.segment import WorkerSegment, open_as_worker
from meshmend.job.signals import SHOW_STACK, WorkerSignals, halt_alone
from meshmend.telemetry import PASSING, Log, Raised

OURS = str(Path(__file__).parent)
LEDGER = str(Path(__file__).parents[1] / "telemetry")


def main(words: list[str]) -> None:
    """Run a script as `__main__`."""
    settings = Settings.begin()
    segment = open_as_worker(settings.run, settings.rank)
    forgiving_output()
    faulthandler.register(SHOW_STACK, file=2, all_threads=False)
    WorkerSignals(segment)
    threading.Thread(target=end_with_owner, args=[segment], name="meshmend orphan", daemon=True).start()

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if Settings.here() is None:
            sys.__excepthook__(kind, error, trace)  # a fork of this worker
            return
        ours = isinstance(error, MeshmendError)
        text = shown(error)
        last = traceback.format_exception_only(kind, error)[-1].strip()
        # A sum that is not finite or a failed device is reported in one sentence too, but it is not a mistake in what
        # the user asked for.
        mistake = ours and not isinstance(error, (NotFinite, DeviceError))
        said = (f"{error}{place(trace)}", str(error)) if ours else (last, text)
        failure = device_failure(error, held(segment))
        if failure is not None:
            said = failure, f"{text}{failure}\n"
        segment.files.write_error(segment.worker.step, *said, mistake=mistake)
        raised = Raised(epoch=segment.epoch, rank=settings.rank, step=segment.worker.step, error=last, trace=text)
        Log(settings.folder, f"worker-{settings.rank}").write(raised)  # after the job's own: it may be in a later file

    sys.excepthook = told
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))  # as python does; -P left the working directory out
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as leaving:
        if Settings.here() is not None:
            segment.worker.finished = not leaving.code
        raise
    if Settings.here() is not None:
        segment.worker.finished = True


def held(segment: WorkerSegment) -> int:
    """Bytes of device memory that this worker's own part and totals take."""
    if not segment.worker.device:
        return 0
    wire = segment.buffers.wire
    return layout_for(wire, wire.size, segment.agent.ranks).nbytes


def shown(error: BaseException) -> str:
    """Format an exception and its causes as Python does, with only the user's own frames."""
    found = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException | None] = [found]
    for one in chain:
        if one is not None:
            one.stack = traceback.StackSummary.from_list([f for f in one.stack if not hidden(f.filename)])
            if one.__context__ is not None and all(hidden(f.filename) for f in one.__context__.stack):
                one.__context__ = None  # a StopIteration of our own, while the user's function was called
            chain += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(found.format())


def place(trace: TracebackType | None) -> str:
    """The line of the user's code that an exception came from."""
    frames = [frame for frame in traceback.extract_tb(trace) if not hidden(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def hidden(file: str) -> bool:
    """Whether a frame means nothing to the user: it is between their script and their function."""
    return file.startswith((OURS, LEDGER, "<frozen runpy>", runpy.__file__))


def end_with_owner(segment: WorkerSegment) -> None:
    """Wait until the owner has been gone for so long that no agent will take this worker over, then end it."""
    gone = 0.0
    while gone < ORPHAN:
        time.sleep(OWNER_POLL)
        gone = 0.0 if segment.agent.owner.alive else gone + OWNER_POLL
        if gone and not segment.files.path("control").exists():
            break  # the run has been cleaned up
    halt_alone(segment)


class Output(io.FileIO):
    """A worker's output: where it cannot be written, it is lost, and the script continues."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in PASSING | {errno.EFBIG}:
                raise
            return memoryview(data).nbytes


def forgiving_output() -> None:
    """Have `print` never end a worker for want of room on the disk."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        if isinstance(before, io.TextIOWrapper):
            raw = Output(number, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, before.encoding, before.errors, write_through=True))


if __name__ == "__main__":
    main(sys.argv[1:])
