"""Draws the states of a rank and what moves it from one to another, from the supervisor's own table.

Only where boxes and arrows stand is decided here. Which signs an arrow has is read from `TRANSITIONS`, and a table with
a move that no arrow shows is an error: so the picture cannot tell anything else than the code. `make pictures` writes
docs/pictures/rank-states.svg, and a test compares that file with the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshmend.base.theme import FAINT, INK, MUTED, PAPER, SERIES
from meshmend.run.supervisor.ranks import ALIVE, GONE, TRANSITIONS, RankState, Sign

WIDE, HIGH = 1010, 430
BOX = 104, 40
PLACES = {
    RankState.DUE: (110, 118), RankState.DEAD: (110, 242), RankState.GIVEN_UP: (110, 366),
    RankState.STARTING: (386, 118), RankState.READY: (556, 118), RankState.STANDBY: (726, 118),
    RankState.ACTIVE: (896, 118), RankState.EXITING: (641, 330),
}  # fmt: skip
"""The middle of each box."""
FRAMES = [("no worker", (36, 64, 184, 404)), ("a worker is alive", (300, 64, 982, 388)), ("", (318, 84, 964, 236))]
"""Around states that share arrows: a title, and left, top, right, bottom."""
RUNNING = tuple(state for state in ALIVE if state is not RankState.EXITING)


@dataclass(frozen=True)
class Arrow:
    """One arrow, for moves that all its sources share."""

    sources: Sequence[RankState]
    into: RankState
    path: str
    label: tuple[float, float]
    anchor: str = "middle"

    @property
    def signs(self) -> list[Sign]:
        """The signs that move each of the sources there."""
        return [sign for sign in Sign if all(TRANSITIONS.get((state, sign)) is self.into for state in self.sources)]


S, R, B, A = RUNNING
ARROWS = [
    Arrow(GONE, S, "M184 118 L330 118", (242, 110)),
    Arrow([S], RankState.DUE, "M372 98 C350 44 140 44 116 94", (242, 48)),
    Arrow(ALIVE, RankState.DEAD, "M300 242 L166 242", (242, 234)),
    Arrow([RankState.DEAD], RankState.DUE, "M96 222 L96 142", (90, 186), "end"),
    Arrow([RankState.DUE], RankState.DEAD, "M124 138 L124 218", (130, 186), "start"),
    Arrow([RankState.DEAD], RankState.GIVEN_UP, "M96 262 L96 342", (90, 308), "end"),
    Arrow([RankState.GIVEN_UP], RankState.DEAD, "M124 346 L124 266", (130, 308), "start"),
    Arrow([S], R, "M438 118 L500 118", (470, 110)),
    Arrow([R], B, "M608 111 L670 111", (640, 103)),
    Arrow([B], R, "M674 126 L612 126", (642, 140)),
    Arrow([B], A, "M778 118 L840 118", (810, 110)),
    Arrow([S], B, "M398 138 C430 178 680 178 712 142", (498, 182)),
    Arrow([R], A, "M568 138 C600 178 850 178 882 142", (790, 182)),
    Arrow([S], A, "M378 138 C410 232 870 232 898 142", (640, 224)),
    Arrow([R, B, A], S, "M890 98 C860 56 430 56 400 94", (645, 80)),
    Arrow(RUNNING, RankState.EXITING, "M641 236 L641 306", (649, 276), "start"),
]


def shown() -> set[tuple[RankState, Sign, RankState]]:
    """Every move that the picture shows."""
    return {(state, sign, arrow.into) for arrow in ARROWS for sign in arrow.signs for state in arrow.sources}


def draw() -> str:
    """The picture as SVG."""
    moves = {(state, sign, into) for (state, sign), into in TRANSITIONS.items() if state is not into}
    if shown() != moves:
        raise ValueError(f"these moves are shown but not made, or made but not shown: {shown() ^ moves}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" '
        'style="max-width:100%" role="img" fill="none" font-size="11" font-family="system-ui, sans-serif">',
        "<title>The states of a rank</title>",
        "<desc>An arrow from a frame is one from each state in it. Labels: what is seen or decided.</desc>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 Z" fill="{MUTED}"/></marker></defs>',
        f'<rect width="{WIDE}" height="{HIGH}" rx="10" fill="{PAPER}"/>',
        _text(24, 40, "The states of a rank", fill=INK, size=17, weight=600, anchor="start"),
        *_frames(),
        *(part for arrow in ARROWS for part in _arrow(arrow)),
        *(part for state in RankState for part in _box(state)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _frames() -> Iterable[str]:
    for title, (left, top, right, bottom) in FRAMES:
        yield (
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="12" '
            f'stroke="{FAINT}" stroke-width="1.5" stroke-dasharray="{"5 4" if not title else "none"}"/>'
        )
        if title:
            yield _text(left + 12, top - 8, title, fill=MUTED, size=12, anchor="start")


def _arrow(arrow: Arrow) -> Iterable[str]:
    yield f'<path d="{arrow.path}" stroke="{MUTED}" stroke-width="1.4" marker-end="url(#tip)"/>'
    x, y = arrow.label
    for line, sign in enumerate(arrow.signs):
        # Several signs stand above one another, the last on the label's own line.
        height = y - 13 * (len(arrow.signs) - 1 - line)
        yield _text(x, height, sign.name.replace("_", " ").lower(), fill=MUTED, size=11, anchor=arrow.anchor)


def _box(state: RankState) -> Iterable[str]:
    (x, y), (wide, high) = PLACES[state], BOX
    colour = SERIES[2] if state is RankState.ACTIVE else SERIES[0] if state in ALIVE else MUTED
    yield (
        f'<rect x="{x - wide / 2:g}" y="{y - high / 2:g}" width="{wide}" height="{high}" rx="8" fill="{PAPER}" '
        f'stroke="{colour}" stroke-width="1.8"/>'
    )
    yield _text(x, y + 4.5, state.name.replace("_", " "), fill=INK, size=13, weight=600)


def _text(
    x: float, y: float, words: str, *, fill: str, size: int, weight: int = 400, anchor: str = "middle"
) -> str:  # fmt: skip
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{words}</text>'
    )


if __name__ == "__main__":
    print(draw(), end="")
