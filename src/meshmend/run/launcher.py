"""`meshmend run`: has agents start workers, forms worlds of couriers over them, and decides what follows a death.

* A worker dies: its courier ends with it, so that MPI tells the other couriers, and they go on in the same step.
* A courier dies: its worker is ended with it. A spare or a newcomer takes its place.
* A worker stands still and others do not: it is ended.
* mpirun dies, a repair takes too long, or newcomers are ready: a new world of couriers under the living workers.
* A host is lost: the same, if most of the members are still there.
* The network falls in two, and agents still answer from both halves: the workers of the smaller half are ended.

The launcher keeps nothing that a run needs: when it is killed, workers wait, and another one takes over (`attach`).
"""

from __future__ import annotations

import shlex
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from meshmend.errors import JobError
from meshmend.job.protocol.protocol import has_majority
from meshmend.job.session import HALTED
from meshmend.job.state.safetensors import latest
from meshmend.run.agent.agent import LOOK, REPAIR, Agent, View
from meshmend.run.console import Console, join_words
from meshmend.run.hosts.hosts import spread
from meshmend.run.hosts.pool import Pool
from meshmend.run.hosts.remote import Remote
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor.attempts import Attempts
from meshmend.run.supervisor.exit_status import outcome
from meshmend.run.supervisor.hangs import Judge
from meshmend.run.supervisor.place import Place
from meshmend.run.world.world import START, World, open_world, output_of, why_none
from meshmend.telemetry import UNKNOWN, Began, Died, Ended, Epoch, Event, Formed, How, Log, Part, Started, Why

RESTARTS = 3
"""How often a worker is started again that dies before it takes part, and a run that does not come further."""
STANDSTILL = 1800.0
"""Seconds that all workers may stand still: what they wait for may come, or it is a deadlock, and nobody can tell."""
HEAD_START = 1.0
"""Seconds in which those that live do the interrupted step, before another worker is started beside them."""
SETTLE = 0.1
"""Seconds after which it is clear whether one courier died or their whole world (mpirun ends them one by one)."""
FADE = 2.0
"""Seconds that a dying worker may take to give back its memory before others are done with it."""
STATELESS = "it had no state to go on from"
UNBEGUN = "it had not opened its job yet"
HOW = {
    "hang": How.HANG,
    "lost its courier": How.COURIER_LOST,
    "cut off from most": How.CUT_OFF,
    "halted": How.HALTED,
    "restarted": How.RESTARTED,
    "its rank was started anew": How.RESTARTED,
}
"""What an agent was told to kill a worker for."""
HALT = 60.0
"""Seconds that workers may take to end; one that writes a checkpoint by then may take as long as that takes."""
FEW = 4
"""Hosts that a message names one by one."""


