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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.mesh.planners.plan import Plan, depths, heights, parents_of

Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Keys = npt.NDArray[np.float32]
GOLDEN = 0.6180339887498949
ROUNDS = 2
"""Backwards and forwards again; more rounds win next to nothing."""
MANY = 4_000_000, 12_000_000
"""Transfers from which on one round less is made: the second wins about a thousandth, the first a hundredth."""


class Timing(NamedTuple):
    """The slot of each transfer, the transfers in order of slots and links, and the slots until all have arrived."""

    when: Places
    order: Places
    slots: int


@dataclass(frozen=True, eq=False)
class Streams:
    """Every stream of a plan, the up ones first; transfers `first[s] .. first[s + 1]` are those of stream s."""

    plan: Plan
    count: Ints
    """Chunks of each flow."""

    @cached_property
    def ups(self) -> int:
        """How many streams go up."""
        return int((self.plan.up >= 0).sum())

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        up_flow, up_chip = np.nonzero(self.plan.up >= 0)
        down_flow, down_chip = np.nonzero(self.plan.down >= 0)
        return np.concatenate([up_flow, down_flow]), np.concatenate([up_chip, down_chip])

    @property
    def flow(self) -> Ints:
        """Each stream's flow."""
        return self._places[0]

    @property
    def chip(self) -> Ints:
        """The chip that sends on the way up, or receives on the way down: the lower end."""
        return self._places[1]

    @cached_property
    def link(self) -> Places:
        """The directed link of each stream."""
        plan, (flow, chip) = self.plan, self._places
        is_up = np.arange(len(chip)) < self.ups
        link = plan.mesh.link_number(chip, np.where(is_up, plan.up[flow, chip], plan.down[flow, chip]))
        return np.asarray(np.where(is_up, link, plan.mesh.reverse[link]), np.int32)

    @cached_property
    def first(self) -> Ints:
        """Where each stream's transfers begin, and at the end how many there are."""
        return np.concatenate([[0], np.cumsum(self.count[self.flow])]).astype(np.int64)

    @cached_property
    def turn(self) -> Ints:
        """The number of each transfer within its stream."""
        return np.arange(self.first[-1]) - np.repeat(self.first[:-1], self.count[self.flow])

    @cached_property
    def follows(self) -> tuple[Places, Places]:
        """Pairs (before, after): streams of which the second waits for the first."""
        plan, (flow, chip) = self.plan, self._places
        number = np.full((2, *plan.up.shape), -1, np.int32)
        number[0, flow[: self.ups], chip[: self.ups]] = np.arange(self.ups)
        number[1, flow[self.ups :], chip[self.ups :]] = np.arange(self.ups, len(flow))
        up_parent = parents_of(plan.mesh, plan.up)[flow[: self.ups], chip[: self.ups]]
        down_parent = parents_of(plan.mesh, plan.down)[flow[self.ups :], chip[self.ups :]]
        streams = np.arange(len(flow), dtype=np.int32)
        before = [streams[: self.ups], number[1, flow[self.ups :], down_parent]]
        after = [number[0, flow[: self.ups], up_parent], streams[self.ups :]]
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

    def run(self, key: Keys, latency: int, busy: Ints, *, backwards: bool = False) -> Timing:
        """Serve streams by key; backwards, every stream waits for those that otherwise wait for it.

        `busy` is for how many slots a chunk occupies each link; it can be sent on `latency` slots after that.
        """
        before, after = self.follows[::-1] if backwards else self.follows
        streams = len(self.flow)
        is_up = np.arange(streams) < self.ups
        early = ~is_up if backwards else is_up
        gate = np.zeros(streams, bool)
        if not self.plan.overlap:
            gate[after[early[before] & ~early[after]]] = True
        begin_needs, needs = _grouped(after, before, streams)
        begin_next, after = _grouped(before, after, streams)
        offset = np.concatenate([[0], np.cumsum(np.bincount(self.link, minlength=self.plan.mesh.link_numbers))])
        held_back = int(self.count[self.flow][early].sum())
        lengths, kind = np.unique(busy, return_inverse=True)
        when, order, slots = _serve(
            self.link, self.first, begin_next, after, begin_needs, needs, gate, early, held_back, offset, key,
            latency, lengths, kind.astype(np.int64),
        )  # fmt: skip
        return Timing(when, order, int(slots))


def serve(link: Places, count: Ints, pairs: tuple[Places, Places], key: Keys, latency: int, busy: Ints) -> Timing:
    """Serve any streams by key: each has so many chunks and one link, and of a pair the second waits for the first."""
    streams = len(link)
    before, after = pairs
    begin_needs, needs = _grouped(after, before, streams)
    begin_next, after = _grouped(before, after, streams)
    offset = np.concatenate([[0], np.cumsum(np.bincount(link, minlength=len(busy)))])
    first = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    lengths, kind = np.unique(busy, return_inverse=True)
    never = np.zeros(streams, bool)
    when, order, slots = _serve(
        link, first, begin_next, after, begin_needs, needs, never, never, 0, offset, key, latency, lengths,
        kind.astype(np.int64),
    )  # fmt: skip
    return Timing(when, order, int(slots))


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
    taken = np.repeat(busy[streams.link], count[streams.flow]) - pace
    mirror = np.repeat(streams.first[1:] - 1, count[streams.flow]) - streams.turn
    key = np.empty(len(mirror), np.float32)
    for _ in range(ROUNDS - sum(len(mirror) > many for many in MANY)):
        if best.slots <= 1.01 * busiest:
            break
        key[mirror] = timing.slots - timing.when - taken
        back = streams.run(key, latency, busy, backwards=True)
        timing = streams.run((back.slots - (back.when + taken)[mirror]).astype(np.float32), latency, busy)
        if timing.slots >= best.slots:
            break
        best = timing
    return streams, best


