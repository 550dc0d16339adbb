"""Makes a full file of events smaller, and keeps everything that it proves.

    worker-0.0003.jsonl          170 bytes per step, written line by line and closed
    .worker-0.0003.jsonl.new     the same events in the same order, 18 bytes per step: a kill leaves it behind, unread
    worker-0.0003.jsonl          replaced as a whole

So every event is in exactly one file at every moment, whichever process is killed when. A writer holds a lock on its
file, and a locked file is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from meshmend.errors import FormatError
from meshmend.telemetry.steps import MOST, Steps, follows, ordinary
from meshmend.telemetry.types import Committed, parse


def compact(path: Path) -> None:
    """Make a file smaller; a file that is being written to, or would not become smaller, stays as it is."""
    fresh = path.with_name(f".{path.name}.new")
    with contextlib.suppress(OSError), path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with fresh.open("wb") as out:
            out.writelines(compacted(file))
            out.flush()
            os.fsync(out.fileno())
        if fresh.stat().st_size < path.stat().st_size:
            os.replace(fresh, path)
    with contextlib.suppress(OSError):
        fresh.unlink(missing_ok=True)


def compacted(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Return the same events in the same order; all but ordinary lines of the ledger stay as they are, to the byte."""
    run: list[Committed] = []
    text: list[bytes] = []
    for line in lines:
        found = _ordinary(line)
        if run and (found is None or len(run) == MOST or not follows(found, run[-1])):
            yield _gathered(run, text)
            run, text = [], []
        if found is None:
            yield line
        else:
            run.append(found)
            text.append(line)
    if run:
        yield _gathered(run, text)


def _ordinary(line: bytes) -> Committed | None:
    with contextlib.suppress(ValueError, RecursionError, FormatError):
        event = parse(json.loads(line)) if line.endswith(b"\n") else None
        if isinstance(event, Committed) and ordinary(event):
            return event
    return None


def _gathered(run: list[Committed], text: list[bytes]) -> bytes:
    whole, one = b"".join(text), (Steps.gather(run).line() + "\n").encode()
    return one if len(one) < len(whole) else whole
