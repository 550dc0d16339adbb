"""Where to put the labels of incidents above a curve, so that no two overlap and no line crosses a text.

A few incidents are put in words, in stairs falling to the right: a label's line reaches up to it, and every label to
the left of it whose text reaches over that line stands higher.

    worker 2 SIGKILL
    │  worker 3 SIGKILL
    │  │                   resumed as attempt 1

Many are numbered as in `meshmend audit`, in one row; those that are too close to tell apart share a label.

    1–4     5    6–19, 22
    ││││    │    │││││││││
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from meshmend.report.incidents import Incident

STAIRS = 8
"""Where more would be needed, incidents are numbered."""
LONGEST = 34
"""Characters in a label."""
MOST_NUMBERS = 14
"""Characters in a label of numbers."""
GAP = 0.01
"""Between the end of a text and the next line, as a share of the picture's width."""

Place = Callable[[int], float]
"""Where a step is, as a share of the curve's width."""
Width = Callable[[str], float]
"""How wide a text is, as a share of the picture's width."""


@dataclass(frozen=True)
class Label:
    """A text next to the line of the first of its incidents."""

    text: str
    incidents: tuple[Incident, ...]
    stair: int = 0


def labels(failures: Sequence[Incident], place: Place, width: Width, full: float) -> tuple[float, list[Label]]:
    """Return how wide the curve may be, at most `full`, for the labels to fit next to it, and the labels."""
    wide, found = _told(failures, place, width, full)
    if max((label.stair for label in found), default=0) < STAIRS:
        return wide, found
    return _numbered(failures, place, width, full)


def _told(failures: Sequence[Incident], place: Place, width: Width, full: float) -> tuple[float, list[Label]]:
    """One label for each incident, in words; from the right to the left."""
    texts = [_cut(", ".join(incident.what), LONGEST) for incident in failures]
    places = [place(incident.step) for incident in failures]
    widths = [width(text) + GAP for text in texts]
    wide = min([full, *((full - own) / at for at, own in zip(places, widths, strict=True) if at > 0)])
    order = sorted(range(len(texts)), key=lambda index: (-places[index], index))
    stairs: dict[int, int] = {}
    for this in order:
        end = places[this] + widths[this] / wide
        stairs[this] = max((stair + 1 for right, stair in stairs.items() if places[right] <= end), default=0)
    return wide, [Label(texts[index], (failures[index],), stairs[index]) for index in order]


def _numbered(failures: Sequence[Incident], place: Place, width: Width, full: float) -> tuple[float, list[Label]]:
    """Labels of numbers, from the left to the right."""
    wide = full - width("0" * MOST_NUMBERS) - GAP
    found: list[Label] = []
    for incident in sorted(failures, key=lambda incident: (incident.step, incident.number)):
        last = found[-1] if found else None
        together = (*last.incidents, incident) if last else (incident,)
        if last and place(incident.step) * wide <= place(together[0].step) * wide + width(last.text) + GAP:
            found[-1] = Label(_numbers(one.number for one in together), together)
        else:
            found.append(Label(str(incident.number), (incident,)))
    return wide, found


def _numbers(numbers: Iterable[int]) -> str:
    """Such as "1–3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return _cut(", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs), MOST_NUMBERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip(', –')}…"
