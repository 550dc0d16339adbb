"""What the launcher does with worlds that never come up, networks that fall apart, and workers that stand still."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshmend.base import processes
from meshmend.base.processes import EXITING
from meshmend.errors import JobError
from meshmend.job.protocol import has_majority, may_go_on
from meshmend.run import launcher as module
from meshmend.run.agent import agent
from meshmend.run.agent.agent import REPAIR, Agent, Seat, View
from meshmend.run.agent.pulse import HANGS, STOPPED
from meshmend.run.hosts import pool as reach
from meshmend.run.hosts.hosts import HERE
from meshmend.run.launcher import FADE, HALT, HEAD_START, RESTARTS, STANDSTILL, UNBEGUN, Launcher
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor.attempts import TRIES, VAIN
from meshmend.run.supervisor.exit_status import outcome
from meshmend.run.supervisor.place import Place


class Told:
    """An agent that does as it is told."""

    closed = False
    quiet = False

    def do(self, command: str, **values: Any) -> None:
        del command, values

    def close(self) -> None:
        pass


class Made(SimpleNamespace):
    """A world that never was."""

    def has(self, rank: int, worker: int) -> bool:
        return rank >= 0 and worker == 1


class Worlds:
    """A launcher whose worlds end at once, on a clock of our own."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, *, fresh: bool, came: bool, steps: bool = False
    ) -> None:
        patch.setenv("MESHMEND_RUNS", str(folder))
        script = folder / "train.py"
        script.touch()
        self.now, self.formed, self.came, self.steps = 100.0, [], came, steps
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: 0))
        self.launcher = Launcher(RunSpec(run="made", script=[str(script)], workers=2), fresh=fresh)
        patch.setattr(self.launcher, "form", self.form)
        self.form("begin")

    def form(self, why: str) -> None:
        del why
        number = len(self.formed) + 1
        self.formed.append(self.now)
        world: Any = Made(number=number, ended=True, late=lambda _: False, began=self.now)
        self.launcher.world = world
        standby = number if self.came else 0
        about: Any = {"process": 1, "ready": True, "active": True, "courier": "lost", "standby": standby}
        views = [View(rank, **about, step=number * self.steps) for rank in (0, 1)]
        self.launcher.places = {view.rank: Place(view.rank, HERE, view) for view in views}

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


def test_couriers_that_wait_for_the_last_to_come_up_are_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=False)
    launcher, first, last = worlds.launcher, *worlds.launcher.places.values()
    launcher.world = cast(
        Any,
        Made(number=2, ended=False, late=lambda _: False, began=worlds.now),
    )
    first.view = replace(first.view, courier="alive", standby=2, stuck=True)
    last.view = replace(last.view, courier="none", standby=1)
    worlds.run(20)
    assert len(worlds.formed) == 1
    last.view = replace(last.view, courier="alive", standby=2)
    worlds.run(REPAIR - 1)
    assert len(worlds.formed) == 1
    worlds.run(2)
    assert len(worlds.formed) > 1


def test_a_newcomer_does_not_make_the_world_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=True)
    launcher, world = worlds.launcher, cast(Any, worlds.launcher.world)
    world.ended, world.began, world.late = False, 0.0, lambda standby: min(standby) < world.number
    launcher.places[2] = Place(2, HERE, View(2, process=2, ready=True))  # for it, another world is being made ready
    worlds.run(1)
    assert len(worlds.formed) == 1


