"""What `meshmend audit RUN` prints: the verdict, the incidents with their times, and what is wrong."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meshmend.base.terminal import table
from meshmend.base.units import duration_text, milliseconds, percent, plural
from meshmend.report.audit import Account
from meshmend.report.fold import Level
from meshmend.report.incidents import PHASES, Incident

WIDTH = 100
SHOWN = 20
"""Findings that are printed; `to_json` has all."""
LEAST = 18
"""Columns that the causes need to be readable next to the times; with fewer, they go below."""
HEADS = {
    "re-form": "re-\nform",
    "exchange": "ex-\nchange",
    "roll forward": "roll\nfwd.",
    "recompute": "re-\ncomp.",
    "first commit": "first\ncommit",
}
"""Long names on two lines."""
LEVELS = {
    Level.SHRINK: ("shrink", "the surviving couriers continued by themselves"),
    Level.NEW_WORLD: ("world", "the launcher formed a new world of couriers"),
    Level.CHECKPOINT: ("resume", "the run was resumed from a checkpoint"),
}
"""How each level of recovery is shown in the table, and what that means."""


def render(account: Account, incidents: Sequence[Incident]) -> str:
    """The audit of a run as plain text of at most 100 columns."""
    blocks = [_wrap(_verdict(account)), _wrap(_more(account))]
    if incidents:
        blocks.append(_table(incidents))
    if account.findings:
        left = len(account.findings) - SHOWN
        lines = [_wrap(f"- {finding}", "  ") for finding in account.findings[:SHOWN]]
        more = [f"… and {left:,} more; --json has all"] if left > 0 else []
        blocks.append("\n".join(["findings:", *lines, *more]))
    return "\n\n".join(blocks)


def summary(account: Account) -> tuple[str, str]:
    """The verdict, and what else there is to know, in sentences."""
    return _verdict(account), _more(account)


def to_json(account: Account, incidents: Sequence[Incident]) -> str:
    """The same for programs, with all findings; times are in seconds."""
    return json.dumps(to_dict(account, incidents), indent=2)


def to_dict(account: Account, incidents: Sequence[Incident]) -> dict[str, Any]:
    """The same as an object of JSON."""
    shown = [{**asdict(one), "level": one.level.name, "total": one.total} for one in incidents]
    return {"clean": account.clean, **asdict(account), "incidents": shown}


def _verdict(account: Account) -> str:
    extent = f"{plural(account.steps, 'step')}, {_short(account.epochs)} epochs of {plural(account.size, 'sample')}"
    if not account.clean:
        return f"audit: NOT clean, {plural(len(account.findings), 'finding')}. {extent}."
    if not account.steps:
        return "audit: nothing to audit yet, no step has been committed."
    return (
        f"audit: clean. {extent}, each lane of each step counted once, each sample of each finished epoch counted "
        f"once, all workers' states equal after every step."
    )


def _more(account: Account) -> str:
    parts = [
        f"{plural(account.workers, 'worker')}, {plural(account.lanes, 'lane')}, "
        f"{plural(account.samples, 'sample')} trained on."
    ]
    if account.repeated:
        parts.append(f"{plural(account.repeated, 'step')} done again after a checkpoint.")
    if account.skipped:
        samples = plural(account.skipped * account.batch, "sample")
        parts.append(f"{plural(account.skipped, 'step')} ({samples}) skipped as asked: not finite.")
    if account.evaluations:
        parts.append(f"{plural(account.evaluations, 'evaluation')}, each chunk of its data counted once.")
    if account.stalls:
        rank, most = max(account.stalls.items(), key=lambda pair: pair[1])
        parts.append(f"Input stall: {percent(account.stall, 1)} of the time (worker {rank}: {percent(most, 1)}).")
    if account.slices[0]:
        most, every = account.slices
        parts.append(f"Slices with one copy alone: for {duration_text(account.single)}, at most {most:,} of {every:,}.")
    if account.digest:
        parts.append(f"Digest of the last state: {account.digest}.")
    return " ".join(parts)


def _table(incidents: Sequence[Incident]) -> str:
    """Times in columns; the causes next to them, on as many lines as they need, or below them if there is no room."""
    names = [name for name in PHASES if any(name in incident.times for incident in incidents)]
    heads = ["#", "step", "level", *(HEADS.get(name, name) for name in names), "total", "usual\nstep"]
    rows = [
        [
            str(one.number), f"{one.step:,}", LEVELS[one.level][0], *(_ms(one.times.get(name)) for name in names),
            _ms(one.total), _ms(one.ordinary),
        ]
        for one in incidents
    ]  # fmt: skip
    tables = {gap: table(heads, rows, left=0, gap=gap).split("\n") for gap in ("  ", " ")}
    rooms = {gap: WIDTH - max(map(len, lines)) - len(gap) for gap, lines in tables.items()}
    gap = next((gap for least in (LEAST, 0) for gap, room in rooms.items() if room >= least), " ")
    room, beside = rooms[gap], rooms[gap] >= LEAST
    wide = WIDTH - room if beside else 8
    *above, head = tables[gap][: -len(rows)]
    lines = [*above, f"{head.ljust(wide)}what" if beside else head]
    for line, incident in zip(tables[gap][-len(rows) :], incidents, strict=True):
        first, *others = textwrap.wrap(", ".join(incident.what), WIDTH - wide) or [""]
        lines += [f"{line.ljust(wide)}{first}".rstrip()] if beside else [line, " " * wide + first]
        lines += [" " * wide + text for text in others]
    return "\n".join(["incidents (times in ms):", *lines, _notes(incidents)])


def _notes(incidents: Sequence[Incident]) -> str:
    used = [level for level in LEVELS if any(incident.level is level for incident in incidents)]
    text = f"level {'; '.join(': '.join(LEVELS[level]) for level in used)}; total: from the cause to the next commit"
    if any(incident.end is None for incident in incidents):
        text += "; no total: no step was committed after it"
    return _wrap(text)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "·"
    return duration_text(seconds) if seconds >= 1000 else milliseconds(seconds, digits=2)


def _short(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
