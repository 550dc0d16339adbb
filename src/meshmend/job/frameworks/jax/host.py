"""The way from JAX's devices to the host and back.

`np.asarray` of an array on a GPU goes through pageable memory, a fortieth of what the wire can do. An array that is put
into pinned host memory first goes at full speed, in the background, and stays what it was even where the original is
donated in the meantime: the runtime keeps its memory until the copy is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from meshmend.job.state.tree import OnDevice

PINNED = "pinned_host"


def begin(array: Any) -> Callable[[], npt.NDArray[Any]]:
    """Begin to copy an array to the host; what is returned waits for it."""
    if not isinstance(array, jax.Array):
        kept = np.array(array, order="C")  # it could change
        return lambda: kept
    if len(array.sharding.device_set) > 1:
        return _assembled(array)
    if _on_host(array):
        view = np.asarray(array)  # no copy, and it keeps the array from being donated
        return lambda: view
    if _can_pin(array):
        pinned = jax.device_put(array, array.sharding.with_memory_kind(PINNED))
        return lambda: np.asarray(pinned)
    array.copy_to_host_async()
    found = np.asarray(array)  # now: it may be donated later
    return lambda: found


def _assembled(array: Any) -> Callable[[], npt.NDArray[Any]]:
    """The same for an array on several devices, shard by shard."""
    shards = [(shard.index, begin(shard.data)) for shard in array.addressable_shards if shard.replica_id == 0]
    shape, dtype = array.shape, array.dtype  # nothing of the array itself, whose memory may be needed

    def fetch() -> npt.NDArray[Any]:
        out = np.empty(shape, dtype)
        for index, fetch_shard in shards:
            out[index] = fetch_shard()
        return out

    return fetch


def fetch(array: Any) -> npt.NDArray[Any]:
    """An array on the host."""
    return begin(array)()


def in_one_row(array: Any) -> bool:
    """Whether the bytes of an array are contiguous, on one device: numbers of less than a byte are packed."""
    plain = np.dtype(array.dtype).kind in "biufc" or array.dtype.name.startswith(("bfloat16", "float8"))
    return plain and len(array.sharding.device_set) == 1


def address(array: Any) -> int:
    """Return where they are, once the array is ready."""
    return pointer(array.block_until_ready())


def pointer(array: Any) -> int:
    """Return where they are or will be."""
    return int(array.unsafe_buffer_pointer())


def wait_for(arrays: Any) -> None:
    """Wait until the device has computed all of these."""
    jax.block_until_ready(arrays)  # type: ignore[no-untyped-call, unused-ignore]


def await_on(stream: int | None, arrays: Sequence[Any]) -> None:
    """Have a stream of the device wait for arrays, or, without one, the host."""
    if stream is None:
        wait_for(arrays)
        return
    for array in arrays:
        array.__dlpack__(stream=stream)  # what it returns is not needed: asking for it makes the stream wait


def adopted(value: Any, like: Any) -> Any:
    """Return another worker's array in place of one: straight from device memory if it was lent, or from the host."""
    place = Destination(like)
    if not place.on_device:
        return np.asarray(value)
    if isinstance(value, OnDevice) and value.into is not None and in_one_row(like):
        made = place.copied(like)  # memory that no one else has a reference to
        value.into(address(made))
        return made
    return place.upload(np.asarray(value))


class Destination:
    """Where an array is, to put others there."""

    def __init__(self, like: Any) -> None:
        self.on_device = isinstance(like, jax.Array)
        self._copies = not self.on_device or _on_host(like)
        # An array that JAX was free to put anywhere stays one: functions are not compiled again for it.
        self._sharding = like.sharding if self.on_device and getattr(like, "committed", True) else None

    def copied(self, array: Any) -> Any:
        """Return a copy of an array on its own device."""
        return jax.device_put(array, self._sharding, may_alias=False)

    def upload(self, array: npt.NDArray[Any]) -> Any:
        """Put an array there; the original may be overwritten as soon as a newer result has come back from there."""
        return jax.device_put(np.array(array) if self._copies else array, self._sharding)

    def upload_flat(self, array: npt.NDArray[Any]) -> Any:
        """The same for a flat array: a mesh of one device may have axes for more dimensions than the array."""
        device = None if self._sharding is None else next(iter(self._sharding.device_set))
        return jax.device_put(np.array(array) if self._copies else array, device)


def _on_host(array: Any) -> bool:
    return all(device.platform == "cpu" for device in array.sharding.device_set)


def _can_pin(array: Any) -> bool:
    device = next(iter(array.sharding.device_set))
    try:
        return any(memory.kind == PINNED for memory in device.addressable_memories())
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
