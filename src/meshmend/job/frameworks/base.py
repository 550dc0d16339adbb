"""What a framework is to a job: what a state is, how a lane is computed and accumulated, exported and digested.

A `Framework` holds the training state of one worker in a library's own objects. A tree of arrays (numpy, JAX) is
replaced at every commit; PyTorch's objects change in place, and their leaves may come and go (an optimizer has no
moments before its first step).

**A gradient is a numpy array** in `HostAccumulator`, and nowhere else: a framework that accumulates on its device
returns its own `Accumulator`, which touches the host's buffer only in `export`. A state's leaves may be
`OnDevice`: then they come to the host only when numpy needs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.data.feed import Feed
from meshmend.job.data.lanes import Lanes
from meshmend.job.reduction.base import Flat, Reduction
from meshmend.job.reduction.layout import Layout, Rooms
from meshmend.job.state.digest import Digester, Later
from meshmend.job.state.tree import Leaves, digest_of

OBJECTS = "objects"
"""The leaf of a state of PyTorch objects that holds everything that is not a tensor."""
Key = tuple[int, ...]
"""(seed, step, lane), and for all but the first sum of a step which one it is: what a lane's random numbers depend on,
on every worker."""


class Accumulator(ABC):
    """Adds up the lanes that one worker computes."""

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction

    @abstractmethod
    def accumulate(self, tree: Any, buffer: Flat, *, first: bool) -> None:
        """Add one lane; the first one replaces the old sum. `buffer` may be used for it, but need not be."""

    @abstractmethod
    def export(self, buffer: Flat) -> None:
        """Write the sum of the lanes so far to the buffer, the worker's part of the round; more lanes may follow."""

    def brought(self) -> None:  # noqa: B027 (the host has nothing to prepare)
        """The part has been brought, and the others' are awaited: time to prepare what the sums need."""

    def alone(self, buffer: Flat) -> Any:
        """Return the total of a world of one: this worker's part, wherever it is."""
        self.export(buffer)
        return buffer

    @abstractmethod
    def finish(self, total: Any, step: int, *, check: bool = False) -> Any | None:
        """The tree of sums over all workers; None if the round must be repeated.

        `total` is the message, whose footer is passed over, or what `alone` returned. `check`: raise `NotFinite` where
        a sum holds NaN or Inf.
        """

    def warm(self, tree: Any, *, packed: bool) -> None:  # noqa: B027 (the host compiles nothing)
        """Compile what sums of lanes like this one need; `packed`: where they are packed into device memory."""

    def settle(self) -> None:  # noqa: B027 (the host has nothing that is late)
        """Raise what is wrong with the last step, if that is known only once the device has computed it."""


class Framework(ABC):
    """The state of one worker, and how a lane is computed with it."""

    device = ""
    """Where the state is, in words, if that is not the host's memory."""
    paired = False
    """Whether a lane returns a pair, of which the second goes its own way (gradients of embedding rows)."""

    @property
    @abstractmethod
    def shared(self) -> Any:
        """What `job.share` returns to the user."""

    cuda: int | None = None
    """The CUDA device that its accumulators keep their sums on: then `export` takes a `View` of device memory
    (`device/cuda.py`) as well as an array of numpy, and so does `finish`; None for the host."""

    digester: Digester | None = None
    """What takes digests of arrays on that device, if it need not do that by itself."""

    @abstractmethod
    def leaves(self) -> Leaves:
        """Return the arrays of the last committed state; not copies, and on their device until they are needed."""

    def template(self) -> Leaves | None:
        """Return arrays of the names, shapes and types that `adopt` takes; None if it checks them itself."""
        return None

    @abstractmethod
    def adopt(self, leaves: Leaves) -> None:
        """Take over the state of another worker or of a checkpoint."""

    @abstractmethod
    def commit(self, state: tuple[Any, ...]) -> None:
        """The step is done: this, or what the shared objects now hold, is the state."""

    def snapshot(self) -> Leaves:
        """A copy of the state that stays as it is while training continues."""
        return [(name, np.array(value, order="C")) for name, value in self.leaves()]

    def digest(self, *more: npt.NDArray[Any]) -> int:
        """A hash of the state, and of other arrays that belong to it."""
        return digest_of([*self.leaves(), *(("", array) for array in more)])

    def digest_begun(self, *more: npt.NDArray[Any]) -> Later[int]:
        """Begin to compute the digest; the state does not change before it has been awaited."""
        return Later.of(self.digest(*more))

    def number_begun(self, value: Any) -> Later[float] | None:
        """Begin to fetch a single number, if it is on a device, so that no step waits for it."""
        del value
        return None

    def holds(self, *, summed: bool) -> bool:
        """Whether this is still the state of the last commit; `summed`: a sum has arrived since, and been given out."""
        return not summed or self.template() is not None

    def host(self, value: Any) -> npt.NDArray[Any]:
        """A leaf of a lane's tree, on the host."""
        return np.asarray(value)

    def flip_bit(self) -> None:
        """Change one bit of the first leaf, for tests of how such a fault is found."""
        leaves = [(name, np.array(value)) for name, value in self.leaves()]
        leaves[0][1].reshape(-1).view(np.uint8)[0] ^= 1
        self.adopt(leaves)

    @abstractmethod
    def leaves_of(self, tree: Any) -> list[tuple[str, Any]]:
        """The leaves of a lane's tree, by name, in a fixed order."""

    @abstractmethod
    def rebuilt(self, tree: Any, values: Sequence[Any]) -> Any:
        """A tree of the same shape with other leaves."""

    def begin(self, key: Key) -> None:  # noqa: B027 (trees need nothing)
        """A lane begins: nothing of the previous lane is left, and random numbers depend on the key alone."""

    def end(self, result: Any) -> Any:
        """The lane is done: the tree of everything to be summed, given what the user's function returned."""
        return result

    def drop(self) -> None:  # noqa: B027 (trees need nothing)
        """Undo a lane, as if it had never begun."""

    def lane(self, work: Callable[[], Any], key: Key) -> Any:
        """One lane from begin to end."""
        self.begin(key)
        found = work()
        if not self.paired:
            return self.end(found)
        if not isinstance(found, tuple) or len(found) != 2:
            raise JobError(
                f"the function given to job.sum returned a {type(found).__name__}; in a job with tables, return a "
                "pair: what is to be summed, and tables.gradient(ids, values)"
            )
        return self.end(found[0]), found[1]

    def take(self, total: Any, lanes: int, *, mean: bool = False) -> Any:
        """Put the sums, or the means over lanes, where the objects want them; returns what `job.sum` returns."""
        del lanes, mean
        return total

    def accumulator(self, kind: type[Reduction], tree: Any, lanes: int) -> Accumulator:
        """Return the accumulator for lanes like this first one, over this many lanes in all."""
        return HostAccumulator(self, kind, tree, lanes)


