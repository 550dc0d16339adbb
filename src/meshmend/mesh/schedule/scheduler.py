"""Puts a plan's chunks on the clock: in every slot, each directed link that is free serves one waiting chunk.

The chunks of a flow follow each other over the same links, so the unit of bookkeeping is a **stream**: one flow on one
link, going up or down. A stream's next chunk may go when all streams before it have delivered theirs: the sender's
children on the way up, its parent on the way down, and all that reach the root before the first that leave it. Among
waiting streams a link takes the one whose next chunk has the lowest key, and keys are due times:

* first, chunk j of a flow with n chunks is due at j/n of the whole time, and later the farther it has already come, so
  that all flows keep moving side by side and those with the longest way left go first;
* then the schedule is run backwards in time, latest first, and forwards again in the order that gives (the
  forward-backward improvement of project scheduling, Li and Willis 1992). Each pass pulls idle slots out of the drain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh.planners.plan import Plan, depths, heights, parents_of

Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Keys = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
GOLDEN = 0.6180339887498949
ROUNDS = 2
"""Backwards and forwards again; more rounds win next to nothing."""
MANY = 4_000_000, 12_000_000
"""Transfers from which on one round less is made: the second wins about a thousandth, the first a hundredth."""
FIRST, SENT, READY, NEXT, NEEDS, LINK, FLAGS = range(7)
"""What the clock knows about a stream, side by side: where its transfers begin, how many were sent and can be sent,
where the streams begin that wait for it and that it waits for, its link, and which of these it is:"""
GATED, EARLY = 1, 2


class Due(NamedTuple):
    """Keys that grow evenly along each stream: of its chunk j, `begin + j * period`."""

    begin: Floats
    period: Floats


@dataclass(frozen=True, eq=False)
class Timing:
    """All transfers in order of slots and links, and the slots until all have arrived."""

    slot: Places
    order: Places
    """The numbers of the transfers."""
    stream: Places
    """The streams that they belong to."""
    slots: int

    @cached_property
    def when(self) -> Places:
        """The slot of each transfer, by its number."""
        when = np.empty_like(self.slot)
        when[self.order] = self.slot
        return when


@dataclass(frozen=True, eq=False)
class Streams:
    """Every stream of a plan, link by link; transfers `first[s] .. first[s + 1]` are those of stream s.

    What happens in a slot happens link by link too, so that streams which are looked at together lie together.
    """

    plan: Plan
    count: Ints
    """Chunks of each flow."""

    @cached_property
    def _places(self) -> tuple[Ints, Ints, npt.NDArray[np.bool_], Places]:
        plan, mesh = self.plan, self.plan.mesh
        up_flow, up_chip = np.nonzero(plan.up >= 0)
        down_flow, down_chip = np.nonzero(plan.down >= 0)
        flow, chip = np.concatenate([up_flow, down_flow]), np.concatenate([up_chip, down_chip])
        up_link = mesh.link_number(up_chip, plan.up[up_flow, up_chip])
        down_link = mesh.reverse[mesh.link_number(down_chip, plan.down[down_flow, down_chip])]
        link = np.concatenate([up_link, down_link]).astype(np.int32)
        order = np.argsort(link, kind="stable")
        return flow[order], chip[order], order < len(up_flow), link[order]

    @property
    def flow(self) -> Ints:
        """Each stream's flow."""
        return self._places[0]

    @property
    def chip(self) -> Ints:
        """The chip that sends on the way up, or receives on the way down: the lower end."""
        return self._places[1]

    @property
    def is_up(self) -> npt.NDArray[np.bool_]:
        """Whether each stream goes up."""
        return self._places[2]

    @property
    def link(self) -> Places:
        """The directed link of each stream."""
        return self._places[3]

    @cached_property
    def first(self) -> Ints:
        """Where each stream's transfers begin, and at the end how many there are."""
        return np.concatenate([[0], np.cumsum(self.count[self.flow])]).astype(np.int64)

    @cached_property
    def follows(self) -> tuple[Places, Places]:
        """Pairs (before, after): streams of which the second waits for the first."""
        plan, flow, chip = self.plan, self.flow, self.chip
        ups, downs = np.flatnonzero(self.is_up).astype(np.int32), np.flatnonzero(~self.is_up).astype(np.int32)
        number = np.full((2, *plan.up.shape), -1, np.int32)
        number[0, flow[ups], chip[ups]] = ups
        number[1, flow[downs], chip[downs]] = downs
        up_parent = parents_of(plan.mesh, plan.up)[flow[ups], chip[ups]]
        down_parent = parents_of(plan.mesh, plan.down)[flow[downs], chip[downs]]
        before = [ups, number[1, flow[downs], down_parent]]
        after = [number[0, flow[ups], up_parent], downs]
        every = np.arange(len(plan))
        ways = range(len(plan.mesh.ways))
        # The chip at each way of the root, where it is a child there on the way up or on the way down.
        low, high = (np.full((len(ways), len(plan)), -1) for _ in "ud")
        for way in ways:
            link = plan.mesh.link_number(plan.root, way)
            there, home = plan.mesh.neighbour[plan.root, way], plan.mesh.link_source(plan.mesh.reverse[link])[1]
            for child, tree in ((low, plan.up), (high, plan.down)):
                child[way] = np.where((there >= 0) & (tree[every, there] == home), there, -1)
        for into in ways:
            for out in ways:
                meets = (low[into] >= 0) & (high[out] >= 0)
                before.append(number[0, every[meets], low[into, meets]])
                after.append(number[1, every[meets], high[out, meets]])
        pairs = np.concatenate(before), np.concatenate(after)
        real = (pairs[0] >= 0) & (pairs[1] >= 0)
        return pairs[0][real], pairs[1][real]

    def run(self, key: Keys | Due, latency: int, busy: Ints, *, backwards: bool = False) -> Timing:
        """Serve streams by key; backwards, every stream waits for those that otherwise wait for it.

        `busy` is for how many slots a chunk occupies each link; it can be sent on `latency` slots after that.
        """
        before, after = self.follows[::-1] if backwards else self.follows
        streams = len(self.flow)
        early = ~self.is_up if backwards else self.is_up
        gate = np.zeros(streams, bool)
        if not self.plan.overlap:
            gate[after[early[before] & ~early[after]]] = True
        held_back = int(self.count[self.flow][early].sum())
        flags = GATED * gate + EARLY * early
        return _timed(self.link, self.first, (before, after), flags, held_back, key, latency, busy)


