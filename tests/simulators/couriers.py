"""Couriers: the real `run_member` over the fake ULFM, with what `job/courier/courier.py` does around it; and mpirun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshmend.base.clocks import COURIER_LOOK
from meshmend.job.protocol import (
    Cut,
    Divergence,
    Enlist,
    Evicted,
    Failure,
    Gather,
    Lost,
    MemberState,
    Operation,
    Payload,
    Revoke,
    Shrink,
    Wait,
    Work,
    run_member,
)
from tests.simulators.ledger import Violation
from tests.simulators.ulfm import Group, Member, Sum, Ulfm

if TYPE_CHECKING:
    from tests.simulators.hosts import Host
    from tests.simulators.model import Model
    from tests.simulators.workers import Worker

ORDERS = float("-inf")
"""`Worker.repairing` of one that waits for orders: it looks stuck at once."""


class Courier(Member):
    """One process of an mpirun."""

    def __init__(self, mpirun: Mpirun, rank: int, host: Host) -> None:
        super().__init__(MemberState(rank), steps=None, world=Group(0, ()))  # type: ignore[arg-type]
        self.mpirun, self.rank, self.host, self.model = mpirun, rank, host, mpirun.model
        self.worker: Worker | None = None
        self.alive, self.left, self.inside, self.waits = True, False, False, False
        self.seen_dead_at = 0.0
        """When others can notice: a process that dies is noticed at once, one on a host that dies later."""
        self.believes_dead: set[Courier] = set()
        """Those behind a broken network."""
        self.shrink = 0
        self.stopped: float | None = None
        """Since when."""
        self._stops = 0
        self._woken = False

    def come_up(self) -> None:
        """Find the worker's memory, and wait until this world is entered."""
        if not self.alive:
            return
        if self.host.frozen:
            self.model.clock.after(self.host.frozen, self.come_up)
            return
        self.worker = self.host.segments.get(self.rank)
        if self.worker is None:
            self.die()
            return
        self.worker.standby = max(self.worker.standby, self.mpirun.number)
        self.model.changed()
        self.model.moved()
        self.wake()

    def stop(self, seconds: float = 0.0) -> None:
        """SIGSTOP, and SIGCONT after so long; 0: never."""
        self._stops += 1
        self.stopped = self.model.clock.now if self.stopped is None else self.stopped
        self.model.clock.after(3 * COURIER_LOOK, self.model.changed)
        if seconds:
            self.model.clock.after(seconds, self._continue, self._stops)

    def _continue(self, stops: int) -> None:
        if stops == self._stops:
            self.stopped = None
            self.wake()
            self.model.changed()

    def wake(self) -> None:
        """Something changed."""
        if not self._woken and self.alive and self.stopped is None:
            self._woken = True
            self.model.clock.after(self.model.dice.uniform(0.0002, 0.002), self._move)

    def _move(self) -> None:
        self._woken = False
        worker = self.worker
        if not self.alive or worker is None or self.stopped is not None:
            return
        if self.waits:
            if not self.mpirun.daemons[self.host.name]:
                self.die()
        elif not self.inside:
            self._enter(worker)
        elif self.memory is not worker.memory:
            self.die()  # its worker was let go, and is in the next job: nobody may wait for this one
        elif isinstance(self.operation, Work) and worker.exiting and worker.answered != worker.asked:
            self.die()
        elif self.model.net.progress(self):
            self.model.moved()
            for other in self.mpirun.couriers:
                other.wake()

    def _enter(self, worker: Worker) -> None:
        if worker.world < self.mpirun.number:
            return
        if worker.world > self.mpirun.number:
            self.die()
            return
        worker.courier, worker.daemon, worker.shrink = self, self.mpirun, 0
        if worker.ready and worker.job == worker.world_job:
            self.inside, self.memory = True, worker.memory
            worker.afresh = worker.afresh or not (worker.fresh or self.mpirun.repair)
            hosts = [list(ranks) for ranks in self.mpirun.members.values()]
            lanes = self.model.case.lanes
            self.steps = run_member(
                self.memory, lanes, min(worker.wanted, lanes), attempt=worker.attempt, world=self.mpirun.number,
                fresh=worker.fresh, repair=self.mpirun.repair, hosts=hosts,
            )  # fmt: skip
            self.model.net.advance(self, None)
            self.wake()

    def before(self, operation: Operation) -> None:
        """As `Courier.before`: note since when a repair is under way, and do not repair without a parent."""
        assert self.worker is not None
        repairs = isinstance(operation, (Revoke, Shrink, Gather, Enlist))
        self.worker.repairing = self.model.clock.now if repairs else None
        if isinstance(operation, Enlist):
            self.shrink = self.worker.shrink = operation.shrink
        if repairs and not self.mpirun.daemons[self.host.name]:
            self.die()
        if isinstance(operation, (Work, Wait)) and self.worker.agreed != self.worker.world:
            self.worker.agreed = self.worker.world
            self.model.changed()

    def wait_for_orders(self) -> None:
        """As `Courier.wait_for_orders`."""
        assert self.worker is not None
        self.waits, self.worker.repairing = True, ORDERS
        self.model.changed()

    def leave(self) -> None:
        """The job is over."""
        assert self.worker is not None
        self.worker.finished, self.left = True, True
        self.worker.poke()
        self.model.note("courier leaves", self.rank)
        self.die()

    def die(self, seconds: float = 0.0) -> None:
        """End; others can notice after so long."""
        if not self.alive:
            return
        self.alive, self.seen_dead_at = False, self.model.clock.now + seconds
        self.model.note("courier dies", self.mpirun.number, self.rank)
        self.model.clock.after(seconds, self._noticed)
        self.model.changed()
        self.mpirun.courier_ended()

    def _noticed(self) -> None:
        for other in self.mpirun.couriers:
            other.wake()


