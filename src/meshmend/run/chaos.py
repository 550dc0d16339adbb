"""`meshmend chaos`: injects random failures into a run on this host, to show that it survives."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence

from meshmend.base.clocks import AGENT_POLL, CHAOS_SETTLE
from meshmend.base.processes import is_alive
from meshmend.base.units import plural
from meshmend.errors import JobError
from meshmend.job.faults import KINDS, FaultKind, Target, chaos_kinds
from meshmend.job.shm import open_to_read
from meshmend.job.shm.inspect import Member, member, members
from meshmend.run.spec import load_spec
from meshmend.telemetry import UNKNOWN, Component, Ended, Log, SingleCopies, Struck, folder_of, follow, read
from meshmend.telemetry.epoch import FIRST, Epoch


def inject_failures(run: str, *, every: float, kinds: Sequence[str], count: int | None, seed: int) -> int:
    """Inject failures until the run ends, or `count` of them; return 0 if the run is still alive or succeeded."""
    known = chaos_kinds()
    if not kinds or not set(kinds) <= set(known) or every <= 0:
        raise JobError(
            f"--kinds {','.join(kinds)} --every {every}: choose from {', '.join(known)}, and seconds above 0"
        )
    load_spec(run)
    if not members(run):
        raise JobError(f"run {run!r} has no workers on this host: start it first, and run chaos while it trains")
    dice, log, struck = random.Random(seed), Log(folder_of(run), "chaos"), 0
    victims, copies = set[int](), Copies(run)
    next_ = time.monotonic() + dice.expovariate(1 / every)
    while (count is None or struck < count) and members(run):
        time.sleep(AGENT_POLL)
        if time.monotonic() < next_:
            continue
        kind = KINDS[dice.choice(list(kinds))]
        victim = _strike(run, kind, dice, log, victims, copies)
        if victim is None:
            continue  # no worker can be struck right now
        struck += 1
        print(f"chaos {struck}: {kind.name}" + ("" if kind.of_run else f" of worker {victim.rank}"), flush=True)
        if kind.settles:
            _await_end(victim, victim.agent if kind.part in (Component.LAUNCHER, Component.AGENT) else victim.worker)
        next_ = time.monotonic() + dice.expovariate(1 / every)
    ends = [event for event in read(folder_of(run), "launcher") if isinstance(event, Ended)]
    print(
        f"chaos: {plural(struck, 'failure')}" + (f", and the run ended with status {ends[-1].status}" if ends else "")
    )
    return ends[-1].status if ends else 0


class Copies:
    """Whether a run would survive another death, if no worker of it holds all of its state.

    Then the workers that hold the same slice must not all die before the slice has been copied again.
    """

    def __init__(self, run: str) -> None:
        self._run, self._events = run, follow(folder_of(run), damaged=lambda _: None)
        self._newest: tuple[Epoch, int, int] = FIRST, -1, 0
        """Since when so many slices have one copy alone: an epoch, a round, and their number."""
        self._divided = False
        self._step = 0
        """From this step on, events tell what the last failure has left."""

    def suffice(self, left: Sequence[Member]) -> bool:
        """Whether every slice has two copies at least."""
        for event in self._events.stream():
            if isinstance(event, SingleCopies):
                self._divided = True
                self._newest = max(self._newest, (event.epoch, event.round, event.slices))
        return not self._divided or (not self._newest[-1] and all(one.step >= self._step for one in left))

    def failed(self, left: Sequence[Member]) -> None:
        """A failure was injected just now."""
        self._step = 2 + max(one.step for one in left)
        with contextlib.suppress(JobError):
            self._divided = self._divided or any(open_to_read(self._run, one.rank).worker.buddies for one in left)


def _strike(
    run: str, kind: FaultKind, dice: random.Random, log: Log, victims: set[int], copies: Copies
) -> Member | None:
    """Strike a member that has not been struck yet; None if too few are left to survive that."""
    left = [one for one in members(run) if one.active and one.alive and one.worker not in victims]
    if len(left) < kind.members or not all(one.has_courier for one in left) or not copies.suffice(left):
        return None
    victim = dice.choice(left)
    rank, process = (UNKNOWN, 0) if kind.of_run else (victim.rank, victim.worker)
    log.write(Struck(epoch=victim.epoch, what=kind.part, fault=kind.name, rank=rank, process=process, step=victim.step))
    if not kind.of_run:
        victims.add(victim.worker)
    assert kind.outside is not None, "only such kinds were accepted"
    copies.failed(left)
    kind.outside(Target(run, victim.rank, victim.worker, victim.courier, victim.mpirun, victim.agent, victim.agent))
    return victim


def _await_end(victim: Member, process: int) -> None:
    """Wait until the run has detected a worker with a wrong state, or until another launcher has taken over.

    Until then, further failures could turn a wrong state into the majority, or go unnoticed.
    """
    deadline = time.monotonic() + CHAOS_SETTLE
    while time.monotonic() < deadline:
        found = member(victim.run, victim.rank)
        if found is None or process not in (found.worker, found.agent) or not is_alive(process):
            return
        time.sleep(AGENT_POLL)
