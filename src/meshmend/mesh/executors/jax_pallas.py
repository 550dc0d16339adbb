"""One Pallas kernel for TPUs that runs a schedule by remote copies: chips wait for each other's chunks, not for slots.

Each chip has a **program**, its own sends and receives in the order of the schedule, and goes through it as fast as
chunks come in. What is to be added lands in a room of the link that it came over, of which each has a few; a result
goes straight to its place, which the receiver has sent off before and does not read again. Semaphores, per link:

    received[way, room]   the chunk is here (the copy itself signals it)
    sent[way, room]       the copy has read its source
    credit[way]           the receiver has emptied a room: it comes back over the link, and the sender waits for it

No chip waits for ever: in the order of (arrival or departure, receives first) every wait is for something earlier, as
long as a link has at least as many rooms as the schedule's `hop`. At the end each chip waits for all its copies and
credits, so that the semaphores are zero and nobody writes into a kernel that is over; at the beginning neighbours meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from meshmend.errors import PlanError
from meshmend.mesh import Fabric
from meshmend.mesh.grid import opposite
from meshmend.mesh.schedule import Schedule

ROOMS = 2
"""Chunks that may be on their way over a link, or wait at its end."""
LINE, LEAST_LINES, BLOCK = 128, 32, 256
"""Numbers in a line; lines in a tile of the smallest type; lines that are added at a time, in fast memory."""
COLLECTIVE = 19
"""What names the barrier of this kernel among others in one program."""
SEND_TO_ADD, SEND_TO_COPY, ADD, COPY = range(4)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["steps", "count", "peers"],
    meta_fields=["mesh", "chunks", "axis", "interpret"],
)
@dataclass(frozen=True, eq=False)
class Programs:
    """A schedule as a program per device, of which each device holds its own row."""

    steps: Any
    """[device, step]: kind, way and chunk in one number."""
    count: Any
    """[device, 1]: how many of them."""
    peers: Any
    """[device, 2, way]: the device that this way leads to, and the one that it comes from; -1 for none."""
    mesh: Fabric
    chunks: int
    axis: str
    interpret: Any

    @property
    def spec(self) -> Programs:
        """How it is divided."""
        each = PartitionSpec(self.axis)  # type: ignore[no-untyped-call]
        return Programs(each, each, each, self.mesh, self.chunks, self.axis, self.interpret)

    def remade(self, schedule: Schedule, devices: int) -> Programs:
        """Another schedule's, of this size if it fits."""
        return programs(schedule, devices, self.axis, self.interpret, self.steps.shape[1])

    def summed(self, flat: jax.Array) -> jax.Array:
        """The sum over the chips."""
        if not len(self.mesh.links):
            return flat
        width = -(-flat.size // self.chunks)
        lines = -(-width // LINE)
        lines += -lines % (LEAST_LINES if lines <= BLOCK else BLOCK)
        parts = jnp.pad(flat, (0, self.chunks * lines * LINE - flat.size)).reshape(self.chunks, lines, LINE)
        return self._run(parts).ravel()[: flat.size]

    def _run(self, parts: jax.Array) -> jax.Array:
        ways, (_, lines, _) = len(self.mesh.ways), parts.shape
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        block = pltpu.VMEM((2, min(lines, BLOCK), LINE), parts.dtype)
        rooms = jax.ShapeDtypeStruct((ways, ROOMS, lines, LINE), parts.dtype)  # type: ignore[no-untyped-call]
        held = jax.ShapeDtypeStruct(parts.shape, parts.dtype)  # type: ignore[no-untyped-call]
        scratch = [
            block, pltpu.SMEM((2, ways), jnp.int32), pltpu.SemaphoreType.DMA((ways, ROOMS)),
            pltpu.SemaphoreType.DMA((ways, ROOMS)), pltpu.SemaphoreType.REGULAR((ways,)),
            pltpu.SemaphoreType.DMA((2,)),
        ]  # fmt: skip
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3, grid=(), in_specs=[anywhere], out_specs=[anywhere, anywhere], scratch_shapes=scratch
        )
        call = pl.pallas_call(
            partial(_kernel, ways=ways, axis=self.axis),
            out_shape=[held, rooms],
            grid_spec=grid,
            input_output_aliases={3: 0},
            compiler_params=pltpu.CompilerParams(collective_id=COLLECTIVE, has_side_effects=True),
            interpret=self.interpret,
        )
        return call(self.steps[0], self.count[0], self.peers[0], parts)[0]  # type: ignore[no-any-return]


def programs(schedule: Schedule, devices: int, axis: str, interpret: Any, least: int = 0) -> Programs:
    """The programs of a schedule for one or two devices per live chip."""
    if schedule.pace or schedule.hop > ROOMS:
        raise PlanError(
            f"a schedule with hop={schedule.hop} and pace={schedule.pace} cannot run here: "
            f"make it with schedule(hop={ROOMS}, even=True), or a smaller hop"
        )
    mesh, cores = schedule.mesh, devices // len(schedule.mesh.live)
    steps = _steps(schedule)
    count = (steps >= 0).sum(1)
    room = max(least, 1 << max(0, int(steps.shape[1]) - 1).bit_length())
    padded = np.full((len(steps), room), -1, np.int32)
    padded[:, : steps.shape[1]] = steps
    there = mesh.place[mesh.neighbour[mesh.live]]
    from_there = there[:, opposite(np.arange(len(mesh.ways)))]
    peers = np.repeat(np.stack([there, from_there], 1), cores, axis=0)
    core = np.arange(devices)[:, None, None] % cores
    return Programs(
        np.repeat(padded, cores, axis=0), np.repeat(count, cores)[:, None].astype(np.int32),
        np.where(peers >= 0, peers * cores + core, -1).astype(np.int32), mesh, schedule.chunks, axis, interpret,
    )  # fmt: skip


def _steps(schedule: Schedule) -> npt.NDArray[np.int32]:
    """[live chip, step], -1 behind the last: in order of time, and receives before sends."""
    way = schedule.mesh.link_source(schedule.link)[1].astype(np.int64)
    where = way << 2 | schedule.chunk.astype(np.int64) << 5
    chip = np.concatenate([schedule.receiver, schedule.sender])
    time = np.concatenate([schedule.slot + schedule.hop, schedule.slot])
    sends = np.repeat([0, 1], len(schedule))
    step = np.concatenate(
        [where | np.where(schedule.copy, COPY, ADD), where | np.where(schedule.copy, SEND_TO_COPY, SEND_TO_ADD)]
    )
    order = np.lexsort((np.tile(np.arange(len(schedule)), 2), sends, time, chip))
    mine = schedule.mesh.place[chip[order]]
    counts = np.bincount(mine, minlength=len(schedule.mesh.live))
    number = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    out = np.full((len(counts), int(counts.max(initial=0))), -1, np.int32)
    out[mine, number] = step[order]
    return out


def _kernel(
    steps: Any, count: Any, peers: Any, _: Any, held: Any, rooms: Any,
    block: Any, done: Any, sent: Any, received: Any, credit: Any, staged: Any, *, ways: int, axis: str,
) -> None:  # fmt: skip
    """`done[0, way]` chunks have been sent that way, and `done[1, way]` have come."""
    lines = held.shape[1]

    def message(way: Any, number: Any, chunk: Any, copy: bool) -> Any:
        """The number-th copy over a link, as both its ends know it."""
        room = lax.rem(number, ROOMS)
        target = held.at[chunk] if copy else rooms.at[way, room]
        return pltpu.make_async_remote_copy(
            held.at[chunk], target, sent.at[way, room], received.at[way, room], device_id={axis: peers[0, way]}
        )

    def meet() -> None:
        barrier = pltpu.get_barrier_semaphore()  # type: ignore[no-untyped-call]
        for way in range(ways):

            @pl.when(peers[0, way] >= 0)
            def _(way: int = way) -> None:
                pl.semaphore_signal(barrier, device_id={axis: peers[0, way]})

        for way in range(ways):

            @pl.when(peers[0, way] >= 0)
            def _() -> None:
                pl.semaphore_wait(barrier, 1)

    def send(way: Any, chunk: Any, copy: bool) -> None:
        number = done[0, way]

        @pl.when(number >= ROOMS)
        def _() -> None:
            pl.semaphore_wait(credit.at[way], 1)
            message(way, number, chunk, copy).wait_send()

        message(way, number, chunk, copy).start()
        done[0, way] = number + 1

    def receive(way: Any, chunk: Any, copy: bool) -> None:
        number = done[1, way]
        message(way, number, chunk, copy).wait_recv()
        if not copy:
            add(rooms.at[way, lax.rem(number, ROOMS)], held.at[chunk])
        pl.semaphore_signal(credit.at[way], device_id={axis: peers[1, way]})
        done[1, way] = number + 1

    def add(source: Any, target: Any) -> None:
        size = block.shape[1]

        def turn(i: Any, _: Any) -> None:
            part = pl.ds(i * size, size)
            copies = [
                pltpu.make_async_copy(ref.at[part], block.at[n], staged.at[n]) for n, ref in enumerate((source, target))
            ]
            for one in copies:
                one.start()
            for one in copies:
                one.wait()  # type: ignore[no-untyped-call]
            block[1] = block[1] + block[0]
            back = pltpu.make_async_copy(block.at[1], target.at[part], staged.at[1])
            back.start()
            back.wait()  # type: ignore[no-untyped-call]

        lax.fori_loop(0, lines // size, turn, None)

    def step(i: Any, _: Any) -> None:
        kind, way, chunk = steps[i] & 3, (steps[i] >> 2) & 7, steps[i] >> 5
        for number, (does, copy) in enumerate(((send, False), (send, True), (receive, False), (receive, True))):
            pl.when(kind == number)(partial(does, way, chunk, copy))

    def finish(way: int) -> None:
        def last(i: Any, _: Any) -> None:
            pl.semaphore_wait(credit.at[way], 1)
            message(way, done[0, way] - 1 - i, 0, False).wait_send()

        lax.fori_loop(0, jnp.minimum(done[0, way], ROOMS), last, None)

    for way in range(ways):
        done[0, way] = done[1, way] = 0
    meet()
    lax.fori_loop(0, count[0], step, None)
    for way in range(ways):
        finish(way)
