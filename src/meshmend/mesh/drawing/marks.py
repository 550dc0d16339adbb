"""The elements of an SVG picture, one per line, with numbers of at most two decimals."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

from meshmend.base.theme import INK


def square(x: float, y: float, side: float) -> str:
    """A rounded square around a point."""
    q, flat = num(side / 5), num(side * 0.6)
    start = f"M{num(x - 0.3 * side)} {num(y - side / 2)}"
    return f"{start}h{flat}q{q} 0 {q} {q}v{flat}q0 {q} -{q} {q}h-{flat}q-{q} 0 -{q} -{q}v-{flat}q0 -{q} {q} -{q}z"


def cross(x: float, y: float, side: float) -> str:
    """Two strokes that cross at a point."""
    s, top = num(side), num(y - side / 2)
    return f"M{num(x - side / 2)} {top}l{s} {s}M{num(x + side / 2)} {top}l-{s} {s}"


def group(x: int, y: int, elements: Iterable[str]) -> str:
    """Elements moved together."""
    return "\n".join([f'<g transform="translate({x} {y})">', *elements, "</g>"])


def text(x: float, y: float, words: str, fill: str = INK, **attributes: float | str) -> str:
    """Words at a point."""
    return tag("text", escape(words), x=x, y=y, fill=fill, **attributes)


def path(d: str, **attributes: float | str) -> str:
    """A path from its data."""
    return tag("path", **attributes, d=d)


def tag(name: str, body: str = "", /, **attributes: float | str) -> str:
    """An element."""
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    words = "".join(f' {key}="{value if isinstance(value, str) else num(value)}"' for key, value in pairs)
    return f"<{name}{words}>{body}</{name}>" if body else f"<{name}{words}/>"


def num(x: float) -> str:
    """A number with at most two decimals."""
    return f"{round(x, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