class Net(Ulfm):
    """MPI between the couriers of a run."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.dice, model.case.lanes)
        self.model = model

    def advance(self, member: Member, result: Any, failure: Failure | None = None) -> None:
        assert isinstance(member, Courier) and member.worker is not None
        try:
            member.operation = member.steps.throw(failure) if failure else member.steps.send(result)
            member.entered = False
            member.before(member.operation)
        except StopIteration:
            member.leave()
        except Evicted as error:
            self.model.note("evicted", member.rank, str(error))
            member.worker.kill()
            member.die()
        except Cut as error:
            self.model.note("cut", member.rank, str(error))
            member.wait_for_orders()
        except (Failure, Lost) as error:
            self.model.note(type(error).__name__, member.rank)
            member.die()
        except Divergence as error:
            raise Violation(f"worker {member.rank}: {error}") from error

    def looks_alive(self, member: Member, other: Member) -> bool:
        assert isinstance(member, Courier) and isinstance(other, Courier)
        if other in member.believes_dead:
            return False
        if other.alive or (other.left and not self.model.leavers_look_dead):
            return True
        if member.mpirun.stopped is not None and other.seen_dead_at > member.mpirun.stopped:
            return True  # mpirun would have to tell
        if other.host is member.host:
            return False
        return other.seen_dead_at > self.model.clock.now or not self.reaches(member, other)

    def reaches(self, member: Member, other: Member) -> bool:
        assert isinstance(member, Courier) and isinstance(other, Courier)
        return member.host.side == other.host.side

    def work(self, member: Member, work: Work) -> bool:
        assert isinstance(member, Courier) and member.worker is not None
        worker = member.worker
        if not member.entered:
            member.entered = True
            worker.ask(work.round.number, work.lanes)
            return True
        ready = worker.answered == worker.asked
        broken = self.is_revoked(member, member.world) or self.is_broken(member, member.world)
        if broken and (not ready or self.dice.random() < 0.5):
            return self.fail(member)
        return self.give(member) if ready else False

    def wait(self, member: Member) -> bool:
        assert isinstance(member, Courier) and member.worker is not None
        if member.worker.over:
            return self.give(member)
        if self.is_revoked(member, member.world) or self.is_broken(member, member.world):
            return self.fail(member)
        return False

    def part(self, member: Member) -> tuple[dict[int, int], int, bool, bool]:
        assert isinstance(member, Courier) and member.worker is not None
        return member.worker.part

    def cargo(self, member: Member, what: Payload) -> Any:
        assert isinstance(member, Courier) and member.worker is not None
        if what is Payload.TOTAL:
            return member.worker.total[member.memory.done]
        return member.worker.state_for_others()

    def take(self, member: Member, what: Payload, cargo: Any) -> None:
        assert isinstance(member, Courier) and member.worker is not None
        if what is Payload.TOTAL:
            member.worker.keep(cargo, member.mpirun.number, member.shrink)
        else:
            member.worker.given = cargo
        member.worker.poke()

    def keep(self, member: Member, total: Sum) -> None:
        assert isinstance(member, Courier) and member.worker is not None
        member.worker.keep(total, member.mpirun.number, member.shrink)
        member.worker.poke()


class Mpirun:
    """One mpirun, its daemon on each host, and its couriers."""

    def __init__(self, model: Model, number: int, members: Mapping[str, Mapping[int, int]], *, repair: bool) -> None:
        self.model, self.number, self.members, self.repair = model, number, members, repair
        self.alive = True
        self.stopped: float | None = None
        """Since when."""
        self.daemons = dict.fromkeys(members, True)
        self.couriers = [Courier(self, rank, model.hosts[host]) for host, ranks in members.items() for rank in ranks]
        group = model.net.group(self.couriers)
        for courier in self.couriers:
            courier.world = group
        self._open()

    def _open(self) -> None:
        model, dice = self.model, self.model.dice
        for name in self.members:
            host = model.hosts[name]
            if not host.up or host.side != model.side:
                self.daemons[name] = False
                if dice.random() < 0.5:
                    model.clock.after(dice.uniform(0.3, 3.0), self.die)  # no route; otherwise it waits for ever
                return
        stalled = [host for host in self.members if model.clock.now < model.hosts[host].stalled_until]
        for courier in self.couriers:
            if not stalled or (courier.host.name not in stalled and dice.random() < 0.5):
                model.clock.after(model.case.open * dice.uniform(0.5, 1.5), courier.come_up)

    def stop(self) -> None:
        """SIGSTOP: it tells nobody anything any more."""
        if self.alive and self.stopped is None:
            self.stopped = self.model.clock.now
            self.model.clock.after(3 * COURIER_LOOK, self.model.changed)

    def continue_(self) -> None:
        """SIGCONT: it tells what it knows."""
        self.stopped = None
        for courier in self.couriers:
            courier.wake()
        self.model.changed()

    def courier_ended(self) -> None:
        """mpirun ends after its last courier."""
        if self.alive and not any(courier.alive for courier in self.couriers):
            self.model.clock.after(0.005, self.die)

    def die(self) -> None:
        """Killed, or ended: daemons notice and end with their couriers."""
        if not self.alive:
            return
        self.alive = False
        self.model.note("mpirun ends", self.number)
        model, dice = self.model, self.model.dice
        for name in self.daemons:
            host = model.hosts[name]
            if host.here:
                self.end_daemon(name)
            else:
                seconds = dice.uniform(0.005, 0.1) if host.side == model.side else dice.uniform(1.0, 25.0)
                model.clock.after(seconds, self.end_daemon, name)
        model.changed()

    def end_daemon(self, name: str) -> None:
        """Without their daemon, couriers end one by one."""
        if self.model.hosts[name].frozen:
            self.model.clock.after(self.model.hosts[name].frozen, self.end_daemon, name)
            return
        if self.daemons[name]:
            self.daemons[name] = False
        for courier in self.couriers:
            if courier.host.name == name and courier.alive:
                self.model.clock.after(self.model.dice.uniform(0.001, 0.03), courier.die)
                courier.wake()
