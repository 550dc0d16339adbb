"""Is a staged plan or its schedule right? Independent of how it was made.

**Plan.** The parts that every chip holds are followed through the stages as sets. A layer must be a forest over live
links of chips that take part in its stage, and each of its roots gets the union of what the chips of its tree hold; a
part that two of them hold would count twice. After the last stage every root must hold all parts, and the way back
must lead every other chip to one of these roots.

**Schedule.** Every chunk is replayed with the set of parts that has arrived in each cell. It is refused when

* a link does not exist, is dead, or carries two chunks in one slot;
* a transfer takes from a cell of another chip than its sender, or puts into one of another than its receiver;
* a cell would hold a part twice, be it what arrives or what it begins with;
* a sum is copied before it is whole;
* a result cell ends without some chip's part.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.errors import VerifyError
from meshmend.mesh import Mesh
from meshmend.mesh.planners.plan import Ways
from meshmend.mesh.proof.schedule import refuse_transfer, verify_table
from meshmend.mesh.staged.plan import ABSENT, ROOT, StagedPlan
from meshmend.mesh.staged.schedule import NOTHING, StagedSchedule

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
_REASONS = {
    1: "puts {other}'s part into a cell that has it already, so it would count twice",
    2: "copies a sum that still lacks {other}'s part: it is sent before it is there",
    3: "takes a cell that holds {other}'s part twice: as arrived, and as what it begins with",
}


def verify_staged_plan(plan: StagedPlan) -> None:
    """Raise a `VerifyError` that names the flow and the chip, unless the plan is right."""
    mesh = plan.mesh
    shares = np.array([flow.share for flow in plan.flows], np.float64)
    if not len(shares) or not (shares > 0).all() or abs(shares.sum() - 1) > 1e-9:
        raise VerifyError(f"the shares add up to {shares.sum():.12g}: each must be above 0, and their sum 1")
    for number, flow in enumerate(plan.flows):
        if not flow.stages:
            raise VerifyError(f"flow {number} has no stages", flow=number)
        for stage in (*flow.stages, flow.down[None]):
            if stage.dtype.kind != "i" or stage.ndim != 2 or stage.shape[1:] != (mesh.size,) or not len(stage):
                raise VerifyError(f"flow {number} has a stage that does not name a way for every chip", flow=number)
        inside = mesh.alive
        words = (len(mesh.live) + 63) // 64
        holds = np.zeros((mesh.size, words), np.uint64)
        place = np.arange(len(mesh.live))
        holds[mesh.live, place // 64] = np.uint64(1) << (place % 64).astype(np.uint64)
        for turn, stage in enumerate(flow.stages):
            where = f"stage {turn + 1}"
            top = _tops(mesh, stage, inside, number, where)
            roots = stage == ROOT
            _refuse(mesh, (roots.sum(0) > 1)[None], number, where, "is a root in two layers")
            holds, twice = _gathered(holds, top)
            if twice >= 0:
                name = mesh.name(int(twice))
                raise VerifyError(f"flow {number}, {where}: the root {name} would count a part twice", flow=number)
            inside = roots.any(0)
        whole = np.zeros(words, np.uint64)
        np.bitwise_or.at(whole, place // 64, np.uint64(1) << (place % 64).astype(np.uint64))
        _refuse(
            mesh, (inside & (holds != whole).any(1))[None], number, "the last stage", "is a root without every part"
        )
        down = np.where(mesh.alive, flow.down, ABSENT)[None]
        _refuse(mesh, (~mesh.alive & (flow.down >= 0))[None], number, "the way back", "is dead, but takes part")
        _tops(mesh, down, mesh.alive, number, "the way back")
        nothing = ((down == ROOT) & ~inside) | ((down == ABSENT) & mesh.alive)
        _refuse(mesh, nothing, number, "the way back", "gets no result")


def _refuse(mesh: Mesh, wrong: npt.NDArray[np.bool_], flow: int, where: str, what: str) -> None:
    if wrong.any():
        chip = int(np.argwhere(wrong)[0, 1])
        raise VerifyError(f"flow {flow}, {where}: chip {mesh.name(chip)} {what}", chip=mesh.chip(chip), flow=flow)


def _tops(mesh: Mesh, stage: Ways, inside: npt.NDArray[np.bool_], flow: int, where: str) -> Ints:
    """[layer, chip]: the root of each chip's tree, -1 for chips outside the layer; refuses what is no forest."""
    _refuse(mesh, (stage < ABSENT) | (stage >= len(mesh.ways)), flow, where, "has a way that does not exist")
    _refuse(mesh, (stage != ABSENT) & ~inside, flow, where, "is in a layer, but does not take part in this stage")
    chips = np.arange(mesh.size)
    above = np.where(stage >= 0, mesh.neighbour[chips, np.maximum(stage, 0)], chips)
    _refuse(mesh, above < 0, flow, where, "sends where there is no live link")
    present = stage != ABSENT
    _refuse(mesh, present & ~np.take_along_axis(present, above, 1), flow, where, "sends to a chip outside its layer")
    for _ in range(int(np.ceil(np.log2(max(2, mesh.size))))):
        above = np.take_along_axis(above, above, 1)
    is_root = np.take_along_axis(stage, above, 1) == ROOT
    _refuse(mesh, present & ~is_root, flow, where, "never reaches a root: its path runs in a circle")
    return np.where(present, above, -1).astype(np.int64)


