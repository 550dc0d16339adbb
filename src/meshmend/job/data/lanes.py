"""Which samples a lane holds: a fixed function of the step, so that any worker can compute any lane.

A lane is a microbatch. Epochs are shuffled by seed and laid end to end; step s takes the next `batch` samples of that
endless sequence, in lanes of equal size. So every sample of every epoch is used exactly once, a batch may cross the end
of an epoch, and there is no partial batch: the shape of a lane never changes, and nothing is compiled twice.

    epoch 0: 3 0 4 1 2 | epoch 1: 1 4 0 2 3 | …        5 samples, batch 4, 2 lanes
    step 0:  3 0 · 4 1      step 1: 2 1 · 4 0       step 2: 2 3 · …
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lanes:
    """How `size` samples are divided into steps and lanes."""

    size: int
    batch: int
    lanes: int
    seed: int = 0
    in_order: bool = False
    """Take samples in order instead of shuffled: each lane reads through its own range of the epoch."""
    lengths: Ids | None = field(default=None, repr=False, compare=False)
    """The lengths of all samples: those of a step are then assigned to its lanes by length, the shortest first."""
    _epochs: dict[int, Ids] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch < 1 or self.lanes < 1:
            raise JobError(f"batch={self.batch} and lanes={self.lanes}: both must be at least 1")
        if self.batch % self.lanes:
            near = [n for n in range(1, min(self.batch, 2 * self.lanes) + 1) if self.batch % n == 0]
            best = min(near, key=lambda n: abs(n - self.lanes))
            raise JobError(
                f"a batch of {self.batch} cannot be divided into {self.lanes} equal lanes: lanes must divide it, "
                f"such as lanes={best}"
            )
        if self.size < self.batch:
            raise JobError(
                f"the data has {self.size} samples, fewer than one batch of {self.batch}: give a smaller batch"
            )

    @property
    def lane_size(self) -> int:
        """Samples in a lane."""
        return self.batch // self.lanes

    def first_step(self, epoch: int) -> int:
        """The first step that begins in an epoch; an epoch holds the steps that begin in it."""
        return -(-epoch * self.size // self.batch)

    def epoch_of(self, step: int) -> int:
        """The epoch that a step begins in."""
        return step * self.batch // self.size

    def epoch_to_begin(self, step: int, done: int | None) -> int:
        """The epoch in which a loop begins before this step, if it has left `done` epochs and all that follows them.

        After the last step of an epoch the loop is still in it (an evaluation may follow), but only a checkpoint
        records that. Newcomers begin with the next epoch, since the others may be anywhere in what follows that step.
        """
        epoch = self.epoch_of(step)
        rest = done == epoch - 1 and step == self.first_step(epoch)
        return epoch - 1 if rest else epoch

    def ids(self, step: int, lane: int) -> Ids:
        """The samples of one lane of one step."""
        if self.lengths is None:
            return self._taken(step * self.batch + lane * self.lane_size, self.lane_size)
        batch = self._taken(step * self.batch, self.batch)
        order = np.argsort(self.lengths[batch], kind="stable")
        return batch[order[lane * self.lane_size : (lane + 1) * self.lane_size]]

    def _taken(self, begin: int, count: int) -> Ids:
        place = np.arange(begin, begin + count)
        epoch = place // self.size
        return np.concatenate([self.epoch(int(e))[place[epoch == e] % self.size] for e in np.unique(epoch)])

    def epoch(self, epoch: int) -> Ids:
        """The samples of an epoch, in the order in which steps take them."""
        if epoch not in self._epochs:
            for old in [e for e in self._epochs if e < epoch - 1]:
                del self._epochs[old]
            random = np.random.default_rng((self.seed, epoch))
            self._epochs[epoch] = self._stretches() if self.in_order else random.permutation(self.size)
        return self._epochs[epoch]

    def _stretches(self) -> Ids:
        """All samples, so that a lane of one step continues where that lane ended in the last."""
        own = self.lane_size
        steps = self.size // self.batch
        begins = np.arange(self.lanes) * steps * own + np.arange(steps)[:, None] * own
        whole = (begins[..., None] + np.arange(own)).reshape(-1)
        return np.concatenate([whole, np.arange(len(whole), self.size)])
