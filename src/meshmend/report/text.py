"""What `meshmend audit RUN` prints: the verdict, the incidents with their times, and what is wrong."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from meshmend.report.audit import Account
from meshmend.report.incident_builder import PARTS
from meshmend.report.incidents import Incident

WIDTH = 100
SHOWN = 20
"""Findings that are printed; `to_json` has all."""
LEAST = 18
"""Columns that the causes need to be readable beside the times; with fewer, they stand below."""
HEADS = {
    "re-form": ["re-", "form"],
    "exchange": ["ex-", "change"],
    "roll forward": ["roll", "fwd."],
    "recompute": ["re-", "comp."],
    "first commit": ["first", "commit"],
}
"""Long names in two lines."""


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


def to_json(account: Account, incidents: Sequence[Incident]) -> str:
    """The same for programs, with all findings; times are in seconds."""
    facts = {
        "clean": account.clean,
        **asdict(account),
        "incidents": [{**asdict(incident), "total": incident.total} for incident in incidents],
    }
    return json.dumps(facts, indent=2)


def _verdict(account: Account) -> str:
    extent = f"{_count(account.steps, 'step')}, {_short(account.epochs)} epochs of {_count(account.size, 'sample')}"
    if not account.clean:
        return f"audit: NOT clean, {_count(len(account.findings), 'finding')}. {extent}."
    if not account.steps:
        return "audit: nothing to audit yet, no step has been committed."
    return (
        f"audit: clean. {extent}, each lane of each step counted once, each sample of each finished epoch counted "
        f"once, all workers' states equal after every step."
    )


def _more(account: Account) -> str:
    parts = [
        f"{_count(account.workers, 'worker')}, {_count(account.lanes, 'lane')}, "
        f"{_count(account.samples, 'sample')} trained on."
    ]
    if account.repeated:
        parts.append(f"{_count(account.repeated, 'step')} done again after a checkpoint.")
    if account.skipped:
        samples = _count(account.skipped * account.batch, "sample")
        parts.append(f"{_count(account.skipped, 'step')} ({samples}) skipped as asked: not finite.")
    if account.digest:
        parts.append(f"Digest of the last state: {account.digest}.")
    return " ".join(parts)


def _table(incidents: Sequence[Incident]) -> str:
    names = [name for name in PARTS if any(name in incident.times for incident in incidents)]
    columns = [
        (["", "#"], [str(incident.number) for incident in incidents]),
        (["", "step"], [f"{incident.step:,}" for incident in incidents]),
        (["", "tier"], [str(incident.tier) for incident in incidents]),
        *((HEADS.get(name, ["", name]), [_ms(incident.times.get(name)) for incident in incidents]) for name in names),
        (["", "total"], [_ms(incident.total) for incident in incidents]),
        (["usual", "step"], [_ms(incident.ordinary) for incident in incidents]),
    ]
    widths = [max(map(len, (*head, *cells))) for head, cells in columns]
    rooms = {gap: WIDTH - sum(widths) - len(gap) * len(widths) for gap in ("  ", " ")}
    gap = next((gap for least in (LEAST, 0) for gap, room in rooms.items() if room >= least), " ")
    room = rooms[gap]
    beside = room >= LEAST
    causes = [textwrap.wrap(", ".join(incident.what), room if beside else WIDTH - 8) or [""] for incident in incidents]
    lines = [_row([head[part] for head, _ in columns], widths, gap, "what" * (part and beside)) for part in (0, 1)]
    for index, (first, *others) in enumerate(causes):
        cells = [column[index] for _, column in columns]
        lines.append(_row(cells, widths, gap, first if beside else ""))
        indent = (WIDTH - room if beside else 8) * " "
        lines += [indent + text for text in (others if beside else [first, *others])]
    return "\n".join(["incidents (times in ms):", *lines, *_notes(incidents)])


def _notes(incidents: Sequence[Incident]) -> list[str]:
    tiers = {1: "repaired by the couriers", 2: "a new world was formed", 3: "resumed from a checkpoint"}
    used = sorted({incident.tier for incident in incidents})
    text = f"tier {', '.join(f'{tier}: {tiers[tier]}' for tier in used)}; total: from the cause to the next commit"
    if any(incident.end is None for incident in incidents):
        text += "; no total: no step was committed after it"
    return [_wrap(text)]


def _row(cells: Sequence[str], widths: Sequence[int], gap: str, what: str) -> str:
    return gap.join([*(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), what]).rstrip()


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "·"
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    return f"{1000 * seconds:,.0f}" if seconds >= 0.00995 else f"{1000 * seconds:.1f}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _short(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
