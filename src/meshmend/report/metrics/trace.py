"""A run as a trace that ui.perfetto.dev and chrome://tracing open: steps and repairs of all processes on one time line.

    worker 0 ── steps    │ 417 │ 418 ............... │ 419 │
             └─ repairs        │ shrink │ recompute │
    launcher                   ▼ worker 2 SIGKILL        ▼ world 2 entered

The file is JSON in Chrome's trace event format. Events are read and written one after another, so the length of a run
costs no memory; a step of a worker takes about 150 bytes, so choose some steps of a long run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshmend.report.incidents import PHASES
from meshmend.report.sentences import sentence
from meshmend.telemetry import Began, Committed, Event, Opened, Repaired, Saved, Skipped, Started, Steps

LAUNCHER = 0
"""The process number of what no worker wrote; worker r is process r + 1."""
STEPS, REPAIRS, CHECKPOINTS = 1, 2, 3
TRACKS = {STEPS: "steps", REPAIRS: "repairs", CHECKPOINTS: "checkpoints"}

Slice = dict[str, Any]


@dataclass
class Trace:
    """Turns events into slices; the events of one writer must come in their order."""

    begin: float
    """The zero of the trace, in seconds since 1970."""
    first: int = 0
    last: int = 1 << 62
    """The steps that are wanted: from the first, and before the last."""
    _steps: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    """The last step of each (rank, attempt), and when it ended."""
    _ends: dict[tuple[int, int], float] = field(default_factory=dict)
    """When the last slice of each track ended: slices of a track never overlap."""
    _hosts: dict[int, str] = field(default_factory=dict)

    def of(self, event: Event) -> Iterator[Slice]:
        """The slices that an event makes."""
        match event:
            case Committed() | Skipped():
                yield from self._step(event)
            case Steps():
                for line in event.lines():
                    yield from self._step(line)
            case Repaired():
                yield from self._repair(event)
            case Saved():
                name = f"checkpoint before step {event.step}"
                yield from self._slice(LAUNCHER, CHECKPOINTS, name, event.time - event.seconds, event.seconds,
                                       {"bytes": event.nbytes, "path": event.path})  # fmt: skip
            case _:
                if isinstance(event, Started) and event.host:
                    self._hosts[event.rank] = event.host
                if not isinstance(event, Opened | Started):
                    yield {"ph": "i", "s": "g", "pid": LAUNCHER, "tid": STEPS, "ts": self._at(event.time),
                           "name": sentence(event), "args": {"epoch": str(event.epoch)}}  # fmt: skip

    def names(self, ranks: Iterable[int]) -> Iterator[Slice]:
        """The names of processes and tracks."""
        processes = {LAUNCHER: "launcher"}
        for rank in sorted(ranks):
            host = f" on {self._hosts[rank]}" if rank in self._hosts else ""
            processes[rank + 1] = f"worker {rank}{host}"
        for order, (process, name) in enumerate(processes.items()):
            yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
            yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": order}}
            for track, title in TRACKS.items():
                yield {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": title}}

    def _step(self, event: Committed | Skipped) -> Iterator[Slice]:
        key = event.rank, event.epoch.attempt
        before, since = self._steps.get(key, (-2, 0.0))
        self._steps[key] = event.step, event.time
        if before != event.step - 1 or not self.first <= event.step < self.last:
            return  # when it began is not known, or it is not wanted
        lanes = sum(count for rank, count in event.by if rank == event.rank)
        about: dict[str, Any] = {"epoch": str(event.epoch), "lanes": lanes}
        if isinstance(event, Committed):
            about |= {"digest": event.digest, "input stall ms": round(1e3 * event.stall, 3), **event.metrics}
        name = f"step {event.step}" + (" skipped" if isinstance(event, Skipped) else "")
        yield from self._slice(event.rank + 1, STEPS, name, since, event.time - since, about)

    def _repair(self, event: Repaired) -> Iterator[Slice]:
        whole = sum(event.times.values())
        about = {"was": str(event.was), "epoch": str(event.epoch), "active": event.active}
        begin = event.noticed
        made = [*self._slice(event.rank + 1, REPAIRS, f"repair {event.epoch}", begin, whole, about)]
        yield from made
        at, end = made[0]["ts"], made[0]["ts"] + made[0]["dur"]
        for name in (*PHASES, *sorted({*event.times} - {*PHASES})):
            if name in event.times:
                long = min(round(1e6 * event.times[name], 3), round(end - at, 3))
                yield {"ph": "X", "pid": event.rank + 1, "tid": REPAIRS, "name": name, "ts": at, "dur": long}
                at = round(at + long, 3)

    def _slice(
        self, process: int, track: int, name: str, begin: float, long: float, about: dict[str, Any]
    ) -> Iterator[Slice]:
        at = max(self._at(begin), self._ends.get((process, track), 0.0))
        end = max(at, self._at(begin + long))
        self._ends[process, track] = end
        yield {
            "ph": "X",
            "pid": process,
            "tid": track,
            "name": name,
            "ts": at,
            "dur": round(end - at, 3),
            "args": about,
        }

    def _at(self, time: float) -> float:
        return max(0.0, round(1e6 * (time - self.begin), 3))


def write_trace(events: Iterable[Event], path: str | Path, first: int = 0, last: int = 1 << 62) -> int:
    """Write the trace of a run, whose events may be read twice; return how many slices it has."""
    begin = min((event.time for event in events if isinstance(event, Began)), default=None)
    if begin is None:
        begin = min((event.time for event in events), default=0.0)
    trace, count, ranks = Trace(begin, first, last), 0, set[int]()
    with Path(path).open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for event in events:
            for one in trace.of(event):
                count += 1
                if one["pid"] != LAUNCHER:
                    ranks.add(one["pid"] - 1)
                file.write(json.dumps(_finite(one), separators=(",", ":"), allow_nan=False) + ",\n")
        file.write(",\n".join(json.dumps(one, separators=(",", ":")) for one in trace.names(ranks)))
        file.write("\n]}\n")
    return count


def _finite(one: Slice) -> Slice:
    """The same, with what JSON has no numbers for as text."""
    about = one.get("args", {})
    bad = {name: str(value) for name, value in about.items() if isinstance(value, float) and value - value != 0}
    return {**one, "args": {**about, **bad}} if bad else one
