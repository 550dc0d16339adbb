"""Tables as plain text: columns right-aligned under heads of one or two lines, notes below."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

WIDTH = 118
Tell = Callable[[str], None]
"""Is told what is being computed, for the large tables take minutes."""


def quiet(_: str) -> None:
    """Tell nobody."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Columns under their heads, in which a newline begins the second line; the first `left` ones left-aligned."""
    titles = [(["", *head.split("\n")])[-2:] for head in heads]
    cells = [list(row) for row in rows]
    widths = [max(map(len, (*title, *column))) for title, *column in zip(titles, *cells, strict=True)]
    lines = [[title[part] for title in titles] for part in (0, 1)]
    return "\n".join(_line(line, widths, left) for line in [*lines, *cells])


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    return "  ".join(
        cell.ljust(width) if index < left else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def notes(*texts: str) -> str:
    """Sentences below a table."""
    kept = (f"* {text}".replace(" %", "\N{NO-BREAK SPACE}%") for text in texts)
    filled = (textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for text in kept)
    return "\n".join(filled).replace("\N{NO-BREAK SPACE}", " ")


def ms(seconds: float) -> str:
    """Milliseconds, with three digits that count."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(part: float, *, sign: bool = False) -> str:
    """A part of one, in percent; losses of hardly anything keep a second decimal."""
    digits = 0 if abs(part) >= 1 else 1 if abs(part) >= 0.1 else 2
    return f"{100 * part:{'+' * sign}.{digits}f} %"
