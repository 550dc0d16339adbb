"""Is a schedule right? Every chunk is replayed, with the set of chips whose part each chip holds.

A chip begins with its own part of each chunk. A transfer takes what its sender holds in that slot and arrives `hop`
slots later (over a slow link, as much later as it is slower): **reduce** adds it to what the receiver holds, **copy**
puts it in its place. The schedule is right when at the end every live chip holds every live chip's part of every chunk
exactly once. On the way it is refused when

* a link does not exist, is dead, or carries two chunks in one slot;
* a part would be added to a sum that has it already (it would count twice);
* a sum is copied before it is whole (it is sent before it is there).

A transfer only ever uses what arrived in an earlier slot, so no wait can form a cycle: an executor that keeps each
link's order cannot deadlock.

Sets of chips are large, and most chunks need none. Where a chip sends its sum of a chunk on once, and nothing is added
to it afterwards, parts move and are never doubled: sums at different chips have no part in common, so that how many
parts a sum has tells whether it is whole. All chunks are counted like that first (`_counted`), and those for which it
does not come out are replayed with their sets, which shows whether and where they are wrong.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.errors import VerifyError
from meshmend.mesh.grid import Chip, chip_text
from meshmend.mesh.schedule.schedule import Schedule

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[np.int32]

_REASONS = {
    1: "adds a sum that holds {other}'s part to one that has it already, so it would count twice",
    2: "copies a sum that still lacks {other}'s part: it is sent before it is there",
}


def verify_schedule(schedule: Schedule) -> None:
    """Raise a `VerifyError` that names chip, chunk and slot, unless the schedule is right."""
    verify_table(schedule)
    mesh = schedule.mesh
    if len(mesh.live) == 1:
        return  # there is no link to send over, and nothing to add
    if len(schedule) < schedule.chunks:  # before memory is taken for as many chunks as a damaged file names
        raise VerifyError(f"{len(schedule)} transfers cannot sum {schedule.chunks} chunks: some are never sent")
    place = mesh.place.astype(np.int64)
    delay = schedule.hop - max(1, schedule.pace) + schedule.busy
    used = np.unique(delay[mesh.directed_links])
    # Where all links take as long, chunks land in the order in which they were sent.
    landing = np.zeros(0, np.int64) if len(used) == 1 else np.argsort(schedule.arrive, kind="stable")
    counted = _counted(
        len(mesh.live), schedule.chunks, mesh.place[mesh.link_source(np.arange(mesh.link_numbers))[0]],
        mesh.place[mesh.neighbour.ravel()], delay, schedule.slot, schedule.link, schedule.chunk, schedule.copy, landing,
    )  # fmt: skip
    if counted.all():
        return
    rows = np.flatnonzero(~counted[schedule.chunk])
    order = rows[np.argsort(schedule.chunk[rows], kind="stable")]  # slots stay in order within a chunk
    begin = np.searchsorted(schedule.chunk[order], np.arange(schedule.chunks + 1))
    arrive = schedule.arrive[order]
    reason, at, other = _replay(
        len(mesh.live), ~counted, begin, schedule.slot[order].astype(np.int64), place[schedule.sender[order]],
        place[schedule.receiver[order]], schedule.copy[order], arrive, np.lexsort((arrive, schedule.chunk[order])),
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
    refuse_transfer(schedule, int(order[at]), _REASONS[int(reason)], missing)


def verify_table(schedule: Schedule) -> None:
    """Raise a `VerifyError` unless every transfer crosses a live link that is free, in order of slots."""
    mesh, size = schedule.mesh, len(schedule.slot)
    kinds = {"slot": "i", "link": "i", "chunk": "i", "copy": "b"}
    for name, kind in kinds.items():
        column = getattr(schedule, name)
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind != kind:
            raise VerifyError(f"column {name} is not a flat array of {'integers' if kind == 'i' else 'booleans'}")
    if not len(schedule.link) == len(schedule.chunk) == len(schedule.copy) == size:
        raise VerifyError("the columns of the schedule have different lengths")
    if schedule.hop < 1 or schedule.chunks < 1:
        raise VerifyError(f"hop={schedule.hop} and chunks={schedule.chunks}: both must be at least 1")
    if not 0 <= schedule.pace <= schedule.hop:
        raise VerifyError(f"pace={schedule.pace}: expected 0 to {schedule.hop}, the number of slots per hop")
    if size == 0:
        return
    ranges = {"slot": None, "chunk": schedule.chunks, "link": mesh.link_numbers}
    for name, end in ranges.items():
        column = getattr(schedule, name)
        bad = (column < 0) | (column >= (end if end is not None else np.iinfo(np.int32).max))
        if bad.any():
            row = int(np.argmax(bad))
            raise VerifyError(f"transfer {row} has {name} {column[row]}, out of range", slot=int(schedule.slot[row]))
    backwards = np.diff(schedule.slot) < 0
    if backwards.any():
        refuse_transfer(
            schedule, int(np.argmax(backwards)) + 1, "comes after one of a later slot: transfers must be in order", None
        )
    dead = schedule.receiver < 0
    if dead.any():
        refuse_transfer(schedule, int(np.argmax(dead)), "uses a link that is dead or does not exist", None)
    row = _crossing(schedule.slot, schedule.link, schedule.busy)
    if row >= 0:
        refuse_transfer(schedule, int(row), "crosses a link that carries another chunk in this slot", None)


def refuse_transfer(schedule: Schedule, row: int, why: str, other: Chip | None) -> None:
    """Raise a `VerifyError` about one row of the table."""
    sender, way = schedule.mesh.link_source(int(schedule.link[row]))
    receiver = schedule.mesh.neighbour[sender, way]
    chip, slot, chunk = schedule.mesh.chip(sender), int(schedule.slot[row]), int(schedule.chunk[row])
    to = f"chip {schedule.mesh.name(receiver)}" if receiver >= 0 else "nowhere"
    why = why.format(to=to, other=f"chip {chip_text(other)}" if other else "")
    raise VerifyError(
        f"slot {slot}: chunk {chunk} from chip {chip_text(chip)} {schedule.mesh.ways[way]} to {to} {why}",
        chip=chip,
        chunk=chunk,
        slot=slot,
    )


@kernel
def _crossing(slot: Column, link: Column, busy: Ints) -> int:
    """The first transfer that crosses a link which another still occupies; -1 if none does. Slots are in order."""
    free = np.zeros(len(busy), np.int64)
    for i in range(len(slot)):
        if slot[i] < free[link[i]]:
            return i
        free[link[i]] = slot[i] + busy[link[i]]
    return -1


@kernel
def _counted(
    chips: int, chunks: int, sender: Column, receiver: Column, delay: Ints, slot: Column, link: Column, chunk: Column,
    copy: npt.NDArray[np.bool_], landing: Ints,
) -> npt.NDArray[np.bool_]:  # fmt: skip
    """Whether each chunk is right by counting alone. A chip's sum is closed when it has been sent on, or replaced.

    `landing` holds the transfers in the order in which they arrive, if that is not the order of the table.
    """
    closed = np.int32(1 << 30)
    parts = np.ones(chunks * chips, np.int32)  # of each chunk at each chip, with `closed` added once it is
    flying = np.zeros(len(slot), np.int32)
    right = np.ones(chunks, np.bool_)
    lands = 0
    for i in range(len(slot) + 1):
        while lands < i:
            landed = landing[lands] if len(landing) else lands
            if i < len(slot) and slot[landed] + delay[link[landed]] > slot[i]:
                break
            lands += 1
            at = chunk[landed] * chips + receiver[link[landed]]
            if copy[landed]:
                parts[at] = flying[landed] | closed
            elif parts[at] & closed:
                right[chunk[landed]] = False
            else:
                parts[at] += flying[landed]
        if i == len(slot):
            break
        at = chunk[i] * chips + sender[link[i]]
        held = parts[at]
        flying[i] = held & ~closed
        if copy[i]:
            if flying[i] != chips:
                right[chunk[i]] = False
        elif held & closed:
            right[chunk[i]] = False
        else:
            parts[at] = held | closed
    for at in range(len(parts)):
        if parts[at] & ~closed != chips:
            right[at // chips] = False
    return right


@kernel
def _replay(
    chips: int, which: npt.NDArray[np.bool_], begin: Ints, slot: Ints, sender: Ints, receiver: Ints,
    copy: npt.NDArray[np.bool_], arrive: Ints, landing: Ints,
) -> tuple[int, int, int]:  # fmt: skip
    """Replay the transfers of these chunks: (0, 0, 0), or (reason, transfer, the chip whose part is at stake).

    `landing` holds the transfers of each chunk in the order in which they arrive.
    """
    words = (chips + 63) // 64
    most = 0
    for chunk in range(len(begin) - 1):
        most = max(most, begin[chunk + 1] - begin[chunk])
    holds = np.zeros((chips, words), np.uint64)
    parts = np.zeros(chips, np.int64)
    flying = np.zeros((most, words), np.uint64)
    flying_parts = np.zeros(most, np.int64)
    one = np.uint64(1)
    for chunk in range(len(begin) - 1):
        if not which[chunk]:
            continue
        holds[:] = 0
        for chip in range(chips):
            holds[chip, chip // 64] = one << np.uint64(chip % 64)
            parts[chip] = 1
        next_landing = begin[chunk]
        for i in range(begin[chunk], begin[chunk + 1] + 1):
            while next_landing < begin[chunk + 1]:
                landed = landing[next_landing]
                if i < begin[chunk + 1] and arrive[landed] > slot[i]:
                    break
                to, bits = receiver[landed], flying[landed - begin[chunk]]
                if copy[landed]:
                    holds[to] = bits
                    parts[to] = flying_parts[landed - begin[chunk]]
                else:
                    for word in range(words):
                        twice = holds[to, word] & bits[word]
                        if twice != 0:
                            bit = 0
                            while (twice >> np.uint64(bit)) & one == 0:
                                bit += 1
                            return 1, landed, 64 * word + bit
                        holds[to, word] |= bits[word]
                    parts[to] += flying_parts[landed - begin[chunk]]
                next_landing += 1
            if i == begin[chunk + 1]:
                break
            if copy[i] and parts[sender[i]] < chips:
                for chip in range(chips):
                    if (holds[sender[i], chip // 64] >> np.uint64(chip % 64)) & one == 0:
                        return 2, i, chip
            flying[i - begin[chunk]] = holds[sender[i]]
            flying_parts[i - begin[chunk]] = parts[sender[i]]
        for chip in range(chips):
            if parts[chip] < chips:
                for other in range(chips):
                    if (holds[chip, other // 64] >> np.uint64(other % 64)) & one == 0:
                        return 5, chunk * chips + chip, other
    return 0, 0, 0
