"""Is a plan or a schedule of any collective right? Independent of how it was made.

**Plan.** Each piece (`collectives/collective.py`) has sources, whose parts go into it, and sinks, which must get it.
Every up tree must lead every source to the root and every down tree the root to every sink, over live links. A chip on
the way that is neither is a relay: it must have exactly one child, so that it forwards and has nothing to add. The
shares of each piece add up to its size.

**Schedule.** Every chunk is replayed with the set of sources whose part each chip holds. A source begins with its own,
everyone else with nothing. It is refused when

* a link does not exist, is dead, or carries two chunks in one slot;
* a chip sends what it does not hold, or copies a sum that is not whole;
* a part would be added to a sum that has it already;
* a relay would add: it gets a part while it holds another;
* a sink ends without some source's part, or a piece has more or fewer chunks than its size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.errors import VerifyError
from meshmend.mesh import Fabric
from meshmend.mesh.collectives.collective import COLLECTIVES, Collective
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.grid import chip_text
from meshmend.mesh.planners.plan import Ways
from meshmend.mesh.proof.schedule import refuse_transfer, verify_table

Ints = npt.NDArray[np.int64]
_REASONS = {
    1: "adds a sum that holds {other}'s part to one that has it already, so it would count twice",
    2: "copies a sum that still lacks {other}'s part: it is sent before it is there",
    3: "reaches a relay that holds {other}'s part already: a relay forwards and never adds",
    4: "sends what the chip does not hold",
}


def verify_collective_plan(plan: CollectivePlan) -> None:
    """Raise a `VerifyError` that names the flow and the chip, unless the plan is right."""
    mesh, kind = plan.mesh, _kind(plan.collective)
    flows = len(plan.share)
    shapes = {
        "group": ((mesh.size,), "i"), "share": ((flows,), "f"), "root": ((flows,), "i"),
        "up": ((flows, mesh.size), "i"), "down": ((flows, mesh.size), "i"),
    }  # fmt: skip
    for name, (shape, dtype) in shapes.items():
        array = getattr(plan, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind != dtype or array.shape != shape:
            raise VerifyError(f"{name} is not an array of {'numbers' if dtype == 'f' else 'integers'} of shape {shape}")
    _verify_groups(mesh, plan.group, kind)
    if not ((plan.root >= 0) & (plan.root < mesh.size)).all() or (plan.group[plan.root] < 0).any():
        raise VerifyError("a flow's root is not a chip that takes part")
    if not ((plan.share > 0) & (plan.share <= 1 + 1e-9)).all():
        raise VerifyError("a flow's share must be above 0 and at most 1")
    _verify_shares(plan, kind)
    own = plan.group == plan.group[plan.root][:, None]
    is_root = np.arange(mesh.size) == plan.root[:, None]
    _verify_side(mesh, "up", plan.up, plan.root, own if kind.up else is_root)
    _verify_side(mesh, "down", plan.down, plan.root, own if kind.down else is_root)


def _kind(name: str) -> Collective:
    if name not in COLLECTIVES:
        raise VerifyError(f"collective {name!r} is not one of {', '.join(COLLECTIVES)}")
    return COLLECTIVES[name]


def _verify_groups(mesh: Fabric, group: npt.NDArray[np.int32], kind: Collective) -> None:
    dead = (group >= 0) & ~mesh.alive
    if dead.any():
        chip = int(np.argmax(dead))
        raise VerifyError(f"chip {mesh.name(chip)} is in group {group[chip]}, but it is dead", chip=mesh.chip(chip))
    labels = np.unique(group[group >= 0])
    if (group < -1).any() or not np.array_equal(labels, np.arange(len(labels))) or not len(labels):
        raise VerifyError("the groups are not numbered 0, 1, 2 and so on")
    if (kind.per_chip or kind.rooted) and (len(labels) > 1 or (mesh.alive & (group < 0)).any()):
        raise VerifyError(f"{kind.name} is planned for all live chips in one group, and here some are not in it")


def _verify_shares(plan: CollectivePlan, kind: Collective) -> None:
    if kind.per_chip:
        chips = np.flatnonzero(plan.group >= 0)
        total, expected = np.bincount(plan.root, plan.share, plan.mesh.size)[chips], 1 / len(chips)
    elif kind.rooted:
        if len(np.unique(plan.root)) > 1:
            raise VerifyError(f"{kind.name} has one root, and this plan has {len(np.unique(plan.root))}")
        total, expected = np.array([plan.share.sum()]), 1.0
    else:
        total, expected = np.bincount(plan.group[plan.root], plan.share, int(plan.group.max()) + 1), 1.0
    wrong = np.abs(total - expected) > 1e-9
    if wrong.any():
        which = int(np.argmax(wrong))
        raise VerifyError(f"the shares of piece {which} add up to {total[which]:.12g}, expected {expected:.12g}")


def _verify_side(
    mesh: Fabric, name: str, trees: Ways, root: npt.NDArray[np.int32], needed: npt.NDArray[np.bool_]
) -> None:
    """Every tree leads all the needed chips to the root, and others have one child each."""

    def refuse(wrong: npt.NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            flow, chip = (int(i) for i in np.argwhere(wrong)[0])
            raise VerifyError(
                f"flow {flow}, {name} tree: chip {mesh.name(chip)} {what}", chip=mesh.chip(chip), flow=flow
            )

    chips = np.arange(mesh.size)
    is_root = chips == root[:, None]
    refuse((trees < -1) | (trees >= len(mesh.ways)), f"has a way that is not one of {' '.join(mesh.ways)}")
    refuse(is_root & (trees >= 0), "is the root, but has a parent")
    refuse(needed & ~is_root & (trees < 0), "is cut off: it has no parent and is not the root")
    inside = trees >= 0
    parent = np.where(inside, mesh.neighbour[chips, np.maximum(trees, 0)], chips)
    refuse(parent < 0, "has its parent where there is no live link")
    children = np.zeros(trees.shape, np.int64)
    flow, chip = np.nonzero(inside)
    np.add.at(children, (flow, parent[flow, chip]), 1)
    relay = inside & ~needed
    refuse(relay & (children != 1), "is a relay without exactly one child: it must forward, and never add")
    refuse(~inside & ~is_root & (children > 0), "gets a part that it does not send on")
    for _ in range(int(np.ceil(np.log2(max(2, mesh.size))))):
        parent = np.take_along_axis(parent, parent, 1)
    refuse(inside & (parent != root[:, None]), "never reaches the root: its path runs in a circle")


def verify_collective_schedule(schedule: CollectiveSchedule) -> None:
    """Raise a `VerifyError` that names chip, chunk and slot, unless the schedule is right."""
    kind, table, mesh = _kind(schedule.collective), schedule.table, schedule.mesh
    if kind.personal and len(mesh.live) == 1 and not table.chunks and not len(table):
        return  # one chip has nothing to send
    verify_table(table)
    for name, length in (("group", mesh.size), ("owner", table.chunks), ("to", table.chunks)):
        array = getattr(schedule, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind != "i" or array.shape != (length,):
            raise VerifyError(f"{name} is not a flat array of {length} integers")
    _verify_groups(mesh, schedule.group, kind)
    _verify_chunks(schedule, kind)
    place = mesh.place.astype(np.int64)
    order = np.argsort(table.chunk, kind="stable")
    begin = np.searchsorted(table.chunk[order], np.arange(table.chunks + 1))
    arrive = table.arrive[order]
    by_group = np.where(kind.per_chip or kind.rooted, 0, schedule.owner).astype(np.int64)
    by_chip = place[schedule.owner] if kind.per_chip or kind.rooted else np.full(table.chunks, -1)
    nobody = np.full(table.chunks, -1)
    source = nobody if kind.up else by_chip
    sink = place[schedule.to] if kind.personal else nobody if kind.down else by_chip
    reason, at, other = _replay(
        schedule.group[mesh.live].astype(np.int64), by_group, source, sink, begin,
        table.slot[order].astype(np.int64), place[table.sender[order]], place[table.receiver[order]],
        table.copy[order], arrive, np.lexsort((arrive, table.chunk[order])),
    )  # fmt: skip
    if reason == 0:
        return
    missing = mesh.chip(mesh.live[other])
    if reason == 5:
        chunk, chip = int(at) // len(mesh.live), mesh.chip(mesh.live[int(at) % len(mesh.live)])
        raise VerifyError(
            f"chunk {chunk}: chip {chip_text(chip)} ends without the part of chip {chip_text(missing)}",
            chip=chip,
            chunk=chunk,
        )
    refuse_transfer(table, int(order[at]), _REASONS[int(reason)], missing)


def _verify_chunks(schedule: CollectiveSchedule, kind: Collective) -> None:
    """Every piece has as many chunks as its size says, and belongs to someone who takes part."""
    group, owner, to, chips = schedule.group, schedule.owner, schedule.to, np.flatnonzero(schedule.group >= 0)
    if schedule.cut < 1:
        raise VerifyError(f"a payload of {schedule.cut} chunks: there must be at least 1")
    if kind.per_chip or kind.rooted:
        known = (owner >= 0) & (owner < len(group))
        known &= group[np.where(known, owner, 0)] >= 0
    else:
        known = (owner >= 0) & (owner <= group.max())
    if not known.all():
        chunk = int(np.argmin(known))
        raise VerifyError(f"chunk {chunk} belongs to {owner[chunk]}, which is not a chip that takes part", chunk=chunk)
    if not kind.personal and (to != -1).any():
        raise VerifyError(f"chunk {int(np.argmax(to != -1))} is for one chip only, and {kind.name} has no such chunks")
    if kind.personal:
        wrong = (to < 0) | (to >= len(group)) | (group[np.clip(to, 0, len(group) - 1)] < 0) | (to == owner)
        if wrong.any():
            chunk = int(np.argmax(wrong))
            raise VerifyError(f"chunk {chunk} is for {to[chunk]}, not another chip that takes part", chunk=chunk)
        place = np.full(len(group), -1)
        place[chips] = np.arange(len(chips))
        count = np.bincount(place[owner] * len(chips) + place[to], minlength=len(chips) ** 2)
        count = count.reshape(len(chips), -1)[~np.eye(len(chips), dtype=bool)]
        expected = schedule.cut / len(chips)
    elif kind.per_chip:
        count, expected = np.bincount(owner, minlength=len(group))[chips], schedule.cut / len(chips)
    elif kind.rooted:
        count, expected = np.bincount(owner, minlength=len(group)), schedule.cut
        count = count[count > 0]
        if len(count) > 1:
            raise VerifyError(f"{kind.name} has one root, and these chunks have {len(count)}")
    else:
        count, expected = np.bincount(owner, minlength=int(group.max()) + 1), schedule.cut
    if (count != expected).any():
        which = int(np.argmax(count != expected))
        raise VerifyError(f"piece {which} has {count[which]} chunks, expected {expected:g}")


@kernel
def _replay(
    group: Ints, by_group: Ints, source: Ints, sink: Ints, begin: Ints, slot: Ints, sender: Ints, receiver: Ints,
    copy: npt.NDArray[np.bool_], arrive: Ints, landing: Ints,
) -> tuple[int, int, int]:  # fmt: skip
    """Replay each chunk's transfers: (0, 0, 0), or (reason, transfer, the chip whose part is at stake).

    The sources of a chunk are the members of its group, or one chip where `source` says so; the sinks likewise.
    """
    chips = len(group)
    words = (chips + 63) // 64
    most = 0
    for chunk in range(len(begin) - 1):
        most = max(most, begin[chunk + 1] - begin[chunk])
    holds = np.zeros((chips, words), np.uint64)
    whole = np.zeros(words, np.uint64)
    flying = np.zeros((most, words), np.uint64)
    one = np.uint64(1)

    def lowest(bits: int) -> int:
        bit = 0
        while (np.uint64(bits) >> np.uint64(bit)) & one == 0:
            bit += 1
        return bit

    for chunk in range(len(begin) - 1):
        holds[:] = 0
        whole[:] = 0
        for chip in range(chips):
            if (source[chunk] >= 0 and chip == source[chunk]) or (source[chunk] < 0 and group[chip] == by_group[chunk]):
                holds[chip, chip // 64] = one << np.uint64(chip % 64)
                whole[chip // 64] |= holds[chip, chip // 64]
        next_landing = begin[chunk]
        for i in range(begin[chunk], begin[chunk + 1] + 1):
            while next_landing < begin[chunk + 1]:
                landed = landing[next_landing]
                if i < begin[chunk + 1] and arrive[landed] > slot[i]:
                    break
                to, bits = receiver[landed], flying[landed - begin[chunk]]
                if copy[landed]:
                    holds[to] = bits
                else:
                    relay = whole[to // 64] & (one << np.uint64(to % 64)) == 0
                    for word in range(words):
                        if relay and holds[to, word] != 0:
                            return 3, landed, 64 * word + lowest(holds[to, word])
                        twice = holds[to, word] & bits[word]
                        if twice != 0:
                            return 1, landed, 64 * word + lowest(twice)
                    for word in range(words):
                        holds[to, word] |= bits[word]
                next_landing += 1
            if i == begin[chunk + 1]:
                break
            bits = flying[i - begin[chunk]]
            bits[:] = holds[sender[i]]
            empty = True
            for word in range(words):
                if bits[word] != 0:
                    empty = False
                if copy[i] and bits[word] != whole[word]:
                    return 2, i, 64 * word + lowest(whole[word] & ~bits[word])
            if empty:
                return 4, i, sender[i]
        for chip in range(chips):
            if (sink[chunk] >= 0 and chip == sink[chunk]) or (sink[chunk] < 0 and group[chip] == by_group[chunk]):
                for word in range(words):
                    if holds[chip, word] != whole[word]:
                        return 5, chunk * chips + chip, 64 * word + lowest(whole[word] & ~holds[chip, word])
    return 0, 0, 0
