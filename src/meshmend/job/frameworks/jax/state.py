"""A tree of arrays that stays on its device: `commit` keeps references, and copies nothing.

The committed state is kept until the sum of the next step has been returned. From then on the user's update may donate
it: a worker is never asked for its state between the arrival of a sum and the commit that follows. Anything that must
last longer (a checkpoint that is written in the background) is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.frameworks.base import Accumulator, Framework
from meshmend.job.frameworks.jax import host
from meshmend.job.frameworks.jax.digest import Begin, programs_of, sums_begun
from meshmend.job.frameworks.jax.sharded import ShardedSums
from meshmend.job.frameworks.jax.shards import home_of
from meshmend.job.frameworks.jax.sums import JaxSums
from meshmend.job.frameworks.jax.tree import leaves_of, rebuilt
from meshmend.job.reduction.base import Reduction
from meshmend.job.state.digest import Facts, Later, finished, opening
from meshmend.job.state.kinds import Kinds
from meshmend.job.state.tree import Leaves, OnDevice


def device_of(tree: Any) -> str:
    """Return the kind of device that a tree is on, in words; "" if no leaf is a JAX array."""
    found: list[Any] = [leaf for _, leaf in leaves_of(tree) if isinstance(leaf, jax.Array)]
    kinds = {str(device.platform) for leaf in found for device in leaf.sharding.device_set}
    return min(kinds - {"cpu"} or kinds, default="")


def is_spread(tree: Any) -> bool:
    """Whether a tree is on several devices of this worker, of whatever kind."""
    return home_of([leaf for _, leaf in leaves_of(tree)]) is not None


def cuda_of(tree: Any) -> int | None:
    """The NVIDIA device that all arrays of a tree are on, by its number in this process; None if there is no such."""
    arrays: list[Any] = [leaf for _, leaf in leaves_of(tree) if isinstance(leaf, jax.Array)]
    found = list({device for leaf in arrays for device in leaf.sharding.device_set})
    if len(found) != 1:
        return None
    device = found[0]
    if not device.device_kind.startswith("NVIDIA"):
        return None
    number = getattr(device, "local_hardware_id", None)
    return int(device.id if number is None else number)


@lru_cache
def _is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


class JaxState(Framework):
    """A tree with arrays of JAX, on their devices; other leaves stay what they are."""

    def __init__(self, tree: Any) -> None:
        self.device, self.cuda = device_of(tree), cuda_of(tree)
        self._opening = 0
        self._kinds: list[Any] = []
        self._avals: list[Any] = []
        """What JAX says of the leaves that were checked last; empty unless all of them are its arrays."""
        self._programs: list[tuple[list[int], Begin]] = []
        self._spent: Any = None
        """The state before this one, if all of it was donated: to release hundreds of arrays takes a millisecond."""
        self._plain = False
        """Whether all leaves are such that the digester can take their sums."""
        self.tree, self._found = tree, self._checked(tree)
        self._shared = Kinds(self._found)

    @property
    def shared(self) -> Any:
        """The tree."""
        return self.tree

    @staticmethod
    def _checked(tree: Any) -> list[tuple[str, Any]]:
        """The leaves of a tree that can be a state."""
        found = leaves_of(tree)
        for name, leaf in found:
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise JobError(
                    f"leaf {name!r} of the committed state was donated to a compiled function; commit what that "
                    "function returned"
                )
            if isinstance(leaf, jax.Array) and _is_key(leaf.dtype):
                raise JobError(
                    f"leaf {name!r} of the state is a jax.random key, which cannot be sent to another worker; keep "
                    "jax.random.key_data(key) in the state, and make the key from it with jax.random.wrap_key_data(…)"
                )
            if not isinstance(leaf, jax.Array) and np.asarray(leaf).dtype.hasobject:
                raise JobError(
                    f"leaf {name!r} of the state is a {type(leaf).__name__}, not an array; use dicts, lists and tuples "
                    "of arrays, or register its class with JAX (jax.tree_util.register_dataclass)"
                )
        return found

    def leaves(self) -> Leaves:
        """Return its arrays, which are fetched on first access."""
        return [(name, self._leaf(leaf)) for name, leaf in self._found]

    @staticmethod
    def _leaf(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return np.asarray(leaf)
        place = (lambda: (host.address(leaf), leaf)) if host.in_one_row(leaf) else None
        return OnDevice(leaf.shape, np.dtype(leaf.dtype), lambda: host.fetch(leaf), place)

    def template(self) -> Leaves | None:
        """Every tree must have these leaves."""
        return self.leaves()

    def adopt(self, leaves: Leaves) -> None:
        """Put other arrays into a tree of the same shape, on the same devices."""
        pairs = zip(self._found, leaves, strict=True)
        found = [host.adopted(value, mine) for (_, mine), (_, value) in pairs]
        self.tree = rebuilt(self.tree, found)
        self._found = self._checked(self.tree)

    def commit(self, state: tuple[Any, ...]) -> None:
        """Take the tree after a step."""
        if len(state) != 1:
            raise JobError(f"job.commit got {len(state)} states; give it one tree, the state after this step")
        found = self._again(state[0])
        if found is None:
            found = self._checked(state[0])
            self._shared.check(found)
            arrays = [leaf for _, leaf in found if isinstance(leaf, jax.Array)]
            self._avals = [leaf.aval for leaf in arrays] if len(arrays) == len(found) else []
        donated = all(isinstance(leaf, jax.Array) and leaf.is_deleted() for _, leaf in self._found)
        self._spent = (self.tree, self._found) if donated else None
        self.tree, self._found = state[0], found

    def _again(self, tree: Any) -> list[tuple[str, Any]] | None:
        """The leaves of a tree, if they are of the very kinds that were checked last; None if that is not certain.

        To look at each of hundreds of leaves takes a millisecond in every step, in which the device has nothing to do.
        """
        if not self._avals:
            return None
        found = leaves_of(tree)
        leaves = [leaf for _, leaf in found]
        if [getattr(leaf, "aval", None) for leaf in leaves] != self._avals or any(leaf.is_deleted() for leaf in leaves):
            return None
        return found if [name for name, _ in found] == [name for name, _ in self._found] else None

    def holds(self, *, summed: bool) -> bool:
        """Until it is donated."""
        del summed
        return not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for _, leaf in self._found)

    def snapshot(self) -> Leaves:
        """Copies that have begun to go to the host; the arrays may be donated from now on."""
        found: Leaves = []
        for name, leaf in self._found:
            facts = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
            copy: Any = OnDevice(facts.shape, np.dtype(facts.dtype), host.begin(leaf))
            found.append((name, copy))
        return found

    def digest(self, *more: npt.NDArray[Any]) -> int:
        """A hash of the state, and of other arrays that belong to it."""
        return self.digest_begun(*more).value()

    def digest_begun(self, *more: npt.NDArray[Any]) -> Later[int]:
        """Have the devices compute it in parallel with the next lane's gradients.

        Launching a program with hundreds of arrays takes milliseconds, in which the device would be idle.
        """
        found = self._found
        return Later.begun_by(lambda: self._begun(found, more))

    def _begun(self, found: list[tuple[str, Any]], more: Sequence[npt.NDArray[Any]]) -> Callable[[], int]:
        self._spent = None  # the device has the next lane to compute
        for name, leaf in found:
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise JobError(
                    f"leaf {name!r} of the committed state was donated to a compiled function before the next sum; "
                    "keep the state until job.sum has returned"
                )
        leaves = [leaf for _, leaf in found]
        kinds = [(leaf.shape, leaf.dtype, leaf.sharding) if isinstance(leaf, jax.Array) else None for leaf in leaves]
        if kinds != self._kinds or None in kinds:  # what the leaves are hardly ever changes
            types = [leaf.dtype.name if isinstance(leaf, jax.Array) else str(np.asarray(leaf).dtype) for leaf in leaves]
            shapes = [tuple(np.shape(leaf)) for leaf in leaves]
            names = [name for name, _ in found]
            self._opening = opening([Facts(*one) for one in zip(names, types, shapes, strict=True)])
            there = [isinstance(leaf, jax.Array) and host.in_one_row(leaf) for leaf in leaves]
            self._plain = self.digester is not None and all(there)
            self._kinds, self._programs = kinds, [] if self._plain else programs_of(leaves)
        number = self._opening
        fetch = self._plainly_begun(leaves) if self._plain else sums_begun(leaves, self._programs)
        return lambda: finished(number, fetch(), more)

    def _plainly_begun(self, leaves: list[Any]) -> Callable[[], npt.NDArray[np.uint32]]:
        """Without a program of JAX, which runs behind what the device was given before."""
        assert self.digester is not None, "it was there when the leaves were looked at"
        host.wait_for(leaves)
        sums = self.digester.begin([(host.pointer(leaf), leaf.nbytes) for leaf in leaves])

        def fetch() -> npt.NDArray[np.uint32]:
            found = sums()
            del leaves[:]  # they had to stay
            return found

        return fetch

    def number_begun(self, value: Any) -> Later[float] | None:
        """A number of JAX is fetched later."""
        if not isinstance(value, jax.Array) or value.size != 1:
            return None
        value.copy_to_host_async()
        return Later(lambda: float(np.asarray(value).reshape(())))

    def leaves_of(self, tree: Any) -> list[tuple[str, Any]]:
        """The leaves of a lane's tree."""
        return leaves_of(tree)

    def rebuilt(self, tree: Any, values: Sequence[Any]) -> Any:
        """A tree of the same shape with other leaves."""
        return rebuilt(tree, values)

    def accumulator(self, kind: type[Reduction], tree: Any, lanes: int) -> Accumulator:
        """Adds up lanes on the device, or on the devices that they and the state are spread over."""
        home = home_of([leaf for _, leaf in [*self._found, *leaves_of(tree)]])
        return JaxSums(kind, tree, lanes) if home is None else ShardedSums(kind, tree, lanes, home)
