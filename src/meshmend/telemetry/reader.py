"""Readers of a run's events: all of them at once, one after another, or only those that are new.

A writer may be killed in the middle of a line. A last line without its newline may still be being written, so a
follower leaves it for the next poll; a torn line that others follow is skipped and reported. Any other line that holds
no event is an error, as what it held may be missing from the proof; readers that show a run, and do not judge it, give
`damaged`, and then such a line costs itself only.

No clock is trusted more than necessary: clocks are set back, and those of two hosts differ. The events of one writer
stay in the order in which they were written, and attempts stay in order; only the events of different writers in one
attempt are ordered by their times.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from meshmend.errors import FormatError, JobError
from meshmend.telemetry.folder import check_format, opened, segments
from meshmend.telemetry.steps import Steps, spread
from meshmend.telemetry.types import Committed, Event, Opened, Skipped, parse

END = 1 << 16
"""Bytes at the end of a file of the ledger that hold its last lines."""

Report = Callable[[str], None]


def _ignore(*_: Any) -> None:
    pass


@dataclass
class ReadPosition:
    """How far the files of one writer have been read."""

    number: int = 0
    """The file that is being read."""
    node: int = 0
    """Identify the file that has this name: a compacted one is a different file with the same events."""
    begin: int = 0
    """Bytes of it that have been read."""
    lines: int = 0
    events: int = 0
    """Events that these lines hold."""


class Follower:
    """Reads what each writer of a run has added since the last poll; writers may appear at any time."""

    def __init__(
        self, folder: Path, writer: str = "*", torn: Report = _ignore, *, damaged: Report | None = None
    ) -> None:
        require_run(folder)
        self._folder, self._writer, self._torn, self._damaged = folder, writer, torn, damaged
        self._places: dict[str, ReadPosition] = {}

    def poll(self) -> list[Event]:
        """The new events of all writers, in order."""
        return in_order(map(spread, self._writers()))

    def stream(self) -> Iterator[Event]:
        """The same one after another, with `Steps` as they are: weeks of a run are never all in memory.

        Read it to its end before the next poll.
        """
        return merged(self._writers())

    def _writers(self) -> Iterator[Iterator[Event]]:
        for name, paths in segments(self._folder, self._writer).items():
            yield self._new(paths, self._places.setdefault(name, ReadPosition()))

    def _new(self, paths: list[tuple[int, Path]], place: ReadPosition) -> Iterator[Event]:
        for number, path in paths:
            if number < place.number:
                continue
            if number > place.number:
                place.number, place.node, place.begin, place.lines, place.events = number, 0, 0, 0, 0
            reading = reading_of(path, self._damaged)
            if reading is None:
                continue
            with reading as file:
                node = os.fstat(file.fileno()).st_ino
                known = 0
                if place.node not in (0, node):  # made smaller: the same events, in fewer lines
                    known, place.begin, place.lines, place.events = place.events, 0, 0, 0
                place.node = node
                file.seek(place.begin)
                yield from _after_first(known, self._events(file, path, place, closed=number < paths[-1][0]))

    def _events(self, file: Iterable[bytes], path: Path, place: ReadPosition, *, closed: bool) -> Iterator[Event]:
        for line in file:
            if not line.endswith(b"\n") and not closed:
                return
            place.begin += len(line)
            place.lines += 1
            event = tolerant(line, path, place.lines, self._torn, self._damaged)
            if event is not None:
                place.events += event.count if isinstance(event, Steps) else 1
                yield event


def follow(folder: Path, torn: Report = _ignore, damaged: Report | None = None) -> Follower:
    """Follow a run: each `poll()` of the result gives the events that all its writers have added since the last."""
    return Follower(folder, torn=torn, damaged=damaged)


def _after_first(known: int, events: Iterable[Event]) -> Iterator[Event]:
    """All but the first so many events; a `Steps` counts as the lines that it stands for."""
    for event in events:
        count = event.count if isinstance(event, Steps) else 1
        if known <= 0:
            yield event
        elif isinstance(event, Steps) and known < count:
            yield from islice(event.lines(), known, None)
        known -= count


@dataclass(frozen=True)
class Events:
    """The events of a run, or of one writer, as often as they are wanted and never all in memory.

    They come writer by writer, with `Steps` as they are. A last line without its newline is read if it is whole.
    """

    folder: Path
    writer: str = "*"
    torn: Report = _ignore
    damaged: Report | None = None
    _told: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[Event]:
        require_run(self.folder)
        for paths in segments(self.folder, self.writer).values():
            yield from self._of(paths)

    def _of(self, paths: list[tuple[int, Path]]) -> Iterator[Event]:
        for number, path in paths:
            last = number == paths[-1][0]
            reading = reading_of(path, self.damaged)
            if reading is None:
                continue
            with reading as file:
                for at, line in enumerate(file, 1):
                    open_end = last and not line.endswith(b"\n")  # it may still be being written
                    event = tolerant(line, path, at, self._tell, self.damaged, open_end=open_end)
                    if event is not None:
                        yield event

    def in_order(self) -> list[Event]:
        """All of them, with a line for each step."""
        require_run(self.folder)
        return in_order([*spread(self._of(paths))] for paths in segments(self.folder, self.writer).values())

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.torn(text)


def read(folder: Path, writer: str = "*", torn: Report = _ignore) -> list[Event]:
    """Return all events of a run, or of one writer, in order; `torn` is called for each line that was cut short."""
    return Events(folder, writer, torn).in_order()


def in_order(writers: Iterable[Iterable[Event]]) -> list[Event]:
    """The events of several writers, each in its own order, as one sequence."""
    return [*merged(writers)]


def merged(writers: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """The same one after another."""
    return (event for _, event in heapq.merge(*map(_keyed, writers), key=lambda pair: pair[0]))


def _keyed(events: Iterable[Event]) -> Iterator[tuple[tuple[int, float], Event]]:
    """With a key that never falls, whatever the writer's clock did."""
    last = (0, float("-inf"))
    for event in events:
        attempt = max(last[0], event.epoch.attempt)
        last = attempt, max(last[1], event.time) if attempt == last[0] else event.time
        yield last, event


