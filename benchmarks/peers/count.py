"""What the notes of a run say: step times, samples lost and repeated, lines changed."""

from __future__ import annotations

import ast
import difflib
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """A median with the least and the most, and of how many."""

    middle: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Of these values; None where there are none."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found)) if found else None


@dataclass(frozen=True)
class Tally:
    """Samples of all batches that were begun and are over, one way or the other."""

    due: int
    """How many those batches hold."""
    counted: int
    """Samples in committed steps, each as often as it was counted."""
    lost: int
    """Samples of those batches in no committed step."""
    repeated: int
    """Samples that were counted before in the same epoch."""


def tally(notes: Sequence[tuple[int, list[Record]]], batch: int) -> Tally:
    """From the notes of all processes, in the order they were started: (rank, records).

    A batch that a rank has computed counts when its step was committed. Where a rank did a step again, after going back
    to a checkpoint, only the last time counts: the state of the first is gone.
    """
    kept: dict[tuple[int, int], tuple[int, list[int]]] = {}
    reached: dict[int, int] = {}
    for rank, records in notes:
        drawn: Record | None = None
        for one in records:
            if "drawn" in one:
                drawn = one
            elif "done" in one and drawn is not None:
                reached[drawn["epoch"]] = max(reached.get(drawn["epoch"], 0), drawn["slot"] + 1)
                if one["counted"]:
                    kept[rank, one["done"]] = drawn["epoch"], drawn["ids"]
                drawn = None
    return _tally(kept.values(), reached, batch)


def tally_by_ledger(
    notes: Sequence[tuple[int, list[Record]]], ledger: Iterable[Record], batch: int, slots: int
) -> Tally:
    """meshmend's: a lane counts once for each time that the ledger says somebody did it, and that one noted it.

    The ledger tells how many lanes of a step each rank was counted for; the notes, which samples it computed.
    """
    by = {one["step"]: one["by"] for one in ledger}
    drawn: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for rank, records in notes:
        for one in records:
            if "drawn" in one and tuple(one["ids"]) not in drawn.setdefault((one["drawn"], rank), []):
                drawn[one["drawn"], rank].append(tuple(one["ids"]))
    counted: list[tuple[int, list[int]]] = []
    for step, ranks in by.items():
        left = Counter({rank: 0 for rank, _ in ranks})
        for rank, lanes in ranks:
            left[rank] += lanes
        lanes_by = Counter(lane for rank in left for lane in set(drawn.get((step, rank), [])))
        # A lane that only one rank has computed can only be that one's; so those come first.
        for lane in sorted(lanes_by, key=lambda lane: lanes_by[lane]):
            able = [rank for rank in left if left[rank] > 0 and lane in drawn.get((step, rank), [])]
            if able:
                left[able[0]] -= 1
                counted.append((step // slots, list(lane)))
        for rank, more in left.items():
            # It was counted more often than it computed lanes that nobody else was counted for: lanes done twice.
            again = drawn.get((step, rank), [])
            counted += [(step // slots, list(again[0]))] * more if again else []
    reached: dict[int, int] = {}
    for step in by:
        reached[step // slots] = max(reached.get(step // slots, 0), step % slots + 1)
    return _tally(counted, reached, batch)


def _tally(counted: Iterable[tuple[int, list[int]]], reached: dict[int, int], batch: int) -> Tally:
    often = Counter((epoch, one) for epoch, ids in counted for one in ids)
    due = sum(reached.values()) * batch
    total = sum(often.values())
    return Tally(due, total, due - len(often), total - len(often))


def step_times(records: Iterable[Record], begin: int, end: int) -> list[float]:
    """Seconds from each committed step to the next, for the steps from `begin` to `end`."""
    at = {one["done"]: one["at"] for one in records if one.get("counted") and begin <= one["done"] <= end}
    return [at[step] - at[step - 1] for step in sorted(at) if step - 1 in at]


def code_lines(path: Path) -> list[str]:
    """Lines that do something: no docstrings, comments and blank lines, nor those that only take notes."""
    text = path.read_text()
    words: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    found = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in words]
    return [
        line for line in found if line and not line.startswith("#") and "notes." not in line and "Notes" not in line
    ]


def lines_changed(plain: Path, script: Path) -> int:
    """Lines that were changed, added or taken away, from the plain script to this one; indentation is free."""
    matcher = difflib.SequenceMatcher(None, code_lines(plain), code_lines(script), autojunk=False)
    return sum(max(b - a, d - c) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal")
