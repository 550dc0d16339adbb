"""The notation of a graph: its links as chips in a row, then what is dead and slow, as on a grid.

    0-1-2-3-0          four chips in a ring
    0-1-2-3-0 0-2      the same with a link across
    -chip@3            a dead chip
    -link@0:1          a dead link
    ~0.5@0:2           a link at half speed (3/4 works too)

This file knows words; `graph.py` makes a graph of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from fractions import Fraction
from itertools import pairwise

from meshmend.errors import MeshError
from meshmend.mesh.cabling import Chip, Link, speed_text
from meshmend.mesh.notation import FINEST

GRAMMAR = "chips in a row such as 0-1-2-0, then -chip@CHIP, -link@CHIP:CHIP or ~SPEED@CHIP:CHIP"
_NUMBER = r"[0-9]{1,9}"
_ROW = re.compile(rf"{_NUMBER}(?:-{_NUMBER})+")
_CHIP = re.compile(rf"-?chip@({_NUMBER})")
_LINK = re.compile(rf"-?link@({_NUMBER}):({_NUMBER})")
_SLOW = re.compile(rf"~([0-9.]{{1,12}}(?:/[0-9]{{1,9}})?)@({_NUMBER}):({_NUMBER})")

Pairs = list[tuple[int, int]]


def is_graph(text: str) -> bool:
    """Whether a notation is that of a graph, and not of a grid."""
    first = text.split(maxsplit=1)[:1]
    return bool(first) and _ROW.fullmatch(first[0]) is not None


def parse_graph(text: str) -> tuple[Pairs, list[str]]:
    """The links, and the words for what is dead and slow."""
    links: Pairs = []
    rest: list[str] = []
    for word in text.split():
        if _ROW.fullmatch(word):
            links += pairwise(map(int, word.split("-")))
        elif word[0] in "-~":
            rest.append(word)
        else:
            raise MeshError(f"cannot read {word!r} in {text[:60]!r}: expected {GRAMMAR}")
    return links, rest


def read_word(word: str) -> tuple[list[Chip], list[Link], dict[Link, Fraction]]:
    """The chips and links that one word kills, and those that it slows down."""
    if found := _CHIP.fullmatch(word):
        return [(int(found[1]),)], [], {}
    if found := _LINK.fullmatch(word):
        return [], [((int(found[1]),), (int(found[2]),))], {}
    if not (found := _SLOW.fullmatch(word)):
        raise MeshError(f"cannot read {word!r}: a hole is -chip@CHIP or -link@CHIP:CHIP, a slow link ~SPEED@CHIP:CHIP")
    return [], [], {((int(found[2]),), (int(found[3]),)): speed_of(found[1])}


def speed_of(value: object) -> Fraction:
    """A speed as an exact fraction: above 0, at most 1, no finer than thousandths."""
    try:
        speed = Fraction(str(value)) if not isinstance(value, bool) else Fraction(0)
    except (ValueError, ZeroDivisionError):
        speed = Fraction(0)
    if not 0 < speed <= 1:
        raise MeshError(f"a link with a speed of {value}: give a number above 0 and at most 1 (full speed)")
    if speed.denominator > FINEST:
        raise MeshError(f"a speed of {value} is finer than thousandths: round it, for example to {float(speed):.3f}")
    return speed


def rows(links: Sequence[tuple[int, int]]) -> list[str]:
    """All links, each once, as few rows of chips as a walk finds: it begins where an odd number of links is left."""
    left: dict[int, set[int]] = {}
    for a, b in links:
        left.setdefault(a, set()).add(b)
        left.setdefault(b, set()).add(a)
    out = []
    for odd_only in (True, False):
        for begin in sorted(left):
            while left[begin] and (len(left[begin]) % 2 or not odd_only):
                row = [begin]
                while left[row[-1]]:
                    there = min(left[row[-1]])
                    left[row[-1]].remove(there)
                    left[there].remove(row[-1])
                    row.append(there)
                out.append("-".join(map(str, row)))
    return out


def format_graph(
    links: Sequence[tuple[int, int]],
    dead_chips: Set[Chip],
    dead_links: Set[Link],
    slow: Mapping[Link, Fraction],
) -> str:
    """The whole notation, the same for equal graphs."""
    words = rows(links)
    words += [f"-chip@{chip}" for (chip,) in sorted(dead_chips)]
    words += [f"-link@{a}:{b}" for (a,), (b,) in sorted(dead_links)]
    words += [f"~{speed_text(speed)}@{a}:{b}" for ((a,), (b,)), speed in sorted(slow.items())]
    return " ".join(words)
