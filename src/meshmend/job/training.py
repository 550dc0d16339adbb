"""One worker's training: its state, its step, and the rounds it takes part in. `Job` is its face to the user.

`beginning.py` fills in what the worker begins with. A front end that keeps the user's own loop (`mm.torch.wrap`)
drives it directly, as `job.training`:

    lanes, data          which samples a lane holds; the data that they are drawn from
    input                reads them, ahead where the data wants that, and takes the time: see `data/feed.py`
    step                 how many steps are committed or skipped; may be set before `job.share`
    framework            what holds the state; None before `job.share`
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
from typing import Any

from meshmend.base.env import Settings
from meshmend.errors import NotFinite
from meshmend.job.call_order import CallOrder
from meshmend.job.checkpoints.checkpoints import DIVERGED
from meshmend.job.checkpoints.saving import Saver, State, check_name
from meshmend.job.config import JobConfig
from meshmend.job.data.cache_file import CacheHome
from meshmend.job.data.feed import Feed
from meshmend.job.evaluation import Evaluation, digest_of
from meshmend.job.faults import Faults, Point
from meshmend.job.faults.kinds import FLIP
from meshmend.job.frameworks.base import Framework, Key
from meshmend.job.hints import Hints
from meshmend.job.ledger import StepLedger
from meshmend.job.protocol import Total
from meshmend.job.reduction.base import NonFinite
from meshmend.job.reduction.footer import Word
from meshmend.job.replica import Replica
from meshmend.job.sequence import SCRIPT, End
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.shm.home import MEMORY
from meshmend.job.shm.home import folder_of as shared_memory_of
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
        self.replica: Replica | None = None
        """What this worker has of the state; None before `beginning.begin`."""
        self.calls = CallOrder()
        """What the user's script may call now."""
        self._accounts: list[Total] = []
        """Who did what in the sums of this step."""
        self.rank = 0 if settings is None else settings.rank
        self.settings = settings
        self.ledger = StepLedger(settings)
        self.progress = self.ledger.progress
        """What is printed of the steps."""
        self.number = 1
        """Its number in the script, once it has begun."""
        self.diverged: NotFinite | None = None
        """What ended this job on all workers alike: it is judged by a sum, which all of them have."""
        self.passing = False
        """Whether the run has done this job already, and this worker only passes through it."""
        self.saver = Saver(settings, self.ledger, self.state)
        self.session: Solo | WorkerSession
        if settings is None or self.ledger.log is None:
            self.session = Solo(self.lanes.lanes)
        else:
            self.session = WorkerSession(settings, self.lanes.lanes)
            self.session.faults = Faults(settings.rank, settings.folder, self.ledger.log, lambda: self.session.epoch)
            self.session.save = self.saver.halted
            self.session.holds = self._holds
            self.ledger.log.wait = self.session.waits_for_room
        home = CacheHome() if settings is None else CacheHome(shared_memory_of(settings.run), MEMORY)
        self.input = Feed(data, self.lanes, lambda: self.mine, home)
        config.kind.warm()

    @property
    def framework(self) -> Framework | None:
        """What holds the state."""
        return None if self.replica is None else self.replica.framework

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

    def state(self) -> State | None:
        """What a checkpoint would hold if it were written now; None before there is a state."""
        return None if self.replica is None else (self.replica.framework, self.step, self._about())

    def _holds(self) -> bool:
        """Whether the state of the last commit is here."""
        return self.replica is None or self.replica.framework.holds(summed=self.calls.summed)

    def say_repeat(self, what: str) -> None:
        """Say once that the user's loop goes through what was done before this worker began."""
        if self.began and self.epoch is None:
            self._hints.repeats(what, self.began)

    def round(self, word: Word | None = None) -> Generator[int, Any, Any]:
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
                self._offer(replica.framework)
            try:
                result = self._finished(replica, total, turn)
            except NotFinite as error:
                self.session.messages.settle()  # it was the total that was not finite
                if turn:
                    why = f"{error.reason}, in sum {turn + 1} of the step; only its first sum could be left out"
                    self.diverged = NotFinite(error.step, why, error.advice, skips=False)
                    raise self.diverged from None
                if self.config.nonfinite is not NonFinite.SKIP:
                    self.diverged = error
                    replica.announce(self.session, self.step)
                    raise
                session = self.session
                self.ledger.skipped(session.epoch, self.step, session.account.by, error.reason, session.first)
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

    def _finished(self, replica: Replica, total: Any, turn: int) -> Any | None:
        """The tree of a total; see `Replica.finish`.

        All workers have the same state after the last step: it is written down, while a device has work if there is
        one.
        """
        if turn or not replica.patient:
            self.ledger.confirm()
        self.session.messages.meanwhile = self.ledger.confirm
        try:
            with self.session.messages.reading():
                return replica.finish(total, self.step, turn)
        finally:
            self.ledger.confirm()

    def _offer(self, framework: Framework) -> None:
        """The state after the last step may be written to disk, with the grids that belong to it: they move next."""
        if self.settings is not None and self.session.first:
            self.saver.checkpoints.offer(framework, self.step, self._about)

    def commit(self, state: tuple[Any, ...], metrics: Mapping[str, float | Later[float]]) -> None:
        """The step is done; see `Job.commit`."""
        replica = self._required("commit")
        self.calls.check_commit(self.step)
        fault = self.session.strike(Point.COMMIT)
        replica.commit(state, self.step)
        self.session.messages.settle()
        if fault is not None and fault.kind == FLIP.name:
            replica.framework.flip_bit()
        self.step += 1
        accounts, first = self._accounts, self.session.first
        self.calls.sums, self._accounts = 0, []
        self.progress.sums = self.session.messages.note()
        digest = replica.digest()
        # Before the state may be handed out, and with it the step that is not written down yet.
        by, stall = [account.by for account in accounts], self.input.stall()
        active = accounts[-1].digests
        self.ledger.committed(self.session.epoch, self.step - 1, by, active, digest, metrics, first, stall)
        self.session.digested(self.step, digest)
        if accounts[-1].save:
            self.saver.begin()

    def exchange(self, word: Word, data: bytes) -> dict[int, bytes]:
        """What every worker brings, by rank: see `exchange.py`."""
        self._settle(word)
        return self.session.exchange(word, data)

    def evaluated(self, done: Evaluation, result: Any) -> None:
        """An evaluation has this result on all workers: one line of the ledger."""
        chunks, write = done.chunks, self.ledger.evaluated
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
        self._settle(Word.SAVE)
        if not self.passing:
            self.saver.together(self.session, self.rank, name, metrics)

    def leave(self, error: BaseException | None = None) -> None:
        """The job ends, with what the user's block raised; all leave it together if all have raised the same."""
        if self.calls.in_fork:
            return
        shared = self.settings is not None and self.calls.shared
        together = error is None or error is self.diverged
        self.input.close()
        if error is None:
            self.on_leave()
            if self.replica is not None:
                self.replica.settle()
        if together and shared:
            known = not self.calls.summed or (self.diverged is not None and self._holds())
            if known and not self.passing:
                self.saver.together(self.session, self.rank)
            self.session.leave()
            self.ledger.confirm()
        elif together:
            self.ledger.confirm()  # alone, the last step may not be printed yet
        elif shared and (self.session.first or self.calls.sharded) and self.step > self.began:
            self.saver.after_error(self.session, summed=self.calls.summed)
        if shared:
            SCRIPT.end(End.LEFT if together else End.RAISED)
        self.saver.checkpoints.close()

    def _required(self, word: str) -> Replica:
        """What this worker has of the state; an error where there is none yet."""
        self.calls.check_shared(word)
        assert self.replica is not None, "it is made before it counts as shared"
        return self.replica

    def _about(self) -> dict[str, Any]:
        """What a checkpoint says of this job."""
        assert self.replica is not None, "there is nothing to save before there is a state"
        diverged = {} if self.diverged is None else {DIVERGED: [self.diverged.reason, self.diverged.advice]}
        epochs = {} if self.epochs_done is None else {"epochs": self.epochs_done}
        return {**self.replica.header(), **diverged, **epochs}
