"""Plain-text tables: columns under heads of one or more lines, and notes below."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 118
"""Columns of a terminal that notes are wrapped to."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, gap: str = "  ") -> str:
    """Cells under their heads, the first `left` columns aligned left and the others right.

    A newline in a head begins its next line; shorter heads stand at the bottom.
    """
    cells = [list(row) for row in rows]
    high = max(head.count("\n") for head in heads) + 1
    titles = [[""] * (high - 1 - head.count("\n")) + head.split("\n") for head in heads]
    widths = [max(map(len, (*title, *column))) for title, *column in zip(titles, *cells, strict=True)]
    lines = [[title[part] for title in titles] for part in range(high)]
    return "\n".join(_line(line, widths, left, gap) for line in [*lines, *cells])


def _line(cells: Sequence[str], widths: Sequence[int], left: int, gap: str) -> str:
    return gap.join(
        cell.ljust(width) if index < left else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def notes(*texts: str, width: int = WIDTH) -> str:
    """Sentences below a table, one bullet each, with no line break before a percent sign."""
    kept = (f"* {text}".replace(" %", "\N{NO-BREAK SPACE}%") for text in texts)
    filled = (textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False) for text in kept)
    return "\n".join(filled).replace("\N{NO-BREAK SPACE}", " ")
