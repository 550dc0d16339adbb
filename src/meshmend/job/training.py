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

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from meshmend.base.env import Settings
from meshmend.base.signatures import takes
from meshmend.errors import JobError, NotFinite
from meshmend.job.call_order import CallOrder
from meshmend.job.checkpoints.checkpoints import DIVERGED
from meshmend.job.checkpoints.folders import folder_of, job_of
from meshmend.job.checkpoints.saving import Saver, State, check_name
from meshmend.job.config import JobConfig
from meshmend.job.data.cache_file import Place
from meshmend.job.data.feed import Feed
from meshmend.job.embeddings.spreading import spread
from meshmend.job.embeddings.tables import EmbeddingTables
from meshmend.job.evaluation import Evaluation, digest_of
from meshmend.job.faults import Faults, Point
from meshmend.job.faults.kinds import FLIP
from meshmend.job.frameworks.base import Framework, Key
from meshmend.job.frameworks.draws import Draws
from meshmend.job.frameworks.weights import Weights
from meshmend.job.hints import Hints
from meshmend.job.ledger import StepLedger
from meshmend.job.protocol import Total
from meshmend.job.reduction.base import NonFinite
from meshmend.job.replica import MORE_GRIDS, Replica
from meshmend.job.sequence import SCRIPT, End
from meshmend.job.session.session import Unneeded, WorkerSession
from meshmend.job.session.solo import Passing, Solo
from meshmend.job.shm.home import MEMORY
from meshmend.job.shm.home import folder_of as shared_memory_of
from meshmend.job.slices.answers import shard
from meshmend.job.slices.replica import Sharded
from meshmend.job.slices.saving import SliceSaver
from meshmend.job.state.digest import Later