def serve(link: Places, count: Ints, pairs: tuple[Places, Places], key: Keys, latency: int, busy: Ints) -> Timing:
    """Serve any streams by key: each has so many chunks and one link, and of a pair the second waits for the first."""
    first = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    return _timed(link, first, pairs, np.zeros(len(link), np.int64), 0, key, latency, busy)


def _timed(
    link: Places, first: Ints, pairs: tuple[Places, Places], flags: Ints, held_back: int, key: Keys | Due, latency: int,
    busy: Ints,
) -> Timing:  # fmt: skip
    """Run the clock for streams with these links, transfers and flags."""
    streams, (before, after) = len(link), pairs
    begin_needs, needs = _grouped(after, before, streams)
    begin_next, after = _grouped(before, after, streams)
    offset = np.concatenate([[0], np.cumsum(np.bincount(link, minlength=len(busy)))])
    lengths, kind = np.unique(busy, return_inverse=True)
    state = np.zeros((streams + 1, 8), np.int32)  # one unused, so that no row lies across two lines of the cache
    state[:, FIRST], state[:, NEXT], state[:, NEEDS] = first, begin_next, begin_needs
    state[:-1, LINK], state[:-1, FLAGS] = link, flags
    nothing = np.zeros(0)
    due = key if isinstance(key, Due) else Due(nothing, nothing)
    keys = np.zeros(0, np.float32) if isinstance(key, Due) else key
    slot, order, stream, slots = _serve(
        state, after, needs, held_back, offset, keys, due.begin, due.period, latency, lengths, kind.astype(np.int64)
    )
    return Timing(slot, order, stream, int(slots))


def _grouped(by: Places, values: Places, groups: int) -> tuple[Ints, Places]:
    """Values gathered by group: those of group g are `out[begin[g] : begin[g + 1]]`."""
    begin = np.concatenate([[0], np.cumsum(np.bincount(by, minlength=groups))]).astype(np.int64)
    return begin, values[np.argsort(by, kind="stable")]