def _due(streams: Streams, hop: int, pace: int) -> Keys:
    """When each transfer is due in an even flow of all chunks, the first guess at a schedule."""
    plan, flow, chip = streams.plan, streams.flow, streams.chip
    up_depth = depths(plan.mesh, plan.up)
    below = heights(plan.mesh, plan.down)
    after_root = below[np.arange(len(plan)), plan.root]
    way = up_depth.max(1) + after_root
    is_up = np.arange(len(flow)) < streams.ups
    left = np.where(is_up, up_depth[flow, chip] + after_root[flow], below[flow, chip] + 1)
    period = (streams.count.sum() * pace * plan.max_load - hop * way / 2) / np.maximum(streams.count, 1)
    stagger = period * (np.arange(len(plan)) * GOLDEN % 1)
    begin = stagger[flow] + hop * (0.5 * way[flow] - 1.5 * left)
    chunks = streams.count[flow]
    return np.asarray(streams.turn * np.repeat(period[flow], chunks) + np.repeat(begin, chunks), np.float32)


@kernel
def _serve(
    link: Places, first: Ints, begin_next: Ints, after: Places, begin_needs: Ints, needs: Places,
    gate: npt.NDArray[np.bool_], early: npt.NDArray[np.bool_], held_back: int, offset: Ints, key: Keys,
    latency: int, lengths: Ints, kind: Ints,
) -> tuple[Places, Places, int]:  # fmt: skip
    """Slot by slot, each link sends the waiting chunk with the lowest key.

    Streams with a gate wait until all transfers of early streams, `held_back` of them, have arrived. A chunk occupies
    a link for `lengths[kind[link]]` slots. Those of one kind arrive in the order in which they were sent, so that each
    kind has a queue of what is on its way.
    """
    streams, links, total = len(link), len(offset) - 1, first[-1]
    waiting = np.zeros(streams, np.int32)  # for each link, a heap of the streams with a chunk to send
    rank = np.zeros(streams, np.float32)
    queued = np.zeros(links, np.int32)
    ready = np.zeros(streams, np.int32)
    sent = np.zeros(streams, np.int32)
    arrived = np.zeros(streams, np.int32)
    when = np.zeros(total, np.int32)
    order = np.zeros(total, np.int32)
    kinds = len(lengths)
    room = np.zeros(kinds + 1, np.int64)
    for stream in range(streams):
        room[kind[link[stream]] + 1] += first[stream + 1] - first[stream]
    room = np.cumsum(room)
    flown = np.zeros(total, np.int32)  # of each kind, the streams of its transfers and when they were sent:
    since = np.zeros(total, np.int32)  # those from landed[k] to gone[k] are on their way
    landed, gone = room[:-1].copy(), room[:-1].copy()
    free = np.zeros(links, np.int32)
    never = np.iinfo(np.int32).max

    def offer(stream: int, chunks: int) -> None:
        if ready[stream] == 0:
            here = link[stream]
            begin, at = offset[here], queued[here]
            due = key[first[stream] + sent[stream]]
            while at > 0:
                above = (at - 1) // 2
                other = waiting[begin + above]
                if rank[begin + above] < due or (rank[begin + above] == due and other < stream):
                    break
                waiting[begin + at], rank[begin + at] = other, rank[begin + above]
                at = above
            waiting[begin + at], rank[begin + at] = stream, due
            queued[here] += 1
        ready[stream] += chunks

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
        if begin_needs[stream] == begin_needs[stream + 1] and first[stream] < first[stream + 1]:
            offer(stream, first[stream + 1] - first[stream])
    slot, done, idle, end = 0, 0, never, 0
    while done < total:
        if idle > slot:  # a long latency leaves many slots in which nothing happens
            for k in range(kinds):
                if landed[k] < gone[k]:
                    idle = min(idle, since[landed[k]] + lengths[k] + latency)
            if slot > 0:
                slot = idle
        for k in range(kinds):
            while landed[k] < gone[k] and since[landed[k]] + lengths[k] + latency == slot:
                stream = flown[landed[k]]
                landed[k] += 1
                arrived[stream] += 1
                for j in range(begin_next[stream], begin_next[stream + 1]):
                    then = after[j]
                    whole = not (gate[then] and held_back > 0)
                    for need in range(begin_needs[then], begin_needs[then + 1]):
                        if arrived[needs[need]] < arrived[stream]:
                            whole = False
                    if whole:
                        offer(then, 1)
                if early[stream]:
                    held_back -= 1
                    if held_back == 0:
                        for then in range(streams):
                            if gate[then] and ready[then] == 0 and first[then] < first[then + 1]:
                                offer(then, first[then + 1] - first[then])
        idle = never  # the next slot in which a link with something to send is free
        for here in range(links):
            if queued[here] == 0:
                continue
            if free[here] > slot:
                idle = min(idle, free[here])
                continue
            begin = offset[here]
            stream = waiting[begin]
            when[first[stream] + sent[stream]] = slot
            order[done] = first[stream] + sent[stream]
            sent[stream] += 1
            done += 1
            ready[stream] -= 1
            which = kind[here]
            flown[gone[which]], since[gone[which]] = stream, slot
            gone[which] += 1
            free[here] = slot + lengths[which]
            end = max(end, free[here] + latency)
            if ready[stream] > 0:
                settle(begin, queued[here], stream, key[first[stream] + sent[stream]])
            else:
                queued[here] -= 1
                last = begin + queued[here]
                settle(begin, queued[here], waiting[last], rank[last])
            if queued[here] > 0:
                idle = min(idle, free[here])
        slot += 1
    return when, order, end
