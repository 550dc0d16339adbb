"""Who saves which slices of a sharded job where all workers do it together: `checkpoints/saving.py` with slices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from meshmend.base.env import Settings
from meshmend.job.checkpoints.saving import Saver, State
from meshmend.job.ledger import StepLedger
from meshmend.job.reduction.footer import Word
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.sharding.placement import in_line
from meshmend.job.slices.checkpoints import SliceCheckpoints
from meshmend.job.slices.replica import ShardedReplica


@dataclass(frozen=True)
class Told:
    """What a worker tells the others."""

    held: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    done: bool = False
    """Whether it has written the index."""

    def to_bytes(self) -> bytes:
        """As it is sent: a byte, and a bitmap for each."""
        rows = [sum(1 << number for number in which) for which in (self.held, self.written)]
        size = max(1, *(-(-row.bit_length() // 8) for row in rows))
        return bytes([self.done]) + b"".join(row.to_bytes(size, "little") for row in rows)

    @classmethod
    def of(cls, data: bytes) -> Told:
        """What was sent."""
        half = len(data) // 2
        held, written = (int.from_bytes(data[begin : begin + half], "little") for begin in (1, 1 + half))
        return cls(_bits(held), _bits(written), bool(data[0]))


class SliceSaver(Saver):
    """Writes the slices of the last committed state; `mine` are those that this worker gives out.

    `settled` says whether they are: not where they have been updated in a step that is not committed yet.
    """

    def __init__(
        self,
        settings: Settings | None,
        ledger: StepLedger,
        state: Callable[[], State | None],
        replica: ShardedReplica,
        mine: Callable[[], Collection[int]],
        settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._replica, self._mine, self.settled = replica, mine, settled
        super().__init__(settings, ledger, state)

    def open(self, job: int) -> None:
        """The checkpoints are those of this job of the script."""
        self.slices = SliceCheckpoints(self._settings, self._ledger, job, self._replica, self._mine)
        self.checkpoints = self.slices

    def now(self, name: str = "", metrics: Mapping[str, float] | None = None) -> bool:
        """Write this worker's slices, and wait for the others'; whether there is a checkpoint."""
        if self.settled():
            return super().now(name, metrics)
        # They have been updated for a step that nobody will finish: what all have written of the last commit counts.
        found = self._state()
        return not name and found is not None and self.slices.written == found[1] and self.slices.found(found[1])

    def begin(self) -> None:
        """Write this worker's slices of the last committed state in the background, as all workers do.

        Its last step is recorded first, since a checkpoint may be complete before the next round would record it. All
        members have met and compared its slices, so nobody can undo it; only one whose weights changed since waits.
        """
        if self._replica.wrong < 0:
            self._ledger.confirm()
        state = self._state()
        assert state is not None, "it was committed"
        _, step, about = state
        self.slices.begin(step, about)

    def together(
        self, session: WorkerSession | Solo, rank: int, name: str = "", metrics: Mapping[str, float] | None = None
    ) -> None:
        """Have every worker write slices while the others wait, and the first the index; if one dies, others do."""
        every = frozenset(range(self._replica.holder.slicing.count))
        written, done, word = frozenset[int](), False, Word.SAVE if name else Word.END
        while True:
            told = Told(frozenset(self._replica.held()), written, done)
            found = {who: Told.of(data) for who, data in session.exchange(word, told.to_bytes()).items()}
            self._ledger.confirm()
            if found[min(found)].done:
                break
            state = self._state()
            assert state is not None, "there is one before it can be saved"
            _, step, about = state
            missing = every - frozenset[int]().union(*(one.written for one in found.values()))
            with session.waits_for_room():
                if missing:
                    own = _share(missing, {who: one.held for who, one in found.items()}, rank)
                    self.slices.write(step, own)
                    written |= own
                elif min(found) == rank:
                    more = {**about, "metrics": dict(metrics)} if metrics else about
                    self.slices.completed(step, more, name)  # or it was said why not: nobody can do better
                    done = True
        if name:
            self._named.add(name)


def _share(missing: frozenset[int], held: Mapping[int, frozenset[int]], rank: int) -> frozenset[int]:
    """The missing slices that a rank writes: those of which it is the first holder that is here."""
    lines = in_line(max(missing) + 1, held.keys())
    return frozenset(
        number for number in missing if next((one for one in lines[number] if number in held[one]), None) == rank
    )


def _bits(row: int) -> frozenset[int]:
    return frozenset(place for place in range(row.bit_length()) if row >> place & 1)
