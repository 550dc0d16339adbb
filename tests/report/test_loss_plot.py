"""The picture of a run: it is written, the same bytes every time, and no label lies on another."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from meshmend.errors import JobError, PictureError
from meshmend.report import draw_loss, incidents
from meshmend.telemetry import Event
from tests.report.made import Attempt, run

DEATHS = {20: 2, 60: 3, 64: 1, 66: 4}
CLOSE = range(290, 350, 4)
EVENTS = run([Attempt(0, 150, 6, DEATHS, {45: 2, 90: 1}), Attempt(120, 200, 6, {s: s % 6 for s in range(130, 199, 9)})])


@pytest.mark.parametrize(("name", "magic"), [("loss.png", b"\x89PNG"), ("loss.svg", b"<?xml")])
def test_it_is_written_and_stays_the_same(tmp_path: Path, name: str, magic: bytes) -> None:
    draw_loss(EVENTS, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert first.startswith(magic)
    draw_loss(EVENTS, str(tmp_path / name))
    assert (tmp_path / name).read_bytes() == first


def test_runs_of_one_step_and_of_many_incidents_can_be_drawn(tmp_path: Path) -> None:
    draw_loss(run([Attempt(0, 1, 1)]), tmp_path / "one.png")
    many = run([Attempt(0, 400, 8, {s: s % 8 for s in range(100, 300, 2)}, {s + 1: s % 8 for s in range(100, 300, 2)})])
    assert len(incidents(many)) > 50
    draw_loss(many, tmp_path / "many.png")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Event]], Any]:
    """What is drawn of some events, before it is written."""
    import matplotlib.figure as figure_module

    def draw(events: list[Event]) -> Any:
        figure = figure_module.Figure(figsize=(10, 5))
        monkeypatch.setattr("meshmend.report.loss_plot.picture", lambda *_: nullcontext(figure))
        draw_loss(events, "loss.png")
        return figure

    return draw


@pytest.mark.parametrize(
    ("events", "numbered"),
    [
        (EVENTS, False),
        (run([Attempt(0, 150, 6, DEATHS), Attempt(120, 130, 6)]), False),
        (run([Attempt(0, 600, 8, {s: s % 8 for s in CLOSE}, {s + 2: s % 8 for s in CLOSE})]), True),
    ],
    ids=["stairs", "few", "a burst"],
)
def test_every_incident_is_labelled_and_no_label_overlaps_another(
    drawn: Callable[[list[Event]], Any], events: list[Event], numbered: bool
) -> None:
    figure, failures = drawn(events), incidents(events)
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.axes[0].texts]
    assert boxes and all(box.x1 <= figure.bbox.x1 for _, box in boxes)
    for (_, box), (_, other) in combinations(boxes, 2):
        assert not box.overlaps(other)
    for line in figure.axes[0].lines:
        low, high = line.get_window_extent().p0, line.get_window_extent().p1
        if low[0] == high[0]:  # that of an incident
            assert not any(box.x0 <= low[0] <= box.x1 and high[1] > box.y0 for _, box in boxes)
    texts = ", ".join(text for text, _ in boxes)
    if numbered:
        assert _read(texts) == [incident.number for incident in failures]
    else:
        assert all(", ".join(incident.what) in texts for incident in failures)


def _read(texts: str) -> list[int]:
    """The numbers in labels such as "1–3, 7"."""
    ends = [[int(end) for end in part.split("–")] for part in texts.split(", ")]
    return sorted(number for end in ends for number in range(end[0], end[-1] + 1))


def test_the_workers_are_drawn_to_the_end_when_a_run_resumes_from_further_back(
    drawn: Callable[[list[Event]], Any],
) -> None:
    figure = drawn(run([Attempt(0, 150, 8), Attempt(120, 130, 4)]))
    workers, end = figure.axes[1], figure.axes[1].get_xlim()[1]
    lines = {max(line.get_xdata()): line.get_ydata()[-1] for line in workers.lines if len({*line.get_xdata()}) > 1}
    assert lines[130] == 4 and max(lines) >= end


def test_errors_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PictureError, match=r"give a path that ends in \.png or \.svg"):
        draw_loss(EVENTS, tmp_path / "loss.gif")
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with pytest.raises(PictureError, match=r"pip install 'meshmend\[report\]'"):
            draw_loss(EVENTS, tmp_path / "loss.png")
    with pytest.raises(JobError, match="no step of this run has a metric 'accuracy': its metrics are loss"):
        draw_loss(EVENTS, tmp_path / "loss.png", metric="accuracy")
    with pytest.raises(PictureError, match=r"cannot draw to .*No such file"):
        draw_loss(EVENTS, tmp_path / "nowhere" / "loss.png")