def on_the_clock(plan: Plan, count: Ints, latency: int, busy: Ints) -> tuple[Streams, Timing]:
    """Slots for every transfer of the plan, as few as we can."""
    streams = Streams(plan, count)
    pace = int(busy.min())
    timing = best = streams.run(_due(streams, pace + latency, pace), latency, busy)
    links = plan.mesh.link_numbers
    busiest = int((np.bincount(streams.link, count[streams.flow], minlength=links) * busy).max())
    # Backwards in time a chunk sets out when it has arrived, and arrives when it set out.
    taken = busy[streams.link] - pace
    for _ in range(ROUNDS - sum(int(streams.first[-1]) > many for many in MANY)):
        if best.slots <= 1.01 * busiest:
            break
        back = streams.run(_mirrored(streams.first, taken, timing.when, timing.slots), latency, busy, backwards=True)
        timing = streams.run(_mirrored(streams.first, taken, back.when, back.slots), latency, busy)
        if timing.slots >= best.slots:
            break
        best = timing
    return streams, best


@kernel
def _mirrored(first: Ints, taken: Ints, when: Places, slots: int) -> Keys:
    """Keys for the same transfers the other way round in time: each stream's last is its first."""
    key = np.empty(len(when), np.float32)
    for stream in range(len(first) - 1):
        ends = first[stream] + first[stream + 1] - 1
        for i in range(first[stream], first[stream + 1]):
            key[ends - i] = slots - when[i] - taken[stream]
    return key


def _due(streams: Streams, hop: int, pace: int) -> Due:
    """When each transfer is due in an even flow of all chunks, the first guess at a schedule."""
    plan, flow, chip = streams.plan, streams.flow, streams.chip
    up_depth = depths(plan.mesh, plan.up)
    below = heights(plan.mesh, plan.down)
    after_root = below[np.arange(len(plan)), plan.root]
    way = up_depth.max(1) + after_root
    left = np.where(streams.is_up, up_depth[flow, chip] + after_root[flow], below[flow, chip] + 1)
    period = (streams.count.sum() * pace * plan.max_load - hop * way / 2) / np.maximum(streams.count, 1)
    stagger = period * (np.arange(len(plan)) * GOLDEN % 1)
    return Due(stagger[flow] + hop * (0.5 * way[flow] - 1.5 * left), period[flow])