def test_a_world_for_newcomers_is_made_while_they_load_unless_the_last_one_was_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=True)
    launcher, opened = worlds.launcher, list[Any]()

    def open_(why: str) -> Any:
        members = {place.number: place.view.process for place in launcher.living()}
        made = Made(number=len(opened) + 2, members=members, ended=False, late=lambda _: False, why=why)
        made.kill, made.line = lambda: None, []
        opened.append(made)
        return made

    def step(**values: Any) -> None:
        for place in launcher.places.values():
            place.view = replace(place.view, **values)
        launcher.let_in()

    entered = list[int]()
    monkeypatch.setattr(launcher, "open", open_)
    monkeypatch.setattr(launcher, "enter", lambda world, _: entered.append(world.number))
    cast(Any, launcher.world).kill = lambda: None
    launcher.places[1] = Place(1, HERE, View(1, process=7), joining=True)
    launcher.places[5] = Place(5, HERE, View(5, status=-9), dead=True, due=(9, 1e9))
    step()
    assert opened == []  # one more will join
    del launcher.places[5]
    step()
    assert [world.why for world in opened] == ["worker 1 joins"]
    step(standby=2)
    assert entered == []  # its courier is there, and the worker is not yet
    launcher.places[1] = Place(1, HERE, View(1, process=8), joining=True)  # it died, and is started again
    step()
    step()
    assert len(opened) == 1 and launcher.next is None
    step(ready=True)
    step(standby=3)
    assert len(opened) == 2 and entered == [3]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_of_a_network_in_parts_one_goes_on_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Ranks, one a host, are near the launcher, far from it, or behind a break where no agent answers: all ways."""
    hosts = [[rank] for rank in range(ranks)]
    for parts in product(("near", "far", "lost"), repeat=ranks):
        worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=True)
        launcher = worlds.launcher
        near, far, lost = ({rank for rank in range(ranks) if parts[rank] == which} for which in ("near", "far", "lost"))
        launcher.places = {s: Place(s, parts[s], View(s, process=1, ready=True, active=True)) for s in range(ranks)}
        launcher.reach.agents = {name: cast(Any, Told()) for name in ("near", "far")}
        for rank in lost:
            launcher.places[rank].dead = True
        launcher._unsure = set(lost)
        monkeypatch.setattr(launcher.reach, "away", lambda _: {"far"})
        monkeypatch.setattr(launcher, "end_world", lambda: None)
        monkeypatch.setattr(launcher.speaker, "say", lambda _: None)
        monkeypatch.setattr(reach, "Remote", Told)
        launcher.part()
        goes_on = not launcher.halting
        assert goes_on == (has_majority(near, near | far) and (not lost or has_majority(near, near | lost)))
        ended = {place.number for place in launcher.places.values() if place.ending or place.dead} - lost
        assert ended == (far if has_majority(near, near | far) else near)
        for some in (far, lost):  # couriers of the world that was, by themselves
            alone = may_go_on(some, some, set(range(ranks)), hosts)
            assert not (goes_on and alone and not some <= ended), (parts, some)


def test_couriers_that_have_met_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=False)
    worlds.launcher.world = cast(
        Any,
        Made(number=2, ended=False, late=lambda _: False, began=worlds.now),
    )
    for stuck, formed in ((False, False), (True, True)):
        for place in worlds.launcher.places.values():
            place.view = replace(place.view, courier="alive", standby=2, stuck=stuck)
        worlds.run(REPAIR + 1 if not stuck else 0.02)
        assert (len(worlds.formed) > 1) == formed


def test_a_world_that_came_up_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=True, steps=True)
    worlds.run(1)
    assert len(worlds.formed) > VAIN and not worlds.launcher.halting


def test_worlds_that_come_up_and_do_no_step_are_not_formed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=True)
    worlds.run(300)
    assert len(worlds.formed) == VAIN and "came no further than step 0" in worlds.launcher.halting


class Watched:
    """A launcher and its workers' pauses."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setenv("MESHMEND_RUNS", str(folder))
        script = folder / "train.py"
        script.touch()
        self.now, self.said, self.killed = 100.0, [], []
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.launcher = Launcher(RunSpec(run="made", script=[str(script)], workers=3), fresh=False)
        patch.setattr(self.launcher, "end", lambda place, how: self.killed.append((place.number, how)))
        patch.setattr(self.launcher.speaker, "say", self.said.append)

    def look(self, *still: int, step: int = 5) -> list[tuple[int, str]]:
        """Whom it ends when its workers stand still so."""
        views = [View(rank, process=1, ready=True, active=True, still=n, step=step) for rank, n in enumerate(still)]
        self.launcher.places = {view.rank: Place(view.rank, HERE, view) for view in views}
        self.killed.clear()
        self.launcher.mind_hangs()
        return list(self.killed)

    def halt(self, **about: Any) -> list[tuple[int, str]]:
        """Whom it ends at this look, after it was told to end, when all are like this."""
        views = [View(rank, process=1, active=True, **about) for rank in range(2)]
        self.launcher.places = {view.rank: Place(view.rank, HERE, view) for view in views}
        self.killed.clear()
        self.launcher.halt()
        return list(self.killed)


def test_one_that_hangs_is_ended_and_a_pause_of_all_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    assert watched.look(0, 0, 1) == []
    assert watched.look(0, 0, HANGS) == [(2, "hang")]
    assert watched.look(HANGS, 1, HANGS, step=6) == [] and "all workers stand still" in watched.said[0]
    assert watched.look(HANGS, 0, HANGS, step=6) == [(0, "hang")]
    watched.look(HANGS, HANGS, HANGS)
    watched.now += STANDSTILL + 1
    watched.look(HANGS + 9, HANGS, HANGS)
    assert "stood still for 30 minutes" in watched.launcher.halting and len(watched.said) == 2


