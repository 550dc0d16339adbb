"""What the launcher does with worlds that never come up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshmend.errors import JobError
from meshmend.launch import launcher as module
from meshmend.launch.agent import View
from meshmend.launch.hosts import HERE
from meshmend.launch.launcher import RESTARTS, TRIES, Launcher
from meshmend.launch.order import Order
from meshmend.launch.place import Place


class Worlds:
    """A launcher whose worlds end at once, on a clock of our own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, fresh: bool, came: bool) -> None:
        patch.setenv("MESHMEND_RUNS", str(folder))
        script = folder / "train.py"
        script.touch()
        self.now, self.formed, self.came = 100.0, [], came
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: 0))
        self.launcher = Launcher(Order(run="made", script=[str(script)], workers=2), fresh=fresh)
        patch.setattr(self.launcher, "form", self.form)
        self.form("begin")

    def form(self, why: str) -> None:
        del why
        number = len(self.formed) + 1
        self.formed.append(self.now)
        world: Any = SimpleNamespace(number=number, ended=True, late=lambda _: False)
        self.launcher.world = world
        standby = number if self.came else 0
        views = [View(seat, process=1, ready=True, active=True, courier="lost", standby=standby) for seat in (0, 1)]
        self.launcher.places = {view.seat: Place(view.seat, HERE, view) for view in views}

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and not self.launcher.halting:
            self.launcher.mind_world()
            self.now += 0.02


def test_worlds_that_do_not_come_up_are_tried_ever_more_seldom_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=False)
    worlds.run(300)
    assert len(worlds.formed) == TRIES and str(TRIES) in worlds.launcher.halting
    pauses = [round(after - before, 1) for before, after in zip(worlds.formed[1:-1], worlds.formed[2:], strict=True)]
    assert pauses == sorted(pauses) and pauses[0] >= 1 and pauses[-1] >= 8


def test_a_run_that_never_began_gives_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=True, came=False)
    with pytest.raises(JobError, match="mpirun ended before any courier was there"):
        worlds.run(300)
    assert len(worlds.formed) == RESTARTS


def test_a_world_that_came_up_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=True)
    worlds.run(1)
    assert len(worlds.formed) > TRIES and not worlds.launcher.halting