class Training:
    """A worker's place in a job, alone or under `meshmend run`."""

    def __init__(self, config: JobConfig, data: Any, settings: Settings | None) -> None:
        self.config, self.lanes, self.data = config, config.lanes, data
        self.step = 0
        self.epoch: int | None = None
        self.epochs_done: int | None = None
        self.began = 0
        self._hints = Hints()
        self.loop: object = None
        self.on_leave: Callable[[], None] = lambda: None
        self.on_exchange: Callable[[], None] = lambda: None
        self._replica: Replica | None = None
        """What this worker has of the state; None before `begin`."""
        self.calls = CallOrder()
        """What the user's script may call now."""
        self._accounts: list[Total] = []
        """Who did what in the sums of this step."""
        self._rank = 0 if settings is None else settings.rank
        self._settings = settings
        self._ledger = StepLedger(settings)
        self.progress = self._ledger.progress
        """What is printed of the steps."""
        self._job = 1
        """Its number in the script, once it has begun."""
        self._diverged: NotFinite | None = None
        """What ended this job on all workers alike: it is judged by a sum, which all of them have."""
        self.passing = False
        """Whether the run has done this job already, and this worker only passes through it."""

        def state() -> State | None:
            return None if self._replica is None else (self._replica.framework, self.step, self._about())

        def holds() -> bool:
            return self._replica is None or self._replica.framework.holds(summed=self.calls.summed)

        self._holds = holds
        """Whether the state of the last commit is here."""
        self._state = state
        """What a checkpoint of now would hold; None before there is a state."""
        self.saver = Saver(settings, self._ledger, state)
        self.session: Solo | WorkerSession
        if settings is None or self._ledger.log is None:
            self.session = Solo(self.lanes.lanes)
        else:
            self.session = WorkerSession(settings, self.lanes.lanes)
            self.session.faults = Faults(settings.rank, settings.folder, self._ledger.log, lambda: self.session.epoch)
            self.session.save = self.saver.halted
            self.session.holds = self._holds
            self._ledger.log.wait = self.session.waits_for_room
        place = Place() if settings is None else Place(shared_memory_of(settings.run), MEMORY)
        self.input = Feed(data, self.lanes, lambda: self.mine, place)
        config.kind.warm()

    @property
    def framework(self) -> Framework | None:
        """What holds the state."""
        return None if self._replica is None else self._replica.framework

    @property
    def workers(self) -> int:
        """How many workers the run was asked to have."""
        return self.session.wanted

    @property
    def mine(self) -> Sequence[int]:
        """The lanes that this worker was asked for last; before that, those it may expect."""
        return self.session.mine

    def key(self, lane: int) -> Key:
        """What the random numbers of a lane of this step depend on, on every worker; in each sum of the step others."""
        turn = self.calls.sums
        return (self.lanes.seed, self.step, lane, turn) if turn else (self.lanes.seed, self.step, lane)

    def lane(self, lane: int) -> Any:
        """The samples of one lane of this step."""
        return self.input.lane(self.step, lane)

    def begin(
        self,
        framework: Framework,
        warm: Callable[..., Any] | None,
        sharded: Sharded | None = None,
        tables: EmbeddingTables | None = None,
    ) -> None:
        """Begin with this state, or that of a checkpoint, or that of another worker; see `Job.share`."""
        self.calls.check_process("share")
        replica: Replica
        if tables is not None:
            tables.may_read = lambda: self.calls.check_rows(self.step)
            replica, self.saver = spread(
                tables, framework, self.config, self.session, self._settings, self._ledger, self._state
            )
        elif sharded is None:
            replica = Replica(framework, self.config, compared=self._settings is not None)
        else:
            assert isinstance(framework, Weights), "it was made for a sharded job"
            save = partial(SliceSaver, self._settings, self._ledger, self._state)
            replica, self.saver = shard(framework, sharded, self.config, self.session, self._settings, save)
        self._replica, self.calls.sharded, self.calls.tables = replica, sharded is not None, tables is not None
        if self._settings is not None:
            self._job = SCRIPT.begin()
            self.saver.open(self._job)
            resume = Path(self._settings.resume) if self._settings.resume else None
            passed = max(self._settings.passed, job_of(resume) - 1 if resume is not None else 0)
            if self._job <= passed:
                self._pass(replica)
                return
            if resume is not None and job_of(resume) == self._job:
                self._load(resume, replica)
        places = self.session.places
        places.device, places.on_device = (lambda: framework.cuda), bool(framework.device)
        framework.digester = places.digests()
        replica.announce(self.session, self.step)
        if warm is not None:
            more = (Draws(*self.key(0)),) if takes(warm, 3) else ()
            tree = framework.lane(lambda: warm(framework.shared, self.lane(0), *more), self.key(0))
            if self._settings is not None:
                replica.warm(tree, packed=framework.digester is not None)
            framework.drop()
        self.session.strike(Point.SHARE)

        def export(on_device: bool) -> list[Any]:
            return replica.export(self.session, self.step, self._ledger.pending, on_device=on_device)

        try:
            received = self.session.share(self._job, export)
        except Unneeded:
            self._pass(replica)
            return
        if received is not None:
            self.step, pending = replica.adopt(received, self.session)
            self._ledger.take_over(pending)
            replica.announce(self.session, self.step, arrived=True)
        self._ledger.opened(self.session.epoch, self.step, self.lanes, self.config.kind.reduction, self._job)
        self.began, self.calls.shared = self.step, True
        self.input.expect(self.step)

    def _load(self, checkpoint: Path, replica: Replica) -> dict[str, Any]:
        checkpoints = self.saver.checkpoints
        self.step, grid, about = checkpoints.load(checkpoint, replica.framework, self.config.identity())
        replica.restore(grid, about.get(MORE_GRIDS, ()))
        self.epochs_done = about.get("epochs")
        return about

    def _pass(self, replica: Replica) -> None:
        """Take the state that this job has left, in place of training: the run has done it already."""
        found = self.saver.checkpoints.last()
        if found is None:
            assert self._settings is not None, "only a run has done a job already"
            if self._job > self._settings.passed:
                self.session.exit_unneeded()
            raise JobError(
                f"job {self._job} of this run is done, but its last state cannot be found in "
                f"{folder_of(self._settings.folder, self._job)}; give all hosts the same folder of runs"
            )
        about = self._load(found, replica)
        self.session = Passing(self.lanes.lanes, self.session.wanted, self._rank, self._job)
        self.began, self.calls.shared, self.passing = self.step, True, True
        if about.get(DIVERGED):  # the others left the job by an exception, and so must this one
            self._diverged = NotFinite(self.step, *map(str, about[DIVERGED]))
            raise self._diverged

    def say_repeat(self, what: str) -> None:
        """Say once that the user's loop goes through what was done before this worker began."""
        if self.began and self.epoch is None:
            self._hints.repeats(what, self.began)

    def round(self, word: str = "") -> Generator[int, Any, Any]:
        """The lanes of this step that this worker is asked for; is sent their trees, and returns the sum.

        A step may have several such rounds. The state is known to all from the first one's total on, and handed to
        newcomers only before that: see `protocol/recovery.py`.
        """
        word = word or self.calls.word
        self.calls.check_process(word)
        replica = self._required(word)
        self.calls.check_sum(word, self.step)
        turn = self.calls.sums
        if not turn:
            self._hints.round_begins(replica.framework, self.step, self.epoch, first=self.session.first)
        while True:
            total = yield from replica.round(self.session, turn)
            if not turn:
                self._confirm(replica.framework)
            try:
                with self.session.places.reading():
                    result = replica.finish(total, self.step, turn)
            except NotFinite as error:
                if turn:
                    why = f"{error.reason}, in sum {turn + 1} of the step; only its first sum could be left out"
                    self._diverged = NotFinite(error.step, why, error.advice, skips=False)
                    raise self._diverged from None
                if self.config.nonfinite is not NonFinite.SKIP:
                    self._diverged = error
                    replica.announce(self.session, self.step)
                    raise
                session = self.session
                self._ledger.skipped(session.epoch, self.step, session.account.by, error.reason, session.first)
                self.step += 1
            else:
                if result is not None:
                    self.calls.sums += 1
                    self._accounts.append(self.session.account)
                    return result
            # Another grid or step, so this round has a state of its own.
            if turn:
                replica.regrid(self.session, self.step)
            else:
                replica.announce(self.session, self.step)

    def _confirm(self, framework: Framework) -> None:
        """All workers have the same state after the last step: now it may be written down, and to disk."""
        self._ledger.confirm()
        if self._settings is not None and self.session.first:
            self.saver.checkpoints.offer(framework, self.step, self._about)

    def commit(self, state: tuple[Any, ...], metrics: Mapping[str, float | Later[float]]) -> None:
        """The step is done; see `Job.commit`."""
        replica = self._required("commit")
        self.calls.check_commit(self.step)
        fault = self.session.strike(Point.COMMIT)
        replica.commit(state, self.step)
        if fault is not None and fault.kind == FLIP.name:
            replica.framework.flip_bit()
        self.step += 1
        accounts, first = self._accounts, self.session.first
        self.calls.sums, self._accounts = 0, []
        self.progress.sums = self.session.places.note()
        digest = replica.digest()
        # Before the state may be handed out, and with it the step that is not written down yet.
        by, stall = [account.by for account in accounts], self.input.stall()
        active = accounts[-1].digests
        self._ledger.committed(self.session.epoch, self.step - 1, by, active, digest, metrics, first, stall)
        self.session.digested(self.step, digest)
        if accounts[-1].save:
            self.saver.begin()

    def exchange(self, word: str, data: bytes) -> dict[int, bytes]:
        """What every worker brings, by rank: see `exchange.py`."""
        self._settle(word)
        return self.session.exchange(word, data)

    def evaluated(self, done: Evaluation, result: Any) -> None:
        """An evaluation has this result on all workers: one line of the ledger."""
        chunks, write = done.chunks, self._ledger.evaluated
        self.session.record(
            lambda epoch, round: write(
                epoch, self.step, round, chunks.size, chunks.chunk, done.ranks, digest_of(result)
            )
        )

    def _settle(self, word: str) -> None:
        """Be between two steps, for what all workers do together there."""
        self.calls.check_process(word)
        self._required(word)
        self.on_exchange()
        self.calls.check_between(word, self.step)

    def save(self, name: str, metrics: Mapping[str, float]) -> None:
        """Write the state of the last commit under a name; see `Job.save`."""
        check_name(name)
        self._settle("save")
        if not self.passing:
            self.saver.together(self.session, self._rank, name, metrics)

    def leave(self, error: BaseException | None = None) -> None:
        """The job ends, with what the user's block raised; all leave it together if all have raised the same."""
        if self.calls.in_fork:
            return
        shared = self._settings is not None and self.calls.shared
        together = error is None or error is self._diverged
        self.input.close()
        if error is None:
            self.on_leave()
            if self._replica is not None:
                self._replica.settle()
        if together and shared:
            known = not self.calls.summed or (self._diverged is not None and self._holds())
            if known and not self.passing:
                self.saver.together(self.session, self._rank)
            self.session.leave()
            self._ledger.confirm()
        elif together:
            self._ledger.confirm()  # alone, the last step may not be printed yet
        elif shared and (self.session.first or self.calls.sharded) and self.step > self.began:
            self.saver.after_error(self.session, summed=self.calls.summed)
        if shared:
            SCRIPT.end(End.LEFT if together else End.RAISED)
        self.saver.checkpoints.close()

    def _required(self, word: str) -> Replica:
        """What this worker has of the state; an error where there is none yet."""
        self.calls.check_shared(word)
        assert self._replica is not None, "it is made before it counts as shared"
        return self._replica

    def _about(self) -> dict[str, Any]:
        """What a checkpoint says of this job."""
        assert self._replica is not None, "there is nothing to save before there is a state"
        diverged = {} if self._diverged is None else {DIVERGED: [self._diverged.reason, self._diverged.advice]}
        epochs = {} if self.epochs_done is None else {"epochs": self.epochs_done}
        return {**self._replica.header(), **diverged, **epochs}
