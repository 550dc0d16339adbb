"""The parts of a document, and how each looks in Markdown and in HTML."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from meshmend.report.incidents import PHASES


class Block(ABC):
    """One part."""

    @abstractmethod
    def markdown(self) -> str:
        """As Markdown."""

    @abstractmethod
    def html(self) -> str:
        """As HTML."""


@dataclass(frozen=True)
class Heading(Block):
    """A title; level 1 is the document's."""

    level: int
    text: str

    def markdown(self) -> str:
        return f"{'#' * self.level} {plain(self.text)}"

    def html(self) -> str:
        return f"<h{self.level}>{escape(self.text)}</h{self.level}>"


@dataclass(frozen=True)
class Paragraph(Block):
    """Sentences."""

    text: str
    tone: str = ""
    """"good" or "bad", where it is a verdict."""

    def markdown(self) -> str:
        return f"**{plain(self.text)}**" if self.tone else plain(self.text)

    def html(self) -> str:
        kind = f' class="{self.tone}"' if self.tone else ""
        return f"<p{kind}>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Bullets(Block):
    """A list."""

    items: Sequence[str]

    def markdown(self) -> str:
        return "\n".join(f"* {plain(item)}" for item in self.items)

    def html(self) -> str:
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in self.items) + "</ul>"


@dataclass(frozen=True)
class Table(Block):
    """Cells under heads; columns from `left` on hold numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def markdown(self) -> str:
        lines = [self.heads, ["---" if at < self.left else "---:" for at in range(len(self.heads))], *self.rows]
        cells = ([cell if line is lines[1] else plain(cell) for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)

    def html(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            kinds = ("" if at < self.left else ' class="number"' for at in range(len(cells)))
            inside = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))
            return f"<tr>{''.join(inside)}</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        return f'<div class="wide"><table><thead>{row(self.heads, "th")}</thead><tbody>{body}</tbody></table></div>'


@dataclass(frozen=True)
class Bars(Block):
    """Durations one after another: a waterfall in HTML, a table in Markdown."""

    bars: Sequence[tuple[str, float, str]]
    """Name, seconds, and the seconds in words."""
    total: float

    def markdown(self) -> str:
        return Table(("phase", "time"), [(name, text) for name, _, text in self.bars]).markdown()

    def html(self) -> str:
        rows, at = "", 0.0
        whole = max(self.total, sum(seconds for _, seconds, _ in self.bars)) or 1.0
        for name, seconds, text in self.bars:
            left, wide = 100 * at / whole, max(0.3, 100 * seconds / whole)
            place_of = f"left:{min(left, 99.7):.2f}%;width:{min(wide, 100 - left):.2f}%"
            bar = f'<i class="phase{PHASES.index(name) if name in PHASES else 0}" style="{place_of}"></i>'
            rows += f'<span>{escape(name)}</span><span class="lane">{bar}</span><span>{escape(text)}</span>'
            at += seconds
        return f'<div class="bars">{rows}</div>'


@dataclass(frozen=True)
class Picture(Block):
    """An SVG: inside an HTML document, beside a Markdown one."""

    svg: str
    path: str
    text: str

    def markdown(self) -> str:
        return f"![{plain(self.text)}]({self.path})" if self.path else f"*{plain(self.text)}*"

    def html(self) -> str:
        return f"<figure>{self.svg[self.svg.find('<svg') :]}<figcaption>{escape(self.text)}</figcaption></figure>"


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", text.replace("\n", " "))