class HostAccumulator(Accumulator):
    """Adds up lanes as numpy arrays, in the host's memory.

    `rooms` names the leaves of a lane's tree whose memory may take the sums, once the lane has been added up.
    """

    def __init__(
        self,
        framework: Framework,
        kind: type[Reduction],
        tree: Any,
        lanes: int,
        rooms: Callable[[Any], Rooms] | None = None,
    ) -> None:
        self._framework, self._rooms = framework, rooms
        layout = Layout(self._arrays(tree), lanes)
        self._tree = framework.rebuilt(tree, [0] * len(layout.leaves))  # without its arrays, which are as large as all
        if not layout.leaves:
            raise JobError(
                "the function given to job.sum returned nothing to sum; return gradients, or share a model and its "
                "optimizer"
            )
        super().__init__(kind(layout, lanes))
        self._last: Any = None
        """The last lane of this round, if its memory may take the sums."""

    def accumulate(self, tree: Any, buffer: Flat, *, first: bool) -> None:
        """Add one lane, straight into the message where the reduction can."""
        self.reduction.add(buffer, self.reduction.layout.arrays(self._arrays(tree)), first=first)
        if self._rooms is not None:
            self._last = tree

    def export(self, buffer: Flat) -> None:
        """Have the reduction write what it has not written yet."""
        self.reduction.put(buffer)

    def finish(self, total: Any, step: int, *, check: bool = False) -> Any | None:
        """The tree of sums, in the shape of the first lane's."""
        body, rooms = total[: self.reduction.size], self._rooms(self._last) if self._rooms and self._last else ()
        self._last = None  # only once: from now on it is the user's
        if check:
            self.reduction.check(body, step)
        values = self.reduction.finish(body, step, rooms)
        return None if values is None else self._framework.rebuilt(self._tree, values)

    def _arrays(self, tree: Any) -> Leaves:
        return [(name, np.asarray(value)) for name, value in self._framework.leaves_of(tree)]


@runtime_checkable
class InPlace(Protocol):
    """A framework whose objects change in place, so that a script may change them when it is too late for a commit."""

    def changed(self) -> str:
        """Which of the shared objects has other numbers than at the last commit; nothing if none has."""
        ...


class LoopTraining(Protocol):
    """What a front end needs that keeps the user's own loop (`mm.torch.wrap`): `job.training`, documented there."""

    step: int
    epoch: int | None
    lanes: Lanes
    data: Any
    input: Feed
    loop: object
    on_leave: Callable[[], None]
    on_exchange: Callable[[], None]

    @property
    def config(self) -> Any: ...

    @property
    def framework(self) -> Framework | None: ...

    @property
    def workers(self) -> int: ...

    @property
    def mine(self) -> Sequence[int]: ...

    def key(self, lane: int) -> Key: ...

    def round(self) -> Generator[int, Any, Any]: ...

    def say_repeat(self, what: str) -> None: ...


class LoopJob(Protocol):
    """A job, as such a front end sees it."""

    @property
    def training(self) -> LoopTraining: ...

    @property
    def step(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    def share(self, *state: Any) -> Any: ...

    def commit(self, *state: Any, **metrics: Any) -> None: ...