@kernel
def _serve(
    state: Places, after: Places, needs: Places, held_back: int, offset: Ints, keys: Keys, begins: Floats,
    periods: Floats, latency: int, lengths: Ints, kind: Ints,
) -> tuple[Places, Places, Places, int]:  # fmt: skip
    """Slot by slot, each link sends the waiting chunk with the lowest key.

    Gated streams wait until all transfers of early streams, `held_back` of them, have arrived. A chunk occupies
    a link for `lengths[kind[link]]` slots. Those of one kind arrive in the order in which they were sent, so that each
    kind has a queue of what is on its way.
    """
    streams, links = len(state) - 1, len(offset) - 1
    total = state[streams, FIRST]
    even = len(keys) == 0
    arrivals = np.zeros(streams, np.int32)  # apart from `state`, since it alone is asked of every stream waited for
    waiting = np.zeros(streams, np.int32)  # for each link, a heap of the streams with a chunk to send
    rank = np.zeros(streams, np.float32)
    queued = np.zeros(links, np.int32)
    slots = np.zeros(total, np.int32)
    order = np.zeros(total, np.int32)
    whose = np.zeros(total, np.int32)
    kinds = len(lengths)
    room = np.zeros(kinds + 1, np.int64)
    for stream in range(streams):
        room[kind[state[stream, LINK]] + 1] += state[stream + 1, FIRST] - state[stream, FIRST]
    room = np.cumsum(room)
    flown = np.zeros(total if kinds > 1 else 0, np.int32)  # of each kind, the places in `order` of its transfers:
    landed, gone = room[:-1].copy(), room[:-1].copy()  # those from landed[k] to gone[k] are on their way
    free = np.zeros(links, np.int32)
    never = np.iinfo(np.int32).max

    def due_of(stream: int) -> Any:
        if even:
            return np.float32(begins[stream] + state[stream, SENT] * periods[stream])
        return keys[state[stream, FIRST] + state[stream, SENT]]

    def offer(stream: int, chunks: int) -> None:
        if state[stream, READY] == 0:
            here = state[stream, LINK]
            begin, at = offset[here], queued[here]
            due = due_of(stream)
            while at > 0:
                above = (at - 1) // 2
                other = waiting[begin + above]
                if rank[begin + above] < due or (rank[begin + above] == due and other < stream):
                    break
                waiting[begin + at], rank[begin + at] = other, rank[begin + above]
                at = above
            waiting[begin + at], rank[begin + at] = stream, due
            queued[here] += 1
        state[stream, READY] += chunks

    def settle(begin: int, size: int, stream: int, due: float) -> None:
        # Put a stream at the top of a heap and let it sink to its place.
        at = 0
        while 2 * at + 1 < size:
            child = 2 * at + 1
            a, b = begin + child, begin + child + 1
            if child + 1 < size and (rank[b] < rank[a] or (rank[b] == rank[a] and waiting[b] < waiting[a])):
                child += 1
                a = b
            if due < rank[a] or (due == rank[a] and stream < waiting[a]):
                break
            waiting[begin + at], rank[begin + at] = waiting[a], rank[a]
            at = child
        waiting[begin + at], rank[begin + at] = stream, due

    for stream in range(streams):
        chunks = state[stream + 1, FIRST] - state[stream, FIRST]
        if state[stream, NEEDS] == state[stream + 1, NEEDS] and chunks > 0:
            offer(stream, chunks)
    slot, done, idle, end = 0, 0, never, 0
    while done < total:
        if idle > slot:  # a long latency leaves many slots in which nothing happens
            for k in range(kinds):
                if landed[k] < gone[k]:
                    oldest = flown[landed[k]] if kinds > 1 else landed[k]
                    idle = min(idle, slots[oldest] + lengths[k] + latency)
            if slot > 0:
                slot = idle
        for k in range(kinds):
            while landed[k] < gone[k]:
                oldest = flown[landed[k]] if kinds > 1 else landed[k]
                if slots[oldest] + lengths[k] + latency != slot:
                    break
                stream = whose[oldest]
                landed[k] += 1
                arrivals[stream] += 1
                arrived = arrivals[stream]
                for j in range(state[stream, NEXT], state[stream + 1, NEXT]):
                    then = after[j]
                    if state[then, FLAGS] & GATED:
                        if held_back > 0:
                            continue
                    elif state[then, SENT] + state[then, READY] < arrived - 1:
                        continue  # it waits for an earlier chunk of another stream
                    whole = True
                    for need in range(state[then, NEEDS], state[then + 1, NEEDS]):
                        if arrivals[needs[need]] < arrived:
                            whole = False
                            break
                    if whole:
                        offer(then, 1)
                if state[stream, FLAGS] & EARLY:
                    held_back -= 1
                    if held_back == 0:
                        for then in range(streams):
                            chunks = state[then + 1, FIRST] - state[then, FIRST]
                            if state[then, FLAGS] & GATED and state[then, READY] == 0 and chunks > 0:
                                offer(then, chunks)
        idle = never  # the next slot in which a link with something to send is free
        for here in range(links):
            if queued[here] == 0:
                continue
            if free[here] > slot:
                idle = min(idle, free[here])
                continue
            begin = offset[here]
            stream = waiting[begin]
            slots[done] = slot
            order[done] = state[stream, FIRST] + state[stream, SENT]
            whose[done] = stream
            which = kind[here]
            if kinds > 1:
                flown[gone[which]] = done
            gone[which] += 1
            state[stream, SENT] += 1
            done += 1
            state[stream, READY] -= 1
            free[here] = slot + lengths[which]
            end = max(end, free[here] + latency)
            if state[stream, READY] > 0:
                settle(begin, queued[here], stream, due_of(stream))
            else:
                queued[here] -= 1
                last = begin + queued[here]
                settle(begin, queued[here], waiting[last], rank[last])
            if queued[here] > 0:
                idle = min(idle, free[here])
        slot += 1
    return slots, order, whose, end
