"""The picture of a run: it is written, the same bytes every time, and no label lies on another."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from meshmend.errors import JobError, PictureError
from meshmend.report import draw_loss, incidents
from meshmend.report.loss_plot import _stairs
from tests.report.made import Attempt, run

DEATHS = {20: 2, 60: 3, 64: 1, 66: 4}
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


def test_labels_do_not_overlap_and_no_line_crosses_a_text() -> None:
    import matplotlib.figure as figure_module

    figure = figure_module.Figure(figsize=(10, 5))
    axes = figure.subplots()
    axes.set_xlim(0, 200)
    failures = incidents(EVENTS)
    labels = [", ".join(incident.what) for incident in failures]
    wide, stairs = _stairs(figure, axes, failures, labels)
    boxes = []
    for incident, label, stair in zip(failures, labels, stairs, strict=True):
        width = figure.text(0, 0, label, fontsize=8).get_window_extent().width / figure.bbox.width
        left = incident.step / 200 * wide
        boxes.append((left, left + width, stair))
        assert left + width < 0.91
    for index, (left, right, stair) in enumerate(boxes):
        for other, (line, _, higher) in enumerate(boxes):
            if other != index and left <= line <= right and (left, stair) != (line, higher):
                assert higher < stair or (left == line), "the line of a label to the right ends below this text"
    assert len({(left, stair) for left, _, stair in boxes}) == len(boxes)


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