@kernel
def _gathered(holds: Bits, top: Ints) -> tuple[Bits, int]:
    """What each root holds after a stage, and the root that would hold a part twice, or -1."""
    out = np.zeros_like(holds)
    layers, chips = top.shape
    for layer in range(layers):
        for chip in range(chips):
            root = top[layer, chip]
            if root < 0:
                continue
            for word in range(holds.shape[1]):
                if out[root, word] & holds[chip, word] != 0:
                    return out, root
                out[root, word] |= holds[chip, word]
    return out, -1


def verify_staged_schedule(schedule: StagedSchedule) -> None:
    """Raise a `VerifyError` that names chip, chunk and slot, unless the schedule is right."""
    table, mesh = schedule.table, schedule.mesh
    verify_table(table)
    _verify_cells(schedule)
    place = mesh.place.astype(np.int64)
    order = np.argsort(table.chunk, kind="stable")
    begin = np.searchsorted(table.chunk[order], np.arange(table.chunks + 1))
    arrive = table.arrive[order]
    low, high = _ranges(schedule)
    reason, at, other = _replay(
        len(mesh.live), begin, table.slot[order].astype(np.int64), schedule.take[order].astype(np.int64),
        schedule.put[order].astype(np.int64), table.copy[order], arrive, np.lexsort((arrive, table.chunk[order])),
        place[schedule.chip], schedule.source.astype(np.int64), schedule.result.astype(np.int64),
        schedule.flow.astype(np.int64), low, high,
    )  # fmt: skip
    if reason == 0:
        return
    missing = mesh.chip(mesh.live[other])
    if reason == 5:
        chunk, chip = int(at) // len(mesh.live), mesh.chip(mesh.live[int(at) % len(mesh.live)])
        raise VerifyError(
            f"chunk {chunk}: chip {mesh.name(mesh.index(chip))} ends without the part of chip "
            f"{mesh.name(mesh.index(missing))}, or with it twice",
            chip=chip,
            chunk=chunk,
        )
    refuse_transfer(table, int(order[at]), _REASONS[int(reason)], missing)


def _verify_cells(schedule: StagedSchedule) -> None:
    """Cells belong to live chips, begin with cells of the same chip made before them, and transfers join neighbours."""
    table, mesh, cells = schedule.table, schedule.mesh, len(schedule.chip)
    flows = len(schedule.result)
    shapes = {
        "take": (len(table),), "put": (len(table),), "chip": (cells,), "source": (cells,),
        "result": (flows, len(mesh.live)), "flow": (table.chunks,),
    }  # fmt: skip
    ends = {"take": cells, "put": cells, "chip": mesh.size, "source": cells, "result": cells, "flow": flows}
    for name, shape in shapes.items():
        array = getattr(schedule, name)
        if array.dtype.kind != "i" or array.shape != shape:
            raise VerifyError(f"{name} is not an array of integers of shape {shape}")
        if ((array < (NOTHING if name == "source" else 0)) | (array >= ends[name])).any():
            raise VerifyError(f"{name} holds a number that is out of range")
    if not mesh.alive[schedule.chip].all():
        raise VerifyError("a cell belongs to a dead chip")
    begins = np.flatnonzero(schedule.source >= 0)
    if (schedule.source[begins] >= begins).any():
        raise VerifyError("a cell begins with one that is made after it")
    if (schedule.chip[schedule.source[begins]] != schedule.chip[begins]).any():
        raise VerifyError("a cell begins with one of another chip")
    if (schedule.chip[schedule.result] != mesh.live).any():
        raise VerifyError("a result cell belongs to another chip than the one it is for")
    for cell, end, what in ((schedule.take, table.sender, "takes"), (schedule.put, table.receiver, "puts into")):
        wrong = schedule.chip[cell] != end
        if wrong.any():
            refuse_transfer(table, int(np.argmax(wrong)), f"{what} a cell of another chip", None)


