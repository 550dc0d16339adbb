"""One worker's training: its state, its step, and the rounds it takes part in. `Job` is its face to the user.

A front end that keeps the user's own loop (`mm.torch.wrap`) drives it directly, as `job.training`:

    lanes, data          which samples a lane holds; the data that they are drawn from
    input                reads them, ahead where the data wants that, and takes the time: see `data/feed.py`
    step                 how many steps are committed or skipped; may be set before `begin`
    framework            what holds the state; None before `begin`
    workers, mine        how many workers the run has; the lanes that this one was asked for last
    key(lane)            what the random numbers of a lane of this step depend on
    round()              a generator of the lanes to compute: it is sent their trees and returns the sum
    commit(state, …)     the step is done
    epoch                the epoch that the user's loop is in, where `job.epochs` counts them
    epochs_done          how many it has left, with all that follows their last step, such as an evaluation
    began                the step that this worker began with: 0, or where a newcomer or a resumed run stands
    say_repeat()         says once that the loop goes through what was done before this worker began
    loop, on_leave       room for the front end's own object; what to call when the job ends well
    on_exchange          what to call before workers exchange something outside a sum
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshmend.base.calls import takes
from meshmend.base.env import Settings
from meshmend.errors import JobError, NotFinite
from meshmend.job.checkpoints import DIVERGED, Checkpoints
from meshmend.job.config import JobConfig
from meshmend.job.data.cache_file import Place
from meshmend.job.data.feed import Feed
from meshmend.job.data.pipeline import Data
from meshmend.job.faults import Faults, Point
from meshmend.job.faults.kinds import FLIP
from meshmend.job.folders import folder_of, job_of
from meshmend.job.frameworks.base import Accumulator, Framework, Key
from meshmend.job.frameworks.draws import Draws, difference
from meshmend.job.ledger import StepLedger
from meshmend.job.reduction.base import Levels, NonFinite
from meshmend.job.saving import Saver, State
from meshmend.job.sequence import SCRIPT, End
from meshmend.job.session import Unneeded, WorkerSession
from meshmend.job.shm.home import MEMORY
from meshmend.job.shm.home import folder_of as shared_memory_of
from meshmend.job.solo import Passing, Solo
from meshmend.job.state.codec import decode, encode
from meshmend.job.state.digest import Later


class Training:
    """A worker's place in a job, alone or under `meshmend run`."""

    def __init__(self, config: JobConfig, data: Any, settings: Settings | None) -> None:
        self.config, self.lanes, self.data = config, config.lanes, data
        self.step = 0
        self.framework: Framework | None = None
        self.epoch: int | None = None
        self.epochs_done: int | None = None
        self.began = 0
        self._said_repeat = False
        self._named: set[str] = set()
        """Checkpoints that were saved under a name."""
        self.loop: object = None
        self.on_leave: Callable[[], None] = lambda: None
        self.on_exchange: Callable[[], None] = lambda: None
        self._accumulator: Accumulator | None = None
        self._grid: Levels = np.zeros(0, np.int16)
        """The reduction's state, as received: how large it must be shows only with the first gradients."""
        self._digested = Later.of(0)
        """The digest of the state that was announced last."""
        self._shared = self._summed = False
        """Whether there is a state to begin with, and whether this step has its sum."""
        self._process = os.getpid()
        self._rank = 0 if settings is None else settings.rank
        self._settings = settings
        self._ledger = StepLedger(settings)
        self._job = 1
        """Its number in the script, once it has begun."""
        self._diverged: NotFinite | None = None
        """What ended this job on all workers alike: it is judged by a sum, which all of them have."""
        self.passing = False
        """Whether the run has done this job already, and this worker only passes through it."""
        self._open_checkpoints()
        self.session: Solo | WorkerSession
        if settings is None or self._ledger.log is None:
            self.session = Solo(self.lanes.lanes)
        else:
            self.session = WorkerSession(settings, self.lanes.lanes)
            self.session.faults = Faults(settings.rank, settings.folder, self._ledger.log, lambda: self.session.epoch)
            self.session.save = lambda: self._saver.halted()
            self._ledger.log.wait = self.session.waits_for_room
        self.place = Place() if settings is None else Place(shared_memory_of(settings.run), MEMORY)
        """Where caches of samples are."""
        self.input = Feed(data, self.lanes, lambda: self.mine, self.place)
        config.kind.warm()

    def expect(self, steps: int) -> None:
        """The loop has so many steps: what is printed can say how long is left."""
        self._ledger.progress.until = steps

    @property
    def workers(self) -> int:
        """How many workers the run was asked to have."""
        return self.session.wanted

    @property
    def mine(self) -> Sequence[int]:
        """The lanes that this worker was asked for last; before that, those it may expect."""
        return self.session.mine

    def key(self, lane: int) -> Key:
        """What the random numbers of a lane of this step depend on, on every worker."""
        return self.lanes.seed, self.step, lane

    def lane(self, lane: int) -> Any:
        """The samples of one lane of this step."""
        return self.input.lane(self.step, lane)

    def opened(self, data: Any) -> Any:
        """Other data than the job's, ready to be read on this worker."""
        if isinstance(data, Data):
            data.open(self.place)
        return data

    def begin(self, framework: Framework, warm: Callable[..., Any] | None) -> None:
        """Begin with this state, or that of a checkpoint, or that of another worker; see `Job.share`."""
        self.check_process("share")
        self.framework = framework
        if self._settings is not None:
            self._job = SCRIPT.begin()
            self._open_checkpoints()
            resume = Path(self._settings.resume) if self._settings.resume else None
            passed = max(self._settings.passed, job_of(resume) - 1 if resume is not None else 0)
            if self._job <= passed:
                self._pass(framework)
                return
            if resume is not None and job_of(resume) == self._job:
                self._load(resume, framework)
        self._announce(framework)
        if warm is not None:
            more = (Draws(*self.key(0)),) if takes(warm, 3) else ()
            framework.lane(lambda: warm(framework.shared, self.lane(0), *more), self.key(0))
            framework.drop()
        self.session.strike(Point.SHARE)
        self.session.places.device = lambda: framework.cuda
        self.session.places.on_device = bool(framework.device)
        try:
            received = self.session.share(self._job, lambda on_device: self._export(framework, on_device))
        except Unneeded:
            self._pass(framework)
            return
        if received is not None:
            states = self.session.places.states
            leaves, about = decode(received, framework.template(), states.borrowed if states is not None else None)
            framework.adopt(leaves)
            self.step, self._grid = about["step"], np.array(about["grid"], np.int16)
            self.session.adopt_messages(*about["messages"])
            self._ledger.take_over(about["pending"])
            self._announce(framework, arrived=True)
        self._ledger.opened(self.session.epoch, self.step, self.lanes, self.config.kind.reduction, self._job)
        self.began, self._shared = self.step, True
        self.input.expect(self.step)

    def _load(self, checkpoint: Path, framework: Framework) -> dict[str, Any]:
        self.step, grid, about = self._checkpoints.load(checkpoint, framework, self.config.identity())
        self._grid = np.array(grid, np.int16)
        self.epochs_done = about.get("epochs")
        return about

    def first_epoch(self) -> int:
        """The epoch in which the job stands; after its last step, it still does until the loop has left it.

        Only a checkpoint says so. Newcomers begin with the next one, since the others may be anywhere in the rest.
        """
        stands = self.lanes.epoch_of(self.step)
        rest = self.epochs_done == stands - 1 and self.step == self.lanes.first_step(stands)
        return stands - 1 if rest else stands

    def _pass(self, framework: Framework) -> None:
        """Take the state that this job has left, in place of training: the run has done it already."""
        found = self._checkpoints.last()
        if found is None and isinstance(self.session, WorkerSession) and self._settings is not None:
            if self._job > self._settings.passed:
                self.session.exit_unneeded()
            raise JobError(
                f"job {self._job} of this run is done, but its last state cannot be found in "
                f"{folder_of(self._settings.folder, self._job)}; give all hosts the same folder of runs"
            )
        assert found is not None
        about = self._load(found, framework)
        self.session = Passing(self.lanes.lanes, self.session.wanted, self._rank, self._job)
        self.began, self._shared, self.passing = self.step, True, True
        if about.get(DIVERGED):  # the others left the job by an exception, and so must this one
            self._diverged = NotFinite(self.step, *map(str, about[DIVERGED]))
            raise self._diverged

    def _open_checkpoints(self) -> None:
        self._checkpoints = Checkpoints(self._settings, self._ledger, self._job)
        self._saver = Saver(self._checkpoints, self._ledger, self._state)

    def _state(self) -> State | None:
        return None if self.framework is None else (self.framework, self.step, self._about())

    def say_repeat(self, what: str) -> None:
        """Say once that the user's loop goes through what was done before this worker began."""
        if self.began and not self._said_repeat and self.epoch is None:
            print(
                f"{what} before this worker began with step {self.began}, and what your loop does around it (an "
                "evaluation) is repeated while the others wait; loop with `for epoch in job.epochs(n)`, which begins "
                "where the job stands",
                flush=True,
            )
            self._said_repeat = True

    def say_if_different(self, once: Any, twice: Any) -> None:
        """Say that two results of the same lane differ, if they do."""
        name = difference(self.require_state("sum"), once, twice)
        if name is not None:
            print(
                f"the function given to job.sum gave two results for one lane that differ in leaf {name!r}, so a dead "
                "worker's lane would not come out the same again; draw random numbers from its second argument, "
                "function(lane, draws), or turn this check off with mm.Job(check=False)",
                flush=True,
            )

    def round(self) -> Generator[int, Any, Any]:
        """The lanes of this step that this worker is asked for; is sent their trees, and returns the sum."""
        self.check_process("sum")
        framework = self.require_state("sum")
        if self._summed:
            raise JobError(
                f"job.sum was called twice in step {self.step}; return everything to be summed as one tree, and call "
                "job.commit before the next sum"
            )
        while True:
            total = yield from self.session.round(self._prepare)
            self._confirm(framework)
            assert self._accumulator is not None, "a total cannot arrive before the first part"
            try:
                check = self.config.nonfinite is not NonFinite.PASS
                result = self._accumulator.finish(total, self.step, check=check)
            except NotFinite as error:
                if self.config.nonfinite is not NonFinite.SKIP:
                    self._diverged = error
                    self._announce(framework)
                    raise
                session = self.session
                self._ledger.skipped(session.epoch, self.step, session.account.by, error.reason, session.first)
                self.step += 1
            else:
                if result is not None:
                    self._summed = True
                    return result
            self._announce(framework)  # the grid or the step has changed, so this round has a state of its own

    def exchange(self, word: str, data: bytes) -> dict[int, bytes]:
        """What every worker brings, by rank: see `exchange.py`."""
        self._ready_to_exchange(word)
        return self.session.exchange(data)

    def _ready_to_exchange(self, word: str) -> None:
        self.check_process(word)
        self.require_state(word)
        self.on_exchange()
        if self._summed:
            raise JobError(
                f"job.{word} was called in step {self.step} between job.sum and job.commit; call it after job.commit"
            )

    def ticked(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function each call of which is a sign of progress, for work outside a sum that others wait for."""

        def call(value: Any) -> Any:
            self.session.tick()
            return function(value)

        return call

    def commit(self, state: tuple[Any, ...], metrics: Mapping[str, float | Later[float]]) -> None:
        """The step is done; see `Job.commit`."""
        framework = self.require_state("commit")
        if not self._summed:
            raise JobError(f"job.commit was called in step {self.step} without a sum; call job.sum once per step")
        fault = self.session.strike(Point.COMMIT)
        framework.commit(state)
        if fault is not None and fault.kind == FLIP.name:
            framework.flip_bit()
        self.step += 1
        self._summed = False
        account, first = self.session.account, self.session.first
        self._ledger.progress.sums = self.session.places.note()
        digest = self._digest(framework)
        # Before the state may be handed out, and with it the step that is not written down yet.
        by, stall = account.by, self.input.stall()
        self._ledger.committed(self.session.epoch, self.step - 1, by, account.digests, digest, metrics, first, stall)
        self.session.digested(self.step, digest)

    def leave(self, error: BaseException | None = None) -> None:
        """The job ends, with what the user's block raised; all leave it together if all have raised the same."""
        if os.getpid() != self._process:
            return
        shared = self._settings is not None and self._shared
        together = error is None or error is self._diverged
        self.input.close()
        if error is None:
            self.on_leave()
            if self._accumulator is not None:
                self._accumulator.settle()
        if together and shared:
            if not self._summed and not self.passing:
                self._saver.together(self.session, self._rank)
            self.session.leave()
            self._ledger.confirm()
        elif shared and self.session.first and self.step > self.began and self._holds():
            self._saver.after_error(self.session)
        if shared:
            SCRIPT.end(End.LEFT if together else End.RAISED)
        self._checkpoints.close()

    def _holds(self) -> bool:
        """Whether the last committed state is there: PyTorch's objects change, and JAX's arrays may be donated."""
        return self.require_state("save").holds(summed=self._summed)

    def save(self, name: str, metrics: Mapping[str, float]) -> None:
        """Write the state of the last commit under a name; see `Job.save`."""
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name, re.ASCII) or name.startswith("step-"):
            raise JobError(f'job.save got the name {name!r}; give letters, digits, ".", "_" and "-", such as "best"')
        self._ready_to_exchange("save")
        if not self.passing:
            self._saver.together(self.session, self._rank, name, metrics)
            self._named.add(name)

    def saved(self, name: str) -> dict[str, float]:
        """The numbers that a checkpoint was saved with; see `Job.saved`."""
        self.require_state("saved")
        # With plain python, what lies there may be another run's: nothing is resumed then.
        return self._checkpoints.metrics(name) if self._settings is not None or name in self._named else {}

    def check_process(self, word: str) -> None:
        """Refuse to work in a fork of the worker."""
        if os.getpid() != self._process:
            raise JobError(
                f"job.{word} was called in a fork of the worker; the job belongs to the process that made it"
            )

    def require_state(self, word: str) -> Framework:
        """What holds the state; an error where there is none yet."""
        if self.framework is None or not self._shared:
            raise JobError(f"job.{word} was called before job.share; share the state that training begins with first")
        return self.framework

    def _confirm(self, framework: Framework) -> None:
        """All workers have the same state after the last step: now it may be written down, and to disk."""
        self._ledger.confirm()
        if self._settings is not None and self.session.first:
            self._checkpoints.offer(framework, self.step, self._about)

    def _announce(self, framework: Framework, *, arrived: bool = False) -> None:
        """Say that this is the state now; one that has arrived from another worker must be what that one had."""
        digest = self._digest(framework)
        if arrived and self.session.places.states is not None:
            self.session.places.states.settle(digest.value())
        self.session.digested(self.step, digest)

    def _digest(self, framework: Framework) -> Later[int]:
        if framework.device and self._settings is None:
            return Later.of(0)  # nobody is there to compare with, and the device has other work
        self._digested = framework.digest_begun(self._grid_now())
        return self._digested

    def _prepare(self, tree: Any) -> Accumulator:
        """What adds up lanes like this one; made with the first."""
        if self._accumulator is None:
            framework = self.require_state("sum")
            self._accumulator = framework.accumulator(self.config.kind, tree, self.lanes.lanes)
            if len(self._grid):
                self._accumulator.reduction.restore(self._grid)
        return self._accumulator

    def _grid_now(self) -> Levels:
        return self._grid if self._accumulator is None else self._accumulator.reduction.state()

    def _about(self) -> dict[str, Any]:
        diverged = {} if self._diverged is None else {DIVERGED: [self._diverged.reason, self._diverged.advice]}
        epochs = {} if self.epochs_done is None else {"epochs": self.epochs_done}
        return {**self.config.identity(), "grid": self._grid_now().tolist(), **diverged, **epochs}

    def _export(self, framework: Framework, on_device: bool) -> list[Any]:
        # A worker that gets this state also gets to write its step down, in case all that did the step die now.
        about = {"step": self.step, "grid": self._grid_now().tolist(), "pending": self._ledger.pending}
        leaves, states = framework.leaves(), self.session.places.states if on_device else None
        lent = states.lend(leaves, self._digested.value()) if states is not None else None
        return encode(leaves, lent, messages=self.session.messages(), **about)
