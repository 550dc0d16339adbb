"""`meshmend run`: the shell around the supervisor. It observes, has `decide` decide, and acts.

The launcher keeps nothing that a run needs: when it is killed, workers wait, and another one attaches to them.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from meshmend.base.clocks import AGENT_POLL
from meshmend.base.status import HALTED
from meshmend.errors import JobError
from meshmend.job.state.safetensors import latest
from meshmend.run.agent.agent import Agent
from meshmend.run.clusters.hosts import spread
from meshmend.run.console import Console, ending, halt_reason, world_reason
from meshmend.run.hosts.pool import Pool
from meshmend.run.probe import Probe
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor import POLICIES, Phase, RunConfig, RunState, actions, decide
from meshmend.run.supervisor.observations import Cause, Observations, RankSeen
from meshmend.run.world.world import World, open_world, why_none
from meshmend.telemetry.events import Began, Died, Ended, Event, Formed, Log, Started


class Launcher:
    """One run, on this launcher's watch."""

    def __init__(self, spec: RunSpec, *, attempt: int = 0, resume: str = "", attached: bool = False) -> None:
        self.spec, self.console, self.pool = spec, Console(), Pool(spec)
        self.log = Log(spec.folder, "launcher")
        hosts = [host.name for host in spread(spec.places, spec.ranks)]
        here = frozenset(place.name for place in spec.places if place.here)
        config = RunConfig(hosts=hosts, policy=POLICIES[spec.on_failure], least=spec.least, here=here)
        phase = Phase.ATTACHING if attached else Phase.BEGINNING
        self.state = RunState(config, attempt=attempt, resume=resume, phase=phase)
        self._worlds: dict[int, World] = {}
        self._signal = 0
        self._probes: list[Probe] | None = None
        self._expelled: dict[str, bool] = {}
        self._checkpoint: str | None = None

    def run(self) -> int:
        """From the first worker to the last: the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupted)
        finish = actions.Finish(1)
        try:
            finish = self._watch()
        finally:
            self._stop()
            self._note(Ended(status=finish.status, why=halt_reason(finish.reason) if finish.reason else ""))
        if finish.no_world:
            raise JobError(why_none(self.spec))
        if finish.status == HALTED or (finish.reason and latest(self.spec.folder / "checkpoints")):
            self.console.say(f"resume with: meshmend run --resume {self.spec.run}")
        return finish.status

    def last_checkpoint(self) -> Path | None:
        """The newest one that is whole; damaged ones are named."""
        return latest(
            self.spec.folder / "checkpoints", lambda error: self.console.say(f"skipping a damaged checkpoint: {error}")
        )

    def _watch(self) -> actions.Finish:
        while True:
            todo = decide(self.state, self._observe(), time.monotonic())
            began = time.time_ns()
            for action in todo:
                if isinstance(action, actions.Finish):
                    self._observe()  # what workers printed last
                    return action
                self._act(action, began)
            if not any(isinstance(action, (actions.Adopt, actions.Expel, actions.FindCheckpoint)) for action in todo):
                self._wait()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """Once: halt with a checkpoint. Twice: at once."""
        del frame
        self._signal = number

    # ── observe ──

    def _observe(self) -> Observations:
        changes = self.pool.look()
        reachable = frozenset(host for host in self.pool.agents if self.pool.has(host))
        number, self._signal = self._signal, 0
        expelled, self._expelled = self._expelled, {}
        checkpoint, self._checkpoint = self._checkpoint, None
        return Observations(
            ranks=self._look(reachable),
            ended_worlds=frozenset(number for number, world in self._worlds.items() if world.ended),
            reachable=reachable,
            lost=frozenset(self.pool.lost),
            hosts_known=self.pool.sure,
            changes=tuple(changes),
            signal=signal.Signals(number).name if number else "",
            unreachable=self._probed(),
            expelled=expelled,
            checkpoint=checkpoint,
        )

    def _look(self, hosts: Iterable[str]) -> dict[int, RankSeen]:
        seen: dict[int, RankSeen] = {}
        for host in hosts:
            agent = self.pool.agents[host]
            seen |= {view.rank: view for view in agent.look()}
            for rank, line in agent.output():
                self.console.line(rank, line)
        return seen

    def _probed(self) -> frozenset[str] | None:
        if self._probes is None or any(probe.answer is None for probe in self._probes):
            return None
        probes, self._probes = self._probes, None
        return frozenset(probe.host for probe in probes if not probe.answer)

    def _wait(self) -> None:
        """Until the next look, or a death on this host."""
        here = [agent for agent in self.pool.agents.values() if isinstance(agent, Agent)]
        if here:
            here[0].wait()
        else:
            time.sleep(AGENT_POLL)

    # ── act ──

    def _act(self, action: actions.Action, began: int) -> None:
        """Carry out an action; `began` is when this turn's actions began, in nanoseconds since 1970."""
        match action:
            case actions.Say(message=message):
                self.console.tell(message)
            case actions.Adopt(host=host, ranks=ranks):
                self._tell(host, "adopt", ranks=[*ranks])
            case actions.Start():
                self._start(action)
            case actions.Kill(rank=rank, host=host, cause=cause):
                self._tell(host, "end", rank=rank, cause=cause.name)
            case actions.Release(rank=rank, host=host):
                self._tell(host, "release", rank=rank)
            case actions.Remove(hosts=hosts):
                self._tell_all("remove", hosts)
            case actions.Halt(writer=writer):
                self._tell_all("halt", writer=writer)
            case actions.ClearCouriers():
                self._tell_all("clear")
            case actions.OpenWorld(number=number, members=members):
                repair = POLICIES[self.spec.on_failure].repairs
                self._worlds[number] = open_world(self.spec, number, members, self.console.say, repair=repair)
            case actions.EnterWorld():
                self._enter(action, began)
            case actions.KillWorld(number=number):
                self._worlds.pop(number).kill()
            case actions.Expel(host=host):
                self._expelled[host] = self.pool.expel(host)
            case actions.Probe(hosts=hosts):
                self._probes = self.pool.probe(hosts)
            case actions.FindCheckpoint():
                self._checkpoint = str(self.last_checkpoint() or "")
            case _:
                self._write_down(action)

    def _start(self, start: actions.Start) -> None:
        spec = self.spec
        self._tell(
            start.host, "start", rank=start.rank, wanted=spec.workers, ranks=spec.ranks, attempt=start.attempt,
            resume=start.resume, every=spec.every, script=list(spec.script),
        )  # fmt: skip
        if self.pool.has(start.host):
            views = {view.rank: view for view in self.pool.agents[start.host].look()}
            if start.rank in views:
                self._note(Started(rank=start.rank, process=views[start.rank].process, host=start.host))

    def _enter(self, enter: actions.EnterWorld, began: int) -> None:
        world, why = self._worlds[enter.number], world_reason(enter.reason)
        line = f": {shlex.join(world.line)}" if enter.fresh and enter.number == 1 else ""
        self.console.say(f"world {enter.number} ({why}){line}")
        self._note(Formed(world=enter.number, ranks=[*enter.ranks], why=why))
        formed = 0 if enter.fresh else began
        self._tell_all("enter", world=enter.number, mpirun=world.process.pid, formed=formed, fresh=enter.fresh)

    def _write_down(self, action: actions.Action) -> None:
        spec = self.spec
        match action:
            case actions.NoteAttempt(attempt=attempt, attached=attached):
                self._note(
                    Began(
                        attempt=attempt, workers=spec.workers, spares=spec.spares, on_failure=spec.on_failure,
                        attached=attached,
                    )
                )  # fmt: skip
            case actions.NoteDeath(rank=rank, status=status, cause=cause):
                how = ending(status) if cause is Cause.NONE else cause.name.lower()
                self._note(Died(rank=rank, what="worker", how=how))
            case actions.NoteHostLost(host=host):
                self._note(Died(rank=-1, what="host", how=host))
            case actions.NoteMpirunLost(late=late):
                self._note(Died(rank=-1, what="mpirun", how="late" if late else "lost"))

    def _tell(self, host: str, command: str, **values: Any) -> None:
        """Have one agent do something; where it is gone, the next observations show it."""
        if host in self.pool.agents:
            self.pool.agents[host].do(command, **values)

    def _tell_all(self, command: str, hosts: Iterable[str] | None = None, **values: Any) -> None:
        for host in [*self.pool.agents] if hosts is None else hosts:
            self._tell(host, command, **values)

    def _note(self, event: Event) -> None:
        self.log.write(event)

    def _stop(self) -> None:
        """Kill everything that is left, and leave nothing behind."""
        for world in self._worlds.values():
            with contextlib.suppress(OSError):
                world.kill()
        self._tell_all("clear")
        self._tell_all("remove")
        self.pool.close()