def require_run(folder: Path) -> None:
    """Refuse a folder that holds no events, or events of another version."""
    if not (folder / "events").is_dir():
        raise JobError(f"there is no run in {str(folder)!r}: expected a folder with events in it, such as runs/NAME")
    check_format(folder)


def reading_of(path: Path, damaged: Report | None) -> BinaryIO | None:
    """Open a file of events; one that cannot be read is reported to `damaged`, if that is given, and left out."""
    try:
        return opened(path)
    except FormatError as error:
        if damaged is None:
            raise
        damaged(str(error))
        return None


def tolerant(
    line: bytes, path: Path, number: int, torn: Report, damaged: Report | None, *, open_end: bool = False
) -> Event | None:
    """Return the event in a line; what holds none is reported to `damaged`, if that is given, and left out."""
    try:
        return event_of(line, path, number, torn, open_end=open_end)
    except FormatError as error:
        if damaged is None:
            raise
        damaged(str(error))
        return None


def event_of(line: bytes, path: Path, number: int, torn: Report, *, open_end: bool = False) -> Event | None:
    """Return the event in a line of a file; None if its writer was killed in it, or has not finished it yet."""
    text = line.rstrip(b"\n").decode(errors="replace")
    if not text:
        return None
    try:
        return parse(json.loads(text))
    except json.JSONDecodeError as error:
        if open_end:
            return None
        if text.startswith("{") or not text.strip("\0"):
            torn(f"{path}, line {number} is torn (its writer was killed, or the disk was full); skipped")
            return None
        why: object = error
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:  # also FormatError, and numbers of thousands of digits
        why = error
    raise FormatError(
        f"{path}, line {number} is not an event ({why}): restore the file, or delete that line: {text[:80]!r}"
    )


def steps_done(folder: Path) -> int:
    """How many steps the last attempt ends with, in its last job; only the ends of files are read."""
    began = (event.epoch.attempt for paths in segments(folder, "launcher").values() for event in _lines(paths))
    attempt, most = max(began, default=0), (0, 0)  # with the world: where there are several jobs, the last one's
    for paths in segments(folder, "worker-*").values():
        for _, path in reversed(paths):
            ends = [(event.epoch, after) for event in _ends(path) if (after := _after(event)) is not None]
            most = max([most, *((own.world, after) for own, after in ends if own.attempt == attempt)])
            if ends:
                break
    return most[1]


def _lines(paths: list[tuple[int, Path]]) -> Iterator[Event]:
    for _, path in paths:
        with contextlib.suppress(FormatError), opened(path) as file:
            yield from _readable(file, path)


def _ends(path: Path) -> Iterator[Event]:
    """The events in the last lines of a file."""
    with contextlib.suppress(FormatError), opened(path) as file:
        if file.seek(max(0, path.stat().st_size - END)):
            file.readline()  # it may be cut
        yield from _readable(file, path)


def _readable(file: Iterable[bytes], path: Path) -> Iterator[Event]:
    """The events in these lines, without what is damaged."""
    for number, line in enumerate(file, 1):
        with contextlib.suppress(FormatError):
            if (event := event_of(line, path, number, _ignore)) is not None:
                yield event


def _after(event: Event) -> int | None:
    """The step that comes after an event of the ledger."""
    match event:
        case Committed() | Skipped():
            return event.step + 1
        case Steps():
            return event.end
        case Opened():
            return event.step
        case _:
            return None
