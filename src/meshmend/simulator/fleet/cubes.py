"""A machine of cubes for a month: cubes with a dead host left out, or used.

TPU v4, v5p and TPU7x are built of cubes of 4x4x4 chips, 16 hosts each, that optical switches join. Google counts a cube
with a dead host as lost and plans with 130 healthy cubes of the 144 of a TPU7x pod, for 95 % confidence (blog of May
2026). Trees around the hole need no whole cubes. Rules:

    130 cubes     the job has that many healthy cubes; the others stand by and take the place of one that loses a host
    all healthy   the job has all healthy cubes there are, and restarts with one more or less
    reload        all cubes, dead hosts routed around; restart from the last checkpoint at a failure (sharded state)
    route         all cubes, dead hosts routed around, continuing with the state that the live chips hold

Assumed, besides what `policies.py` says: hosts fail alone and independently, links and switches do not. In favour of
the rules that leave cubes out: any number of healthy cubes forms a torus that is as fast per chip as the whole machine,
and moving a cube costs nothing beyond the restart. A job's speed goes with the chips that it uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshmend.base.terminal import SILENT, Tell
from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.mesh.hole import BLOCKS_3D, Hole, Piece, count, dead, piece
from meshmend.mesh.planners import bound
from meshmend.mesh.planners.trees import reach
from meshmend.simulator.fleet.chip_hours import Account, Cause
from meshmend.simulator.fleet.history import Change, History, sample
from meshmend.simulator.fleet.policies import Costs
from meshmend.simulator.fleet.speeds import Step

SAMPLE = 2
"""Random holes of a number of dead hosts, of which the slower counts."""
NUMBERS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of dead hosts whose holes are solved; one in between counts as the next."""
Cube = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is watched, and for how long."""

    mesh: Mesh
    needed: int = 130
    """Healthy cubes of the first rule."""
    weeks: float = 4.0
    jobs: int = 40
    rate: float = 0.0008 / 24
    """Failures of a host per hour."""
    repair: float = 4.0
    """Mean hours until it works again."""
    costs: Costs
    step: Step
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.mesh.dims) != 3 or any(side % 4 for side in self.mesh.dims) or not self.mesh.intact:
            raise SimulateError(f"{self.mesh} is not built of whole cubes of 4x4x4: give one, such as tpu7x-pod")
        if not 1 <= self.needed <= self.cubes:
            raise SimulateError(f"{self.needed} cubes of {self.cubes}: give 1 to {self.cubes}")
        times = 0 < self.weeks < math.inf and 0 < self.repair < math.inf and 0 <= self.rate < math.inf
        if self.jobs < 1 or not times:
            raise SimulateError("give at least 1 job and times above 0")
        if self.seed < 0 or self.step.lanes < 0:
            raise SimulateError(f"seed={self.seed} and lanes={self.step.lanes}: expected whole numbers, 0 or more")

    @property
    def cubes(self) -> int:
        """How many there are."""
        return count(self.mesh, "cube")

    @property
    def hours(self) -> float:
        """How long each job is watched."""
        return 7 * 24 * self.weeks


@dataclass(frozen=True)
class Month:
    """What one rule made of all jobs."""

    rule: str
    goodputs: npt.NDArray[np.float64]
    """Useful over all chip-hours of the machine, job by job."""
    chips: float
    """Chips at work, on average over the time in which the job ran."""
    lost: dict[Cause, float]
    """The part of all chip-hours that went to each cause."""

    @property
    def goodput(self) -> float:
        """Over all jobs."""
        return float(self.goodputs.mean())

    @property
    def error(self) -> float:
        """The standard error of the goodput."""
        jobs = len(self.goodputs)
        return float(self.goodputs.std(ddof=1) / math.sqrt(jobs)) if jobs > 1 else math.inf


@dataclass(frozen=True)
class CubeStudy:
    """A machine, what became of it under each rule, and how many cubes were healthy."""

    machine: Machine
    months: tuple[Month, ...]
    failures: int
    healthy: tuple[int, float]
    """The number of cubes that were healthy at least 95 % of the time, and the part of it in which `needed` were."""
    relative: float
    """The lowest algbw around holes that occurred, over that of the intact machine."""


def cube_of(piece: Piece) -> Cube:
    """The cube that a failure lies in."""
    return tuple(at // side for at, side in zip(piece.begin, BLOCKS_3D["cube"], strict=True))


class Speeds:
    """The speed of the whole machine around its dead hosts: by their number, each found once."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self._known = machine, {0: 1.0}
        self._whole = reach(bound(machine.mesh).value)

    def relative(self, hosts: int) -> float:
        """The algbw around so many dead hosts, over that of the intact machine: the lowest of some random holes."""
        total = count(self.machine.mesh, "host")
        if hosts == total:
            return 0.0
        hosts = next((number for number in NUMBERS if hosts <= number < total), hosts) if hosts else 0
        if hosts not in self._known:
            mesh, random = self.machine.mesh, np.random.default_rng([self.machine.seed, hosts])
            found = []
            for _ in range(SAMPLE):
                which = random.choice(total, hosts, replace=False).tolist()
                around = mesh.fail(chips=dead(mesh, [piece(mesh, "host", number) for number in which])[0])
                found.append(reach(bound(around.largest()).value) / self._whole)
            self._known[hosts] = min(found)
        return self._known[hosts]

    def of(self, hole: Hole) -> float:
        """Steps per hour around a hole; healthy is 1."""
        chips = self.machine.mesh.size
        return self.machine.step.speed(chips, chips - len(dead(self.machine.mesh, hole)[0]), self.relative(len(hole)))

    @property
    def lowest(self) -> float:
        """The lowest relative algbw that was asked for."""
        return min(self._known.values())