def test_the_next_one_in_the_same_step_has_twice_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch)
    assert watched.look(0, 0, HANGS) == [(2, "hang")]
    assert watched.look(0, HANGS) == []
    assert watched.look(0, HANGS + 1) == [(1, "hang")]
    assert watched.look(HANGS + 9) == []  # the last one has the state
    assert watched.look(0, STOPPED, STOPPED) == [(1, "hang"), (2, "hang")]  # that is not the lane's fault
    assert watched.look(0, HANGS, step=6) == [(1, "hang")]


def test_one_that_is_being_ended_counts_as_one_that_hung_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    assert watched.look(0, 0, STOPPED) == [(2, "hang")]
    watched.launcher.places[2].ending = True
    for _ in range(10):
        watched.launcher.mind_hangs()
    assert watched.killed == [(2, "hang")]
    assert watched.look(0, HANGS + 1) == [(1, "hang")]


def test_one_that_writes_the_checkpoint_is_given_the_time_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.launcher.halting = "asked to"
    assert watched.halt(ready=True) == []
    assert watched.halt(ready=False) == [(0, UNBEGUN), (1, UNBEGUN)]
    watched.now += HALT + 1
    assert watched.halt(ready=True, saving=True) == []
    assert watched.halt(ready=True) == [(0, "halted"), (1, "halted")]
    watched.launcher.signal = 2  # the second Ctrl-C
    assert watched.halt(ready=True, saving=True) == [(0, "halted"), (1, "halted")]


@pytest.mark.parametrize("paused", [0, 1])
def test_a_worker_that_said_it_pauses_owes_nothing(paused: int) -> None:
    segment = {"active": 1, "asked": 0, "answered": 0, "state_asked": 0, "exported": 0, "inside": 0, "worker": 0}
    rank = Seat(0, cast(Any, segment | {"progress": 0, "paused": 0}))
    for now in range(50):  # a pace of a sign a second
        rank.segment["progress"] = now
        rank.segment["asked"] = now
        Agent._see_still(rank, now)
    rank.segment["paused"] = paused
    stopped: Any = lambda _: ("stopped", 0.0)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "doing", stopped)
        for tick in range(50, 60):
            Agent._see_still(rank, tick)
    assert rank.still == (0 if paused else STOPPED)


@pytest.mark.parametrize("how", ["a step", "a second"])
def test_a_new_worker_is_started_after_the_step_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    launcher, started = watched.launcher, list[int]()
    monkeypatch.setattr(launcher.reach, "has", lambda _: True)
    monkeypatch.setattr(launcher, "start", lambda place: started.append(place.number))
    watched.look(0, 0, 0)
    launcher.order = replace(launcher.order, least=3)
    dead = launcher.places[2]
    dead.view = replace(dead.view, status=-9)
    launcher.ended(dead)
    launcher.start_due()
    launcher.mind_size()
    assert started == [] and not launcher.halting  # one that will be started is not missing
    if how == "a step":
        launcher.places[0].view = replace(launcher.places[0].view, step=6)
    else:
        watched.now += HEAD_START + 0.01
    launcher.places[1].view = replace(launcher.places[1].view, over=True)
    launcher.start_due()
    assert started == []  # after the last step, nobody is wanted
    launcher.places[1].view = replace(launcher.places[1].view, over=False)
    launcher.start_due()
    assert started == [2]


def test_a_host_that_is_lost_takes_along_who_was_to_be_started_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.look(0, 0, 0)
    watched.launcher.places[2].due = (5, 0.0)
    watched.launcher.bury(HERE)
    watched.launcher.start_due()  # there is no agent that could
    assert watched.launcher.places[2].due is None


def test_a_host_that_is_lost_after_the_last_step_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have ended well, and the one that is gone had nothing left to do."""
    watched = Watched(tmp_path, monkeypatch)
    launcher = watched.launcher
    watched.look(0, 0, 0)
    launcher.places[2].host = "far"
    for rank in (0, 1):
        launcher.places[rank].view = replace(launcher.places[rank].view, over=True, status=0)
    launcher.lose("far")
    assert not launcher.living() and not launcher.halting
    assert outcome([p.view for p in launcher.places.values()], -1, "") == 0


def test_one_that_already_ends_is_not_said_to_have_been_ended_by_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its courier goes with it at once, and the launcher may miss that before the worker is gone."""
    rank = Seat(0, cast(Any, {"worker": 7, "born": 1}))
    stat = ["R", *"12345", str(EXITING), *"789", *"0123456789", *"0123456789"]
    stat[19] = "1"
    monkeypatch.setattr(processes, "_stat", lambda _: stat)
    assert processes.is_alive(7, 1)
    Agent._kill(rank, "lost its courier")
    assert rank.how == ""


