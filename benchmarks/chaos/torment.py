"""Strikes the run, waits until it has recovered, and strikes again; a run that does not recover is helped up."""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

from bed import Bed
from keeper import Keeper
from strikes import STRIKES, Scene, Strike

from meshmend.base.processes import kill
from meshmend.job.shm.inspect import Member
from meshmend.telemetry import UNKNOWN, Log, Struck

DEADLINE = 240.0
"""Seconds until a run that does not recover, or that nothing can strike, is stuck."""
AGAIN = 2
"""Steps that a run has to do after a failure to be well again."""
LOOK = 0.02


@dataclass
class Tally:
    """What became of the strikes of one kind."""

    strikes: int = 0
    seconds: list[float] = field(default_factory=list)
    """How long each recovery took, from the end of the trouble to the second step after it."""
    stuck: int = 0


@dataclass
class Torment:
    """All strikes of one run."""

    bed: Bed
    keeper: Keeper
    kinds: list[str]
    failures: int
    dice: random.Random
    until: float
    """When to stop in any case."""
    whole: float = 0.3
    """How often to wait until all workers are back."""
    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    stuck: list[str] = field(default_factory=list)
    """What could not be recovered from, in words."""

    @property
    def struck(self) -> int:
        """Failures so far."""
        return sum(one.strikes for one in self.tallies.values())

    def run(self) -> None:
        """Until there were enough, or the run or the time is over."""
        weights = [STRIKES[kind].weight for kind in self.kinds]
        began = time.monotonic()
        while self.struck < self.failures and self.keeper.is_alive() and time.monotonic() < self.until:
            kind = STRIKES[self.dice.choices(self.kinds, weights)[0]]
            scene = self._await_victim(kind)
            if scene is not None:
                self._strike(kind, scene)
                print(
                    f"{time.monotonic() - began:7.1f} s  {self.struck:4}  {kind.name:12} worker {scene.victim.rank}  "
                    f"step {scene.victim.step:7}  recovered in {(self.tallies[kind.name].seconds or [0.0])[-1]:.2f} s",
                    flush=True,
                )

    def _await_victim(self, kind: Strike) -> Scene | None:
        """A member to strike, as soon as enough are there for the run to survive it."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until and self.keeper.is_alive():
            left = [one for one in self._seen() if one.active and one.alive]
            if len(left) >= kind.members and all(one.has_courier for one in left):
                host = self.dice.choice(self.bed.far or self.bed.hosts)
                scene = Scene(self.bed, self.keeper, self.dice, self.dice.choice(left), host)
                if kind.can(scene) and self._has_copies(left, scene.victim):
                    return scene
            time.sleep(LOOK)
        if self.keeper.is_alive():
            self._help(f"nothing could be struck by {kind.name!r} for {DEADLINE:.0f} s")
        return None

    def _has_copies(self, left: list[Member], victim: Member) -> bool:
        """Whether others hold all slices that the victim holds: with one buddy, nothing could save them otherwise.

        True where updates are not sharded: nobody holds any then.
        """
        held = self.bed.held()
        others = frozenset[int]().union(*(held.get(one.rank, frozenset()) for one in left if one.rank != victim.rank))
        return held.get(victim.rank, frozenset()) <= others

    def _strike(self, kind: Strike, scene: Scene) -> None:
        tally, victim = self.tallies[kind.name], scene.victim
        rank, process = (victim.rank, victim.worker) if kind.of_rank else (UNKNOWN, 0)
        struck = Struck(
            epoch=victim.epoch, what=kind.part, fault=kind.name, rank=rank, process=process, step=victim.step
        )
        log = Log(self.bed.run, "chaos")
        log.write(struck)
        log.close()
        tally.strikes += 1
        with contextlib.suppress(OSError):  # what was to be struck is gone by itself
            kind.strike(scene)
        began = time.monotonic()
        everybody = self.dice.random() < self.whole
        if self._recovers(kind, scene, everybody):
            tally.seconds.append(time.monotonic() - began)
        else:
            tally.stuck += 1
            lacks = "two steps with all workers back" if everybody else "two steps"
            self._help(f"not {lacks} within {DEADLINE:.0f} s after {kind.name!r} at step {victim.step}")

    def _recovers(self, kind: Strike, scene: Scene, everybody: bool) -> bool:
        """Wait until it is seen to do steps again; sometimes until everybody is back, so that it is whole again."""
        until = time.monotonic() + DEADLINE
        marks = {scene.victim.epoch.attempt: self._mark(scene.victim.step)}
        while time.monotonic() < until and self.keeper.is_alive():
            working = [one for one in self._seen() if one.active and one.alive and one.has_courier]
            if working and kind.ends(scene):
                first = max(working, key=lambda one: (one.epoch.attempt, one.step))
                mark = marks.setdefault(first.epoch.attempt, first.step)
                if first.step >= mark + AGAIN and (not everybody or len(working) >= self.bed.workers):
                    return True
            time.sleep(LOOK)
        return not self.keeper.is_alive()

    def _mark(self, step: int) -> int:
        """The newest step that anybody is in."""
        return max([step, *(one.step for one in self._seen() if one.alive)])

    def _seen(self) -> list[Member]:
        try:
            return self.bed.members()
        except OSError:
            return []  # it is just being removed

    def _help(self, why: str) -> None:
        """Say that it is stuck, and have everything end: the keeper resumes it from its last checkpoint."""
        print(f"STUCK: {why}", flush=True)
        self.stuck.append(why)
        for member in self._seen():
            print(f"  {member}")
        with contextlib.suppress(OSError):
            print("  " + "  ".join(self.keeper.log.read_text(errors="replace").splitlines(keepends=True)[-15:]))
        for process in self.bed.processes():
            kill(process)
