"""Runs the schedule of any collective in numpy, in one process, exactly as its table says.

    totals = mm.local.run(mm.plan("8x8", groups=mm.tile(2, 2)), parts)      # each group's sum, at its members

Rows are live chips, in order of `mesh.live`. What goes in and what comes out, of P live chips and n numbers:

| collective | in | out |
|---|---|---|
| all_reduce in groups | (P, n): each chip's part | (P, n): the sum of its group; chips in no group keep their row |
| reduce_scatter | (P, n), n a multiple of P | (P, n / P): each chip's piece of the sum |
| all_gather | (P, n): each chip's piece | (P, P * n): all pieces, one after another |
| broadcast | (P, n), of which only the root's row counts | (P, n): the root's row |
| all_to_all | (P, P, n): what each chip has for each chip | (P, P, n): what each chip got from each chip |
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.executors.base import require_proof
from meshmend.mesh.proof import Proof

Array = npt.NDArray[np.generic]


def run(how: CollectivePlan | CollectiveSchedule, parts: Array, *, proof: Proof | None = None) -> Array:
    """Run one collective on a row for each live chip; see the table of `meshmend.mesh.executors.collectives`."""
    schedule = how if isinstance(how, CollectiveSchedule) else how.schedule()
    require_proof(schedule, proof)
    return execute(schedule, np.asarray(parts))


def execute(schedule: CollectiveSchedule, parts: Array) -> Array:
    """What the table says, right or wrong: tests of `verify` itself run wrong tables with it."""
    chips, kind = len(schedule.mesh.live), schedule.kind
    if parts.ndim < 2 or len(parts) != chips or (kind.personal and parts.shape[1] != chips):
        expected = f"({chips}, {chips}, n)" if kind.personal else f"({chips}, n)"
        raise PlanError(f"parts of shape {parts.shape} were given for {chips} live chips: give {expected}")
    if kind.up and kind.per_chip and parts.shape[1] % chips:
        raise PlanError(f"{parts.shape[1]} numbers cannot be scattered over {chips} chips: give a multiple of {chips}")
    if kind.personal:
        return _exchanged(schedule, parts)
    if not kind.per_chip:
        return _in_groups(schedule, parts)
    if kind.up:
        return _scattered(schedule, parts)
    pieces = _cut(parts, schedule.cut // chips)  # [chip, chunk of its piece, width]
    held = _nothing(schedule, pieces)
    at, turn = schedule.mesh.place[schedule.owner], _turn(schedule.owner)
    held[at, np.arange(len(at))] = pieces[at, turn]
    out = np.zeros((chips, *pieces.shape), parts.dtype)
    out[:, at, turn] = _replayed(schedule, held)
    return out.reshape(chips, chips, -1)[:, :, : parts.shape[1]].reshape(chips, -1)


def _in_groups(schedule: CollectiveSchedule, parts: Array) -> Array:
    """An all-reduce in every group, or a broadcast, which is one group of a single source."""
    mesh, chunks = schedule.mesh, np.arange(schedule.table.chunks)
    pieces = _cut(parts, schedule.cut)
    held, turn = _nothing(schedule, pieces), _turn(schedule.owner)
    if schedule.kind.rooted:
        held[mesh.place[schedule.owner], chunks] = pieces[mesh.place[schedule.owner], turn]
        member = np.ones((len(mesh.live), len(chunks)), bool)
    else:
        member = schedule.group[mesh.live][:, None] == schedule.owner
        chip, chunk = np.nonzero(member)
        held[chip, chunk] = pieces[chip, turn[chunk]]
    done, out = _replayed(schedule, held), pieces.copy()
    chip, chunk = np.nonzero(member)
    out[chip, turn[chunk]] = done[chip, chunk]
    return np.asarray(out.reshape(len(parts), -1)[:, : parts[0].size].reshape(parts.shape))


def _scattered(schedule: CollectiveSchedule, parts: Array) -> Array:
    chips = len(parts)
    rows = parts.reshape(chips * chips, -1)  # every chip's part of every chip's piece
    pieces = _cut(rows, schedule.cut // chips).reshape(chips, chips, schedule.cut // chips, -1)
    at, turn = schedule.mesh.place[schedule.owner], _turn(schedule.owner)
    done = _replayed(schedule, pieces[:, at, turn].copy())
    out = np.zeros(pieces.shape[1:], parts.dtype)
    out[at, turn] = done[at, np.arange(len(at))]
    return out.reshape(chips, -1)[:, : rows.shape[1]]


def _exchanged(schedule: CollectiveSchedule, parts: Array) -> Array:
    chips, place = len(parts), schedule.mesh.place
    flat = parts.reshape(chips * chips, -1)
    pieces = _cut(flat, schedule.cut // chips).reshape(chips, chips, schedule.cut // chips, -1)
    at, to, chunks = place[schedule.owner], place[schedule.to], np.arange(schedule.table.chunks)
    turn = _turn(schedule.owner.astype(np.int64) * schedule.mesh.size + schedule.to)
    held = np.zeros((chips, len(chunks), pieces.shape[-1]), parts.dtype)
    held[at, chunks] = pieces[at, to, turn]
    done = _replayed(schedule, held)
    out = pieces.swapaxes(0, 1).copy()
    out[np.arange(chips)[:, None] != np.arange(chips)] = 0
    out[to, at, turn] = done[to, chunks]
    return out.reshape(chips * chips, -1)[:, : flat.shape[1]].reshape(parts.shape)


def _cut(rows: Array, chunks: int) -> Array:
    """[row, chunk, width]: every row in equal chunks, with zeros behind its end."""
    flat = rows.reshape(len(rows), -1)
    width = -(-flat.shape[1] // chunks)
    out = np.zeros((len(rows), chunks * width), rows.dtype)
    out[:, : flat.shape[1]] = flat
    return out.reshape(len(rows), chunks, width)


def _nothing(schedule: CollectiveSchedule, pieces: Array) -> Array:
    return np.zeros((len(schedule.mesh.live), schedule.table.chunks, pieces.shape[-1]), pieces.dtype)


def _turn(owner: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The number of each chunk among those of its owner."""
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], owner[order])
    turn = np.empty(len(owner), np.int64)
    turn[order] = np.arange(len(owner)) - first
    return turn


def _replayed(schedule: CollectiveSchedule, held: Array) -> Array:
    """[live chip, chunk, width] after all transfers: values leave as they are when sent, and land when they arrive."""
    table, place = schedule.table, schedule.mesh.place
    sender, receiver, arrive = place[table.sender], place[table.receiver], table.arrive
    landing = deque(np.argsort(arrive, kind="stable").tolist())
    flying: dict[int, Array] = {}

    def land(until: float) -> None:
        while landing and arrive[landing[0]] <= until:
            i = landing.popleft()
            chip, chunk = receiver[i], table.chunk[i]
            held[chip, chunk] = flying.pop(i) if table.copy[i] else held[chip, chunk] + flying.pop(i)

    for i, slot in enumerate(table.slot.tolist()):
        land(slot)
        flying[i] = held[sender[i], table.chunk[i]].copy()
    land(np.inf)
    return held