def test_spares_are_released_when_the_last_step_is_done_and_not_when_somebody_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, released = Watched(tmp_path, monkeypatch), list[int]()
    launcher = watched.launcher
    told = SimpleNamespace(do=lambda _, rank: released.append(rank))
    monkeypatch.setattr(launcher.reach, "agents", {HERE: told})
    watched.look(0, 0, 0)
    first, second, spare = launcher.places.values()
    spare.view = replace(spare.view, active=False)
    first.view = replace(first.view, status=0)  # it said goodbye in the middle
    launcher.release_spares()
    assert released == []
    second.view = replace(second.view, over=True, status=1)  # the script has failed after its last step
    launcher.release_spares()
    assert released == [2]


def test_a_worker_that_is_about_to_end_is_in_no_new_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = Worlds(tmp_path, monkeypatch, fresh=False, came=True, steps=True)
    first = worlds.launcher.places[0]
    first.view = replace(first.view, fading=True)
    worlds.run(FADE - 0.1)
    assert len(worlds.formed) == 1  # when it is known how it ended, more may follow from that
    monkeypatch.setattr(module, "open_world", lambda *about: about[2])
    assert worlds.launcher.open("begin") == cast(Any, {HERE: {1: 1}})
    worlds.run(0.2)
    assert len(worlds.formed) > 1  # its memory may take for ever


def test_that_nobody_is_left_is_said_though_nobody_is_left_to_halt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    launcher = watched.launcher
    watched.look(0)
    monkeypatch.setattr(launcher.reach, "has", lambda _: True)
    monkeypatch.setattr(launcher.reach, "look", list)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: watched.now, sleep=lambda _: None))
    launcher.places[1] = Place(1, HERE, View(1, status=-9), dead=True, due=(9, 1e9))
    launcher.places[0].view = replace(launcher.places[0].view, status=None)

    def look() -> None:
        launcher.places[0].view = replace(launcher.places[0].view, status=-9)

    monkeypatch.setattr(launcher, "look", look)
    assert launcher.watch() == 1
    assert any("all workers that had the state are dead" in said for said in watched.said)


def test_a_courier_that_comes_for_a_dead_worker_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = list[int]()
    monkeypatch.setattr(agent, "kill", killed.append)
    segment = {"courier": 7, "over": 0}
    rank = Seat(0, cast(Any, segment))
    Agent._end_courier(rank)
    assert killed == []
    rank.status = -9
    for process in (7, 7, 0, 8, 8):
        segment["courier"] = process
        Agent._end_courier(rank)
    assert [one for one in killed if one] == [7, 8]  # each once: its number may soon be another's


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([(0, True, True), (0, True, True)], 0),
        ([(0, True, True), (-9, True, True)], 0),  # a death after the last step
        ([(0, True, True), (3, True, True)], 1),  # the script fails after it
        ([(0, True, False), (0, True, False)], 1),  # they left in the middle
        ([(0, False, False), (0, False, False)], 0),  # a script that has no job
        ([(-9, True, False), (0, True, False)], 1),
    ],
)
def test_a_run_is_done_when_its_last_step_is(ends: list[tuple[int, bool, bool]], status: int) -> None:
    views = [View(rank, status=how, ready=ready, over=over) for rank, (how, ready, over) in enumerate(ends)]
    assert outcome(views, -1, "") == status


def test_one_that_is_about_to_end_is_not_dead_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows may be a restart from the checkpoint, so nothing is given up before; but nothing is asked of it."""
    watched = Watched(tmp_path, monkeypatch)
    launcher = watched.launcher
    watched.look(0, 0)
    for place in launcher.places.values():
        place.view = replace(place.view, fading=True, still=STOPPED)
    launcher.mind_size()
    launcher.mind_hangs()
    assert not launcher.halting and watched.killed == []
    launcher.places[1].view = replace(launcher.places[1].view, fading=False)
    launcher.halting = "asked to"
    launcher.halt()
    assert launcher._writer == 1