def _ranges(schedule: StagedSchedule) -> tuple[Ints, Ints]:
    """The first cell that chunks of each flow touch, and the one after the last."""
    low, high = schedule.result.min(1).astype(np.int64), schedule.result.max(1).astype(np.int64)
    flow = schedule.flow[schedule.table.chunk]
    first = np.arange(len(schedule.chip))  # the earliest cell that each one begins with
    for _ in range(64):
        before = schedule.source[first]
        if (before < 0).all():
            break
        first = np.where(before >= 0, before, first)
    else:
        raise VerifyError("cells begin with each other in more than 64 stages")
    for cells in (schedule.take, schedule.put):
        np.minimum.at(low, flow, first[cells])
        np.maximum.at(high, flow, cells)
    low = np.minimum(low, first[schedule.result].min(1))
    return low, high + 1


@kernel
def _value(cell: int, low: int, holds: Bits, source: Ints, place: Ints, out: Bits) -> int:
    """Write what a cell holds, with all that it begins with, to `out`; the part that is there twice, or -1."""
    words = len(out)
    one = np.uint64(1)
    for word in range(words):
        out[word] = holds[cell - low, word]
    at = cell
    while True:
        before = source[at]
        if before == -2:
            return -1
        if before == -1:
            bit = one << np.uint64(place[cell] % 64)
            if out[place[cell] // 64] & bit != 0:
                return int(place[cell])
            out[place[cell] // 64] |= bit
            return -1
        for word in range(words):
            twice = out[word] & holds[before - low, word]
            if twice != 0:
                bit_number = 0
                while (twice >> np.uint64(bit_number)) & one == 0:
                    bit_number += 1
                return 64 * word + bit_number
            out[word] |= holds[before - low, word]
        at = before


@kernel
def _replay(
    chips: int, begin: Ints, slot: Ints, take: Ints, put: Ints, copy: npt.NDArray[np.bool_], arrive: Ints,
    landing: Ints, place: Ints, source: Ints, result: Ints, flow: Ints, low: Ints, high: Ints,
) -> tuple[int, int, int]:  # fmt: skip
    """Replay each chunk's transfers: (0, 0, 0), or (reason, transfer, the chip whose part is at stake)."""
    words = (chips + 63) // 64
    most = cells = 0
    for chunk in range(len(begin) - 1):
        most = max(most, begin[chunk + 1] - begin[chunk])
    for which in range(len(low)):
        cells = max(cells, high[which] - low[which])
    holds = np.zeros((cells, words), np.uint64)
    flying = np.zeros((most, words), np.uint64)
    mine = np.zeros(words, np.uint64)
    one = np.uint64(1)
    for chunk in range(len(begin) - 1):
        holds[:] = 0
        base = low[flow[chunk]]
        next_landing = begin[chunk]
        for i in range(begin[chunk], begin[chunk + 1] + 1):
            while next_landing < begin[chunk + 1]:
                landed = landing[next_landing]
                if i < begin[chunk + 1] and arrive[landed] > slot[i]:
                    break
                to, bits = put[landed] - base, flying[landed - begin[chunk]]
                for word in range(words):
                    twice = holds[to, word] & bits[word]
                    if twice != 0 and not copy[landed]:
                        bit = 0
                        while (twice >> np.uint64(bit)) & one == 0:
                            bit += 1
                        return 1, landed, 64 * word + bit
                for word in range(words):
                    holds[to, word] = bits[word] if copy[landed] else holds[to, word] | bits[word]
                next_landing += 1
            if i == begin[chunk + 1]:
                break
            twice_of = _value(take[i], base, holds, source, place, flying[i - begin[chunk]])
            if twice_of >= 0:
                return 3, i, twice_of
            if copy[i]:
                for chip in range(chips):
                    if (flying[i - begin[chunk], chip // 64] >> np.uint64(chip % 64)) & one == 0:
                        return 2, i, chip
        for chip in range(chips):
            twice_of = _value(result[flow[chunk], chip], base, holds, source, place, mine)
            if twice_of >= 0:
                return 5, chunk * chips + chip, twice_of
            for other in range(chips):
                if (mine[other // 64] >> np.uint64(other % 64)) & one == 0:
                    return 5, chunk * chips + chip, other
    return 0, 0, 0
