"""Readers of a run's events: all of them at once, or only those that are new.

A writer may be killed in the middle of a line. A last line without its newline may still be being written, so a
follower leaves it for the next poll; a torn line that others follow is skipped and reported.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from meshmend.errors import FormatError, JobError
from meshmend.telemetry.folder import check_format
from meshmend.telemetry.types import Committed, Event, Skipped, parse

END = 1 << 16
"""Bytes at the end of a ledger that hold its last lines."""

Report = Callable[[str], None]


def _ignore(*_: Any) -> None:
    pass


class Follower:
    """Reads what each writer of a run has added since the last poll; writers may appear at any time."""

    def __init__(self, folder: Path, writer: str = "*", torn: Report = _ignore) -> None:
        if not (folder / "events").is_dir():
            raise JobError(
                f"there is no run in {str(folder)!r}: expected a folder with events in it, such as runs/NAME"
            )
        check_format(folder)
        self._folder, self._writer, self._torn = folder / "events", writer, torn
        self._read: dict[Path, tuple[int, int]] = {}
        """For each file, the bytes and the lines that have been read."""

    def poll(self) -> list[Event]:
        """The new events of all writers, in order of time."""
        paths = sorted(self._folder.glob(f"{self._writer}.jsonl"))
        return sorted((event for path in paths for event in self._new(path)), key=lambda event: event.time)

    def rest(self) -> list[Event]:
        """Events in last lines that lack only their newline; a later poll gives them again."""
        found = []
        for path, (begin, _) in self._read.items():
            with path.open("rb") as file, contextlib.suppress(ValueError, TypeError, KeyError):
                file.seek(begin)
                found.append(parse(json.loads(file.read())))
        return found

    def _new(self, path: Path) -> Iterator[Event]:
        begin, number = self._read.get(path, (0, 0))
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = begin + len(whole), number + whole.count(b"\n")
        for line in whole.split(b"\n")[:-1]:
            number += 1
            if event := self._event(path, number, line.decode(errors="replace")):
                yield event

    def _event(self, path: Path, number: int, line: str) -> Event | None:
        try:
            return parse(json.loads(line)) if line else None
        except (ValueError, TypeError, KeyError) as error:
            if not isinstance(error, json.JSONDecodeError) or not line.startswith("{"):
                raise FormatError(f"{path}, line {number} is not an event ({error!r}): {line[:80]!r}") from None
            self._torn(f"{path}, line {number} is torn (its writer was killed, or the disk was full); skipped")
            return None


def follow(folder: Path, torn: Report = _ignore) -> Follower:
    """Follow a run: each `poll()` of the result gives the events that all its writers have added since the last."""
    return Follower(folder, torn=torn)


def read(folder: Path, writer: str = "*", torn: Report = _ignore) -> list[Event]:
    """All events of a run, or of one writer, in order of time; `torn` is told of each line that was cut short."""
    follower = Follower(folder, writer, torn)
    return sorted([*follower.poll(), *follower.rest()], key=lambda event: event.time)


def steps_done(folder: Path) -> int:
    """How many steps the ledger ends with; only the ends of its files are read, as a ledger may be long."""
    most = 0
    for path in (folder / "events").glob("worker-*.jsonl"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - END))
            lines = file.read().split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                event = parse(json.loads(line))
                most = max(most, event.step + 1 if isinstance(event, Committed | Skipped) else 0)
    return most