class Rule:
    """One job: told of each change, in charge of its account."""

    def __init__(self, machine: Machine, speeds: Speeds, account: Account) -> None:
        self.machine, self.speeds, self.account = machine, speeds, account
        self.every = math.inf if not machine.rate else 1 / (machine.rate * count(machine.mesh, "host"))
        self.begin()

    def begin(self) -> None:
        """Before the first change."""

    def change(self, change: Change) -> None:
        """A host failed, or works again; the account stands at that time."""
        raise NotImplementedError

    def restart(self, speed: float, *, failed: bool) -> None:
        """From the last checkpoint after a failure, else from one that is written first; speed 0 waits."""
        costs = self.machine.costs
        first = (
            (Cause.DETECT, costs.detect) if failed else (Cause.CHECKPOINT, costs.checkpoint * bool(self.account.speed))
        )
        if failed:
            self.account.rollback()
        elif not first[1]:
            self.account.saved()
        self.account.speed = speed
        self.account.pause(first, *([(Cause.RESTART, costs.restart)] if speed else []))

    def sick(self, change: Change) -> set[Cube]:
        """Cubes with a dead host."""
        return {cube_of(piece) for piece in change.hole}


class Needed(Rule):
    """So many healthy cubes, the others stand by."""

    def begin(self) -> None:
        rows, cols, layers = (side // 4 for side in self.machine.mesh.dims)
        self.all = {(row, col, layer) for row in range(rows) for col in range(cols) for layer in range(layers)}
        self.used = set(sorted(self.all)[: self.machine.needed])
        self.account.speed = self.machine.needed / self.machine.cubes

    def change(self, change: Change) -> None:
        healthy = self.all - self.sick(change)
        enough = len(healthy) >= self.machine.needed
        speed = self.machine.needed / self.machine.cubes if enough else 0.0
        if change.failed and cube_of(change.piece) in self.used:
            spare = sorted(healthy - self.used)
            kept = self.used & healthy
            self.used = kept | set(spare[: self.machine.needed - len(kept)])
            self.restart(speed, failed=True)
        elif not change.failed and not self.account.speed and enough:
            self.used = set(sorted(healthy)[: self.machine.needed])
            self.restart(speed, failed=False)


class AllHealthy(Rule):
    """All healthy cubes there are."""

    def begin(self) -> None:
        self.out: set[Cube] = set()

    def change(self, change: Change) -> None:
        sick, cubes = self.sick(change), self.machine.cubes
        if change.failed and cube_of(change.piece) not in self.out:
            self.out = sick
            self.restart(1 - len(sick) / cubes, failed=True)
        elif not change.failed and sick < self.out:
            gain = (len(self.out) - len(sick)) / cubes
            pause = self.machine.costs.restart + self.machine.costs.checkpoint
            if gain * self.every > pause * self.account.speed:
                self.out = sick
                self.restart(1 - len(sick) / cubes, failed=False)


class Reload(Rule):
    """All cubes, around dead hosts, from the last checkpoint."""

    def change(self, change: Change) -> None:
        speed = self.speeds.of(change.hole)
        pause = self.machine.costs.restart + self.machine.costs.checkpoint
        if change.failed or (speed - self.account.speed) * self.every > pause * self.account.speed:
            self.restart(speed, failed=change.failed)


class Route(Rule):
    """All cubes, around dead hosts, with the state that lives."""

    def change(self, change: Change) -> None:
        costs = self.machine.costs
        noticing = (Cause.DETECT, costs.detect) if change.failed else self.account.left(Cause.DETECT)
        self.account.speed = self.speeds.of(change.hole)
        self.account.pause(noticing, (Cause.REROUTE, costs.reroute))


def rules(needed: int) -> dict[str, Callable[[Machine, Speeds, Account], Rule]]:
    """Every rule by name."""
    return {f"{needed} cubes": Needed, "all healthy": AllHealthy, "reload": Reload, "route": Route}


def study(machine: Machine, tell: Tell = SILENT) -> CubeStudy:
    """Every job under every rule; all rules see the same failures."""
    rate, repair = {"host": machine.rate}, {"host": machine.repair}
    histories = [sample(machine.mesh, machine.hours, rate, repair, machine.seed, job) for job in range(machine.jobs)]
    speeds, months = Speeds(machine), []
    for name, rule in rules(machine.needed).items():
        useful, chips, lost = [], [], dict.fromkeys(Cause, 0.0)
        whole = machine.mesh.size * machine.hours
        for job, history in enumerate(histories):
            account = Account(machine.mesh.size, machine.costs.interval, machine.costs.checkpoint, trace=True)
            _follow(rule(machine, speeds, account), history)
            useful.append(account.useful / whole)
            spans = [
                (stretch.end - stretch.begin, stretch.speed) for stretch in account.stretches or () if stretch.speed
            ]
            chips.append(machine.mesh.size * sum(hours * speed for hours, speed in spans) / sum(h for h, _ in spans))
            for cause, hours in account.lost.items():
                lost[cause] += hours / whole / machine.jobs
            tell(f"running {name}", job + 1, machine.jobs)
        months.append(Month(name, np.array(useful), float(np.mean(chips)), lost))
    return CubeStudy(
        machine, tuple(months), sum(history.failures for history in histories), _healthy(machine, histories),
        speeds.lowest,
    )  # fmt: skip


def _follow(rule: Rule, history: History) -> None:
    for change in history.changes:
        rule.account.run(change.time)
        rule.change(change)
    rule.account.run(history.hours)


def _healthy(machine: Machine, histories: list[History]) -> tuple[int, float]:
    hours = np.zeros(machine.cubes + 1)
    for history in histories:
        spans = history.spans()
        hours[machine.cubes] += history.hours - sum(lasts for _, lasts in spans)
        for hole, lasts in spans:
            hours[machine.cubes - len({cube_of(piece) for piece in hole})] += lasts
    at_least = hours[::-1].cumsum()[::-1] / hours.sum()
    return int(np.flatnonzero(at_least >= 0.95).max()), float(at_least[machine.needed])
