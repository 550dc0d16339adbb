"""`meshmend run`: the shell around the supervisor. It observes, lets `decide` decide, and acts.

The launcher keeps nothing that a run needs: if it is killed, workers wait, and another launcher attaches to them. So
its own errors must never cost the workers their state. An action that cannot be carried out (no memory, no process) is
a failed attempt that the supervisor observes; after any other error the launcher leaves the workers alive and says how
to attach.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType

from meshmend.base.clocks import AGENT_POLL
from meshmend.base.env import log_every
from meshmend.base.status import ABANDONED, DONE, FAILED, HALTED
from meshmend.errors import JobError
from meshmend.job.checkpoints.folders import newest
from meshmend.run.agent import messages
from meshmend.run.agent.agent import Agent
from meshmend.run.console import Console
from meshmend.run.disk import DiskWatch, keep_trying, reason
from meshmend.run.hosts.newcomers import NewHosts
from meshmend.run.hosts.pool import Pool
from meshmend.run.journal import Journal
from meshmend.run.news import (
    ActionFailed,
    CannotResume,
    CanResume,
    CheckpointUnwritten,
    DamagedCheckpoint,
    LauncherFailed,
    TerminalLost,
    WorldCommand,
    WorldEntered,
)
from meshmend.run.probe import Probe
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor import POLICIES, Phase, RunConfig, RunState, actions, decide
from meshmend.run.supervisor.messages import Attached, HaltReason, Joined
from meshmend.run.supervisor.observations import Observations, RankSeen, StopSignal
from meshmend.run.world.mpirun import has_chosen
from meshmend.run.world.world import World, open_world, why_none


class Launcher:
    """The launcher of one run."""

    def __init__(
        self, spec: RunSpec, *, attempt: int = 0, resume: str = "", attached: bool = False, stepped: bool = False,
        halted: tuple[HaltReason, int] | None = None,
    ) -> None:  # fmt: skip
        self.spec, self.console, self.pool = spec, Console(spec.folder / "output" / "launcher.log"), Pool(spec)
        self._journal = Journal(spec, attempt)
        self.new_hosts = NewHosts(self.pool, self.console.tell)
        here = frozenset(place.name for place in spec.places if place.here)
        config = RunConfig(
            hosts=spec.host_of, policy=POLICIES[spec.on_failure], workers=spec.members, least=spec.least, here=here
        )
        phase = Phase.ATTACHING if attached else Phase.BEGINNING
        self.state = RunState(config, attempt=attempt, resume=resume, phase=phase, stepped=stepped)
        if halted is not None:
            self.state.halt_reason, self.state.writer = halted
        self._warmed: frozenset[str] = frozenset()
        """Hosts whose agents know how many warm processes to keep."""
        self._worlds: dict[int, World | None] = {}
        """The worlds that were opened; None: mpirun could not be started."""
        self._signal = 0
        self._hung_up = False
        self._trouble = ""
        """The last error message about an action that could not be carried out."""
        self._disk = DiskWatch(spec.folder)
        self._probes: list[Probe] | None = None
        self._expelled: dict[str, bool] = {}
        self._checkpoint: str | None = None

    def run(self) -> int:
        """Run until the last worker has exited; return the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupted)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(signal.SIGHUP, self._lost_terminal)
        try:
            self.new_hosts.open()
            finish = self._watch()
        except Exception as error:
            return self._abandon(error)
        self._stop()
        self._journal.ended(finish)
        keep_trying(self._mind_disk, lambda: bool(self._signal))
        if finish.no_world:
            self.console.drain()
            raise JobError(why_none(self.spec))
        unwritten = self._disk.told.get(-1 if self.state.writer is None else self.state.writer)
        if finish.status == FAILED and unwritten is not None:
            self.console.tell(CheckpointUnwritten(self.state.writer or 0, reason(unwritten)))
        if finish.status == HALTED or (finish.status != DONE and newest(self.spec.folder)):
            self.console.tell(advice(self.spec))
        return finish.status

    def _abandon(self, error: Exception) -> int:
        """Leave the workers alive after an error in the launcher: they wait for another launcher."""
        self.console.keep("".join(traceback.format_exception(error)))
        said = traceback.format_exception_only(error)[-1].strip()
        self.console.tell(LauncherFailed(self.spec.run, said, self.console.outlet.path))
        with contextlib.suppress(Exception):
            self.new_hosts.close()
            self.pool.close()
        return ABANDONED

    def last_checkpoint(self) -> Path | None:
        """Return the newest intact checkpoint; report damaged ones."""
        return newest(self.spec.folder, lambda error: self.console.tell(DamagedCheckpoint(str(error))))

    def _watch(self) -> actions.Finish:
        while True:
            seen = self._observe()
            todo = decide(self.state, seen, time.monotonic())
            began = time.time_ns()
            for action in todo:
                if isinstance(action, actions.Finish):
                    self._observe()  # forwards the workers' last output
                    return action
                self._try(action, began)
            self._mind_disk(seen.ranks)
            if not any(isinstance(action, (actions.Adopt, actions.Expel, actions.FindCheckpoint)) for action in todo):
                self._wait()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """The first signal halts the run with a checkpoint, the second one immediately."""
        del frame
        self._signal = number

    def _lost_terminal(self, number: int, frame: FrameType | None) -> None:
        """Continue without a terminal."""
        del number, frame
        self._hung_up = True

    def _mind_disk(self, seen: Mapping[int, RankSeen] | None = None) -> OSError | None:
        """Write what was held back, and say once why that is not possible; return why the journal is not written."""
        error = self._journal.flush()
        living = {rank: one.unwritten for rank, one in (seen or {}).items() if one.status is None}
        for news in self._disk.look(error or self.console.outlet.flush(), living, time.monotonic()):
            self.console.tell(news)
        return error

    # ── observe ──

    def _observe(self) -> Observations:
        if self._hung_up:
            self._hung_up = False
            self.console.tell(TerminalLost(self.console.outlet.path))
        changes, added = self.pool.look(), self.new_hosts.look()
        self.spec = self._journal.spec = self.pool.spec
        reachable = frozenset(host for host in self.pool.agents if self.pool.has(host))
        self._keep_warm(reachable, {change.host for change in changes})
        number, self._signal = self._signal, 0
        expelled, self._expelled = self._expelled, {}
        checkpoint, self._checkpoint = self._checkpoint, None
        # Before the ranks: a world also ends after the last step, and then the ranks must be seen to be over.
        ended = frozenset(number for number, world in self._worlds.items() if world is None or world.ended)
        return Observations(
            ranks=self._look(reachable),
            ended_worlds=ended,
            reachable=reachable,
            lost=frozenset(self.pool.lost),
            hosts_known=self.pool.sure,
            changes=tuple(changes),
            added=added,
            signal=StopSignal(signal.Signals(number).name) if number else None,
            unreachable=self._probed(),
            expelled=expelled,
            checkpoint=checkpoint,
        )

    def _look(self, hosts: Iterable[str]) -> dict[int, RankSeen]:
        seen: dict[int, RankSeen] = {}
        for host in hosts:
            agent = self.pool.agents[host]
            seen |= {view.rank: view for view in agent.look() if 0 <= view.rank < self.spec.ranks}
            with contextlib.suppress(OSError):  # the file system is unavailable for a moment: try later
                self.console.lines(agent.output())
        return seen

    def _keep_warm(self, reachable: frozenset[str], changed: set[str]) -> None:
        """Tell new agents how many warm processes to keep."""
        for host in reachable - (self._warmed - changed) if self.spec.warm else ():
            self._tell(host, messages.KeepWarm(count=self.spec.warm, script=self.spec.script))
        self._warmed = reachable

    def _probed(self) -> frozenset[str] | None:
        if self._probes is None or any(probe.answer is None for probe in self._probes):
            return None
        probes, self._probes = self._probes, None
        return frozenset(probe.host for probe in probes if not probe.answer)

    def _wait(self) -> None:
        """Wait until the next poll, or a death on this host; mpirun's too, whose couriers notice it only later."""
        here = [agent for agent in self.pool.agents.values() if isinstance(agent, Agent)]
        if here:
            worlds = [world for world in self._worlds.values() if world is not None and not world.ended]
            here[0].wait(mpiruns=[world.process.pid for world in worlds])
        else:
            time.sleep(AGENT_POLL)

    # ── act ──

    def _try(self, action: actions.Action, began: int) -> None:
        """Carry out an action; if that fails, the next observations show it, and the supervisor decides again."""
        try:
            if isinstance(action, (actions.Start, actions.OpenWorld)):
                _keep_folder(self.spec)
            self._act(action, began)
        except (OSError, JobError) as error:
            if str(error) != self._trouble:
                self.console.tell(ActionFailed(str(error)))
            self._trouble = str(error)

    def _act(self, action: actions.Action, began: int) -> None:
        """Carry out an action; `began` is when this turn's actions began, in nanoseconds since 1970."""
        match action:
            case actions.Say(message=message):
                self.console.tell(message)
            case actions.Adopt(host=host, ranks=ranks):
                self._tell(host, messages.Adopt(ranks=ranks))
            case actions.Start():
                self._start(action)
            case actions.Kill(rank=rank, host=host, cause=cause):
                self._tell(host, messages.Kill(rank=rank, cause=cause))
            case actions.Release(rank=rank, host=host, job=job):
                self._tell(host, messages.Release(rank=rank, job=job))
            case actions.Remove(hosts=hosts):
                self._tell_all(messages.Remove(), hosts)
            case actions.Halt(writer=writer):
                self._tell_all(messages.Halt(writer=writer))
            case actions.ClearCouriers():
                self._tell_all(messages.Clear())
            case actions.OpenWorld(number=number, members=members):
                repair = POLICIES[self.spec.on_failure].repairs
                self._worlds[number] = None  # until mpirun has started
                self._tell_all(messages.Open(world=number))
                network = "" if has_chosen() else self.pool.network(members)
                self._worlds[number] = open_world(
                    self.spec, number, members, self.console.tell, repair=repair, network=network
                )
            case actions.EnterWorld():
                self._enter(action, began)
            case actions.KillWorld(number=number):
                if (world := self._worlds.pop(number)) is not None:
                    world.kill()
            case actions.Expel(host=host):
                self._expelled[host] = self.pool.expel(host)
            case actions.Probe(hosts=hosts):
                self._probes = self.pool.probe(hosts)
            case actions.FindCheckpoint():
                self._checkpoint = str(self.last_checkpoint() or "")
            case _:
                self._journal.note(action)

    def _start(self, start: actions.Start) -> None:
        spec = self.spec
        message = messages.Start(
            rank=start.rank, founders=spec.workers, wanted=spec.members, ranks=spec.room, resume=start.resume,
            every=spec.every, script=spec.script, log_every=spec.log_every or log_every(), passed=start.passed,
        )  # fmt: skip
        self._tell(start.host, message)
        if self.pool.has(start.host):
            views = {view.rank: view for view in self.pool.agents[start.host].look()}
            if start.rank in views:
                self._journal.started(start.rank, views[start.rank].process, start.host)

    def _enter(self, enter: actions.EnterWorld, began: int) -> None:
        world = self._worlds[enter.number]
        if world is None:
            return
        attached = isinstance(enter.reason, Attached)
        shown = enter.fresh or attached
        news = set(enter.reason.ranks) if isinstance(enter.reason, Joined) else set(enter.ranks if shown else ())
        who = {rank: self.state.ranks[rank].seen.process for rank in sorted(news)}
        first = attached or (enter.fresh and enter.job == 1)
        run = self.spec.run if first else ""
        self.console.tell(WorldEntered(enter.number, enter.reason, who, run, os.getpid(), world.process.pid))
        if self.spec.verbose:
            self.console.tell(WorldCommand(enter.number, world.line))
        self._journal.entered(enter)
        formed = 0 if enter.fresh else began
        message = messages.Enter(
            world=enter.number, mpirun=world.process.pid, formed=formed, fresh=enter.fresh, job=enter.job,
            wanted=enter.wanted,
        )  # fmt: skip
        self._tell_all(message)

    def _tell(self, host: str, command: messages.Command) -> None:
        self.pool.epoch = self.state.epoch
        self.pool.tell(host, command)

    def _tell_all(self, command: messages.Command, hosts: Iterable[str] | None = None) -> None:
        for host in [*self.pool.agents] if hosts is None else hosts:
            self._tell(host, command)

    def _stop(self) -> None:
        """Kill everything that is left, and leave nothing behind."""
        self.new_hosts.close()
        for world in self._worlds.values():
            if world is not None:
                with contextlib.suppress(OSError):
                    world.kill()
        for command in (messages.Clear(), messages.Remove()):
            with contextlib.suppress(OSError, JobError):
                self._tell_all(command)
        self.pool.close()


def advice(spec: RunSpec) -> CanResume | CannotResume:
    """Say how to resume; somebody may have removed the folder of the run before its last checkpoint was written."""
    try:
        if not (spec.folder / "run.json").exists():
            spec.save()
    except JobError as error:
        return CannotResume(spec.folder, str(error))
    return CanResume(spec.run)


def _keep_folder(spec: RunSpec) -> None:
    """Work in a folder that exists, for what is started from here: somebody may have removed that of the run's start.

    It is made again only along with the folder of the run, if that is in it.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        spec.folder.mkdir(parents=True, exist_ok=True)
        os.chdir(spec.start if os.path.isdir(spec.start) else spec.folder)