@dataclass
class Launcher:
    """One run."""

    order: RunSpec
    attempt: int = 0
    resume: str = ""
    places: dict[int, Place] = field(default_factory=dict)
    world: World | None = None
    next: World | None = None
    """One that is being made ready."""
    worlds: int = 0
    fresh: bool = True
    """Nobody in this attempt has had the state yet."""
    halting: str = ""
    """Why the run is being halted."""
    signal: int = 0
    speaker: Console = field(default_factory=Console)
    _halted: float = 0.0
    _why: str = ""
    """Why the next world is formed."""
    _unsure: set[int] = field(default_factory=set)
    """Members that cannot be reached, until the others have agreed to go on without them."""
    _writer: int = -1
    """The rank that writes the last checkpoint."""
    _eager: bool = True
    """The next world need not wait for its newcomers to be ready: the last one was not made in vain."""
    _up: float = 0.0
    """When all couriers of the world were seen to be there."""
    _fading: float = 0.0
    """Since when somebody has been about to end."""
    _attached: bool = False
    """This launcher has taken over, and has formed no world yet."""
    _entered: int = 0
    """The last world that was let in in this attempt."""
    _reason: Why = Why.BEGIN
    """Why the next world is formed, for its event."""
    _joined: list[int] = field(default_factory=list)
    """The ranks that join in it."""
    _stale: int = 0
    """Lives that did not come further, one after another."""

    def __post_init__(self) -> None:
        self.log = Log(self.order.folder, "launcher")
        self.reach = Pool(self.order)
        self.judge = Judge()
        self.attempts = Attempts()

    @property
    def agents(self) -> Mapping[str, Agent | Remote]:
        """An agent for every host that is there."""
        return self.reach.agents

    @property
    def epoch(self) -> Epoch:
        """The epoch as far as the launcher knows it; what the couriers do in a world, it does not see."""
        return Epoch(self.attempt, self.world.number if self.world is not None else self._entered)

    def note(self, event: Event) -> None:
        """Write an event."""
        self.log.write(event)

    def death(self, place: Place) -> Died:
        """The event of a worker's death."""
        view = place.view
        member = view.agreed > 0 or (self.world is not None and self.world.has(place.number, view.process))
        how, value = HOW.get(view.how), 0
        if how is None:
            status = view.status or 0
            how, value = (How.SIGNAL, -status) if status < 0 else (How.EXIT, status)
        steps = [view.step] if member else [one.view.step for one in self.active()]
        return Died(
            epoch=Epoch(self.attempt, view.world, view.shrink) if member else self.epoch,
            what=Part.WORKER, how=how, value=value, rank=place.number, process=view.process,
            step=max(steps, default=UNKNOWN), member=member,
        )  # fmt: skip

    def begin(self, *, attached: bool = False, restarted: bool = False) -> None:
        """Start all workers that do not live already."""
        order = self.order
        self.note(
            Began(
                epoch=self.epoch, workers=order.workers, spares=order.spares, on_failure=order.on_failure,
                attached=attached, restarted=restarted,
            )
        )  # fmt: skip
        hosts = spread(order.places, order.ranks)
        self.places = {rank: Place(rank, host.name, View(rank)) for rank, host in enumerate(hosts)}
        self._attached = attached
        if attached:
            self.adopt(self.agents)
            self._unsure = {place.number for place in self.places.values() if not self.reach.has(place.host)}
        for place in self.places.values():
            if place.host in self.reach.lost:
                place.dead = True
            elif not attached or (place.view.process == 0 and self.reach.has(place.host)):
                self.start(place, self.resume)

    def adopt(self, hosts: Iterable[str]) -> None:
        """Have the agents of these hosts take over the workers that live there."""
        for host in hosts:
            agent = self.agents[host]
            agent.do("adopt", ranks=[place.number for place in self.places.values() if place.host == host])
            for view in agent.look():
                self.places[view.rank].see(view)
                self.worlds = max(self.worlds, view.world, view.standby)
                self._entered = max(self._entered, view.world)

    def start(self, place: Place, resume: str = "") -> None:
        """Start a worker."""
        order = self.order
        self.agents[place.host].do(
            "start", rank=place.number, wanted=order.workers, ranks=order.ranks, attempt=self.attempt, resume=resume,
            every=order.every, script=list(order.script),
        )  # fmt: skip
        place.dead = place.ending = False
        place.began = place.due = None
        self.look()
        self.note(Started(epoch=self.epoch, rank=place.number, process=place.view.process, host=place.host))

    def end(self, place: Place, how: str) -> None:
        """Kill a worker; what follows is an ordinary death."""
        if not place.ending:
            place.ending = True
            self.agents[place.host].do("end", rank=place.number, how=how)

    def living(self) -> list[Place]:
        """Places whose worker has not ended."""
        return [place for place in self.places.values() if place.alive]

    def present(self) -> list[Place]:
        """Places whose worker may be in a new world: it has not even begun to end."""
        return [place for place in self.living() if not place.view.fading]

    def active(self) -> list[Place]:
        """Places that hold the state."""
        return [place for place in self.living() if place.view.active]

    def over(self) -> bool:
        """Whether the last step is done: one is over only when all members have said that they leave."""
        return any(place.view.over for place in self.places.values())

    def look(self) -> None:
        """Hear from all agents."""
        for agent in self.agents.values():
            for view in agent.look():
                self.places[view.rank].see(view)
                self.fresh = self.fresh and not view.active
            for rank, line in agent.output():
                self.speaker.line(rank, line)

    def watch(self) -> int:
        """Until every worker has ended: the exit status."""
        while self.living():
            self.look()
            self.mind_hosts()
            for place in self.places.values():
                if not place.dead and place.view.status is not None and self.reach.has(place.host):
                    self.ended(place)
            if self.halting or self.signal:
                self.halt()
            else:
                self.mind_hangs()
                self.start_due()
                self.mind_world()
                self.let_in()
                self.mind_size()
            self.release_spares()
            self.wait()
        if self.halting and not self._halted:
            self.halt()  # nobody is left to halt, but it has to be said
        self.look()
        return outcome([place.view for place in self.places.values()], self._writer, self.halting)

    def wait(self) -> None:
        """Until the next look, or a death on this host."""
        here = [agent for agent in self.agents.values() if isinstance(agent, Agent)]
        if here:
            here[0].wait()
        else:
            time.sleep(LOOK)

    def ended(self, place: Place) -> None:
        """A worker has ended; its agent has ended its courier too."""
        place.dead = True
        view = place.view
        if view.how in (STATELESS, UNBEGUN):
            return
        if view.status in (0, HALTED) and (view.over or self.halting or not view.ready):
            return
        self.note(self.death(place))
        if view.error:
            self.speaker.raised(place.number, view.error)
        else:
            early = (
                " before its job was over: use `with mm.Job(…)`, and `break` to stop early" if not view.status else ""
            )
            self.speaker.say(f"worker {place.number} ended ({view.how}{early})")
        self.replace(place)

    def replace(self, place: Place) -> None:
        """What the policy asks for after a death."""
        if self.halting or self.over():
            return
        if self.order.on_failure == "checkpoint":
            self.restart_all()
        elif self.order.on_failure in ("replace", "restart"):
            if self.order.on_failure == "restart":
                self.end_world()
            self.start_again(place)

    def start_again(self, place: Place) -> None:
        """Put a new worker into the place of a dead one, unless that dies before it ever takes part."""
        blamed = (place.view.status or 0) > 0  # it has ended itself, and may always do so at the same place
        place.restarts = 1 if (place.did_steps if blamed else place.view.active) else place.restarts + 1
        if place.host in self.reach.lost or not self.active():
            return  # it is of no use, or nobody is left to take the state from
        if place.restarts > RESTARTS:
            self.speaker.say(f"worker {place.number} did no step in {RESTARTS} attempts: the others go on without it")
            return
        place.joining = True
        if self.order.on_failure == "restart":
            self.start(place)
        else:
            place.due = max(one.view.step for one in self.active()), time.monotonic() + HEAD_START

    def start_due(self) -> None:
        """Start those whose time has come: to load a framework is work, and the interrupted step comes first."""
        step, now = max((place.view.step for place in self.active()), default=-1), time.monotonic()
        for place in self.places.values():
            after, at = place.due or (step, now)
            if (step > after or now > at) and self.reach.has(place.host) and not self.over():
                self.start(place)

    def last_checkpoint(self) -> Path | None:
        """The newest one that is whole; those passed over are named."""
        return latest(
            self.order.folder / "checkpoints",
            lambda error: self.speaker.say(f"passed over: {str(error).rpartition(': ')[0]}"),
        )

    def restart_all(self) -> None:
        """The whole job again from the last checkpoint, as without fault tolerance."""
        before, self.resume = self.resume, str(self.last_checkpoint() or "")
        self._stale = self._stale + 1 if self.resume == before else 0
        for place in self.living():
            self.end(place, "restarted")
        while self.living():
            self.look()
            self.mind_hosts()
            self.wait()
        for place in self.places.values():
            place.dead = True
        self.end_world()
        if self._stale >= RESTARTS:
            self.speaker.say(f"{RESTARTS} restarts came no further than {before or 'the beginning'}: giving up")
            return
        for agent in self.agents.values():
            agent.do("remove")  # what is known of the old workers must not be taken for the new ones'
        self.attempt += 1
        self._entered = 0
        self.fresh = True
        self.speaker.say(f"restarting everything from {self.resume or 'the beginning'}")
        self.begin(restarted=True)

    def open(self, why: str) -> World:
        """Start a new world of couriers for the living workers, without letting it in."""
        members = [place for place in self.present() if not place.joining]
        ranks: dict[str, dict[int, int]] = {}
        for place in members:
            ranks.setdefault(place.host, {})[place.number] = place.view.process
        self.worlds += 1
        return open_world(self.order, self.worlds, ranks, why, self.speaker.say)

    def form(self, why: str) -> None:
        """A new world at once, in the place of a lost one."""
        began = time.time_ns()
        self.end_world()
        self.enter(self.open(why), began)

    def enter(self, world: World, began: int) -> None:
        """Let a world in; `began` is when the one before it ended."""
        self.world, self._up, self._entered = world, 0.0, world.number
        line = f": {shlex.join(world.line)}" if self.fresh and world.number == 1 else ""
        self.speaker.say(f"world {world.number} ({world.why}){line}")
        self.note(Formed(epoch=self.epoch, ranks=sorted(world.members), why=self._reason, joined=self._joined))
        self._joined = []
        for agent in self.agents.values():
            formed = 0 if self.fresh else began
            agent.do("enter", world=world.number, mpirun=world.process.pid, formed=formed, fresh=self.fresh)

    def end_world(self) -> None:
        """Nobody of an old world may be left when a new one begins."""
        self.abandon()
        if self.world is not None:
            self.world.kill()
            self.world = None
        for agent in self.agents.values():
            agent.do("clear")

    def abandon(self) -> None:
        """Throw away a world that was being made ready."""
        if self.next is not None:
            self.next.kill()
            self.next, self._eager = None, False
            for place in self.living():
                place.joining = self.world is not None and not self.world.has(place.number, place.view.process)

    def mind_hangs(self) -> None:
        """End those that hang while others go on; wait for all of them, but not for ever."""
        members = [place for place in self.active() if not place.view.over and not place.going]
        step, now = max((place.view.step for place in members), default=0), time.monotonic()
        before = self.judge.since
        for rank in self.judge.look({place.number: place.view.still for place in members}, step, now):
            self.end(self.places[rank], "hang")
        if self.judge.since and not before:
            self.speaker.say("all workers stand still: waiting (Ctrl-C ends the run)")
        if self.judge.since and now - self.judge.since > STANDSTILL:
            self.halting = f"all workers have stood still for {STANDSTILL / 60:.0f} minutes"

    def mind_world(self) -> None:
        """Form a world when there is none; a lost courier takes its worker along."""
        if self.fade():
            return
        if self.world is None:
            waiting = [p for p in self.present() if self.order.on_failure == "restart" or not p.joining]
            if waiting and self.reach.sure and all(place.view.ready for place in waiting):
                for place in waiting:
                    place.joining = False
                if not self._why:
                    self._reason = Why.BEGIN if self.fresh else Why.ATTACHED if self._attached else Why.RESTART
                self.form(self._why or ("begin" if self.fresh else "restart"))
                self._why, self._attached = "", False
            return
        open_ = [
            place
            for place in self.present()
            if self.world.has(place.number, place.view.process) and not place.view.over
        ]
        lost = [place for place in open_ if place.view.courier == "lost"]
        if self.over():
            self.end_lost(lost)
            for place in open_:
                if place.view.stuck and place.view.active:
                    # It just did not hear that all leave.
                    self.agents[place.host].do("release", rank=place.number)
            return
        if all(place.view.agreed == self.world.number for place in open_):
            self._unsure.clear()
        if self.settled(open_) and any(place.view.stuck for place in open_):
            if self.reach.sure and not self.part():
                self._reason = Why.STUCK
                self.form("the couriers could not go on by themselves")
        elif open_ and (self.world.ended or self.world.late([place.view.standby for place in open_])):
            if not self.reach.sure:
                return  # a host may be lost: without it, mpirun would only end again
            if time.monotonic() < self.attempts.again or self.part():
                return
            how = How.LOST if self.world.ended else How.LATE
            self.note(Died(epoch=self.epoch, what=Part.MPIRUN, how=how))
            came = any(place.view.standby == self.world.number for place in open_)
            self.attempts.failed(max(place.view.step for place in open_), came=came, now=time.monotonic())
            if self.attempts.fruitless >= RESTARTS and self.fresh:
                raise JobError(why_none(self.order))
            if self.attempts.hopeless:
                self.halting = f"{self.attempts.hopeless}, see {output_of(self.order)}"
                return
            if self.order.on_failure == "checkpoint":
                self.restart_all()
            else:
                self._reason = Why.MPIRUN_LOST
                self.form("mpirun was lost")
        elif len(lost) < len(open_):
            self.end_lost(lost)

    def fade(self) -> bool:
        """Whether it should first be seen how somebody has ended: what follows from that may be enough."""
        fading, now = len(self.present()) < len(self.living()), time.monotonic()
        self._fading = (self._fading or now) if fading else 0.0
        return fading and now - self._fading < FADE

    def settled(self, members: list[Place]) -> bool:
        """Whether the couriers have had time to meet: the first ones wait for the last, which come up seconds later."""
        assert self.world is not None
        now, number = time.monotonic(), self.world.number
        if not self._up and all(place.view.standby == number for place in members):
            self._up = now
        return now - (self._up or self.world.began + START / 2) > REPAIR

    def end_lost(self, lost: list[Place]) -> None:
        """A courier that died alone takes its worker along: the others have gone on without it."""
        now = time.monotonic()
        for place in self.living():
            place.losing = (place.losing or now) if place in lost else 0.0
            if place.losing and now - place.losing > SETTLE:
                self.end(place, "lost its courier")

    def let_in(self) -> None:
        """Make a world ready with those that were started again, while they load what they need, and then change over.

        Where more die meanwhile, that was in vain; then the next one waits until all are ready.
        """
        everyone = self.present()
        if self.world is None or self.over():
            self.abandon()
        elif self.next is None:
            joining = [place for place in everyone if place.joining]
            more = any(place.due for place in self.places.values())
            if joining and not more and all(place.view.ready or self._eager for place in joining):
                for place in joining:
                    place.joining = False
                self.next = self.open(join_words([place.number for place in joining]))
        elif (
            self.next.ended
            or self.next.members != {place.number: place.view.process for place in everyone}
            or self.next.late([place.view.standby for place in everyone])
        ):
            self.abandon()
            self.part()
        elif all(place.view.ready and place.view.standby == self.next.number for place in everyone):
            self._eager = True
            began = time.time_ns()
            self.world.kill()
            world, self.next = self.next, None
            self._reason = Why.JOIN
            self._joined = sorted(rank for rank, worker in world.members.items() if not self.world.has(rank, worker))
            self.enter(world, began)

    def mind_size(self) -> None:
        """Halt where too few are left, and end where nobody has the state any more."""
        left = len(self.living()) + sum(place.due is not None for place in self.places.values())
        if not self.fresh and left and not self.active() and not self.over():
            self.halting = "all workers that had the state are dead"
            for place in self.living():
                self.end(place, STATELESS)
        if left < self.order.least and self.active() and not self.over():
            self.halting = f"{left} workers are left, and at least {self.order.least} were asked for"

    def mind_hosts(self) -> None:
        """A host whose agent is gone is called again; one that does not answer is lost with all its workers."""
        for host, how in self.reach.look():
            if how == "lost":
                self.lose(host)
            else:
                self.found(host, back=how == "back")

    def found(self, host: str, *, back: bool) -> None:
        """There is an agent on a host again: workers live on there, or if they are not wanted any more, are ended."""
        there = [place for place in self.places.values() if place.host == host]
        self._unsure -= {place.number for place in there}
        if not back:
            self.speaker.say(f"the agent on {host} was lost, and another one has taken over")
            self.adopt([host])
            return
        self.agents[host].do("adopt", ranks=[place.number for place in there])
        self.agents[host].do("remove")
        self.speaker.say(f"host {host} is back")
        if self.order.on_failure == "replace" and self.active() and not self.halting:
            for place in there:
                place.joining, place.restarts = True, 0
                self.start(place)

    def lose(self, host: str) -> None:
        """All workers of a host are gone, or cannot be reached; two halves of a network must not both go on."""
        members = {place.number for place in self.active()}
        gone = self.bury(host)
        self.speaker.say(f"host {host} is lost, and with it workers {sorted(gone)}")
        if not self.over():
            self._unsure |= members & gone
            self._reason = Why.HOST_LOST
            self.go_on(members - gone, f"host {host} was lost")

    def bury(self, host: str) -> set[int]:
        """None of a host's workers counts any more; their ranks."""
        views = [place.view for place in self.places.values() if place.host == host]
        seen = max(((view.world, view.shrink) for view in views), default=(0, 0))
        ranks = [view.rank for view in views]
        self.note(Died(epoch=Epoch(self.attempt, *seen), what=Part.HOST, how=How.LOST, host=host, ranks=ranks))
        gone = {place.number for place in self.places.values() if place.host == host}
        for number in gone:
            self.places[number].dead, self.places[number].due = True, None
        return gone

    def go_on(self, left: set[int], why: str) -> None:
        """Without members that are gone, if those left are the most; some of the others may not be dead."""
        agreed = left | self._unsure
        if agreed and not has_majority(left, agreed):
            self.halting = f"workers {sorted(left)} are not most of {sorted(agreed)}: others may go on without them"
        elif self.order.on_failure == "checkpoint":
            self.restart_all()
        elif self.world is not None:
            self.end_world()
            self._why = why

    def part(self) -> bool:
        """Whether the network has fallen in two: then the workers of the smaller half are ended.

        Agents answer from both halves, and see to it that nobody goes on there. mpirun is in the launcher's half: where
        that is the smaller one, the other halts with a checkpoint.
        """
        away = self.reach.away({place.host for place in self.living()})
        if not away:
            return False
        everyone = self.living() if self.fresh else self.active()
        far = {place.number for place in everyone if place.host in away}
        near = {place.number for place in everyone} - far
        names = [*sorted(away)[:FEW], *([f"{len(away) - FEW} more hosts"] if len(away) > FEW else [])]
        hosts = f"mpirun on {socket.gethostname()} cannot reach {', '.join(names)}"
        if has_majority(near, near | far):
            self.speaker.say(f"{hosts}: workers {sorted(far)} are ended, {sorted(near)} go on")
            self.expel(away)
            self._reason = Why.PARTITION
            self.go_on(near, "the network fell in two")
        else:
            self.halting = f"{hosts}: workers {sorted(near)} are ended, and {sorted(far)} cannot go on without it"
            self.end_world()
            for place in self.living():
                if place.host not in away:
                    self.end(place, "cut off from most")
            self.halt()
        return True

    def expel(self, hosts: set[str]) -> None:
        """End all that these hosts have of the run."""
        active = {place.number for place in self.active()}
        for host in sorted(hosts):
            sure = self.reach.expel(host)
            gone = self.bury(host)
            self._unsure |= set() if sure else active & gone

    def halt(self) -> None:
        """Have a checkpoint written, and end."""
        if not self._halted:
            self.halting = self.halting or f"{signal.Signals(self.signal).name} came"
            self._halted = time.monotonic()
            self.signal = 0
            self._writer = min((place.number for place in self.active() if not place.going), default=-1)
            how = ", with a checkpoint (once more: at once)" if self._writer >= 0 else ""
            self.speaker.say(f"{self.halting}: ending{how}")
            for agent in self.agents.values():
                agent.do("halt", writer=self._writer)
        late = time.monotonic() - self._halted > HALT
        for place in self.living():
            if not place.view.ready:
                self.end(place, UNBEGUN)
            elif self.signal or (late and not place.view.saving):
                self.end(place, "halted")

    def release_spares(self) -> None:
        """When the last step is done, the spares and newcomers that were never needed may go."""
        if self.over():
            for place in self.living():
                if not place.view.active:
                    self.agents[place.host].do("release", rank=place.number)

    def stop(self) -> None:
        """End everything that is left, and leave nothing behind."""
        self.end_world()
        for agent in self.agents.values():
            agent.do("remove")
        self.reach.close()

    def run(self, *, attached: bool = False) -> int:
        """From the first worker to the last."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.interrupted)
        status = 1
        try:
            self.begin(attached=attached)
            status = self.watch()
        finally:
            self.stop()
            self.note(Ended(epoch=self.epoch, status=status, why=self.halting))
        if status == HALTED or (self.halting and latest(self.order.folder / "checkpoints")):
            self.speaker.say(f"go on with: meshmend run --resume {self.order.run}")
        return status

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """Once: halt with a checkpoint. Twice: at once."""
        del frame
        self.signal = number
