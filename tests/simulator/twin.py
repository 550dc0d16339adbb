"""The engines once more, in the plainest Python: dictionaries, deques and one sorted queue of events."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from itertools import count

from meshmend.mesh.schedule import Schedule
from meshmend.simulator import Network

Times = tuple[list[float], list[float]]


def first_come(table: Schedule, nbytes: float, net: Network, dies: dict[int, float]) -> Times:
    """Links and adders are servers with queues; a chunk goes when its sender has what it sends."""
    size = nbytes / table.chunks
    rows = list(zip(table.sender.tolist(), table.receiver.tolist(), table.link.tolist(), table.chunk.tolist(), table.copy.tolist(), strict=True))  # noqa: E501  # fmt: skip
    begin, arrive = [math.inf] * len(rows), [math.inf] * len(rows)
    parts = {(c, k): 0 for _, c, _, k, _ in rows} | {(c, k): 0 for c, _, _, k, _ in rows}
    told = set()
    for _, receiver, _, chunk, copy in rows:
        if copy:
            told.add((receiver, chunk))
        else:
            parts[receiver, chunk] += 1
    outgoing = defaultdict(list)
    for i, (sender, _, _, chunk, _) in enumerate(rows):
        outgoing[sender, chunk].append(i)
    queues: dict[int, deque[int]] = defaultdict(deque)
    busy: set[int] = set()
    adders: dict[int, deque[int]] = defaultdict(deque)
    events: list[tuple[float, int, int, int]] = []
    tick = count()

    def serve(link: int, now: float) -> None:
        if link not in busy and queues[link] and now < dies.get(link, math.inf):
            i = queues[link].popleft()
            busy.add(link)
            begin[i] = now
            heapq.heappush(events, (now + (net.overhead + size / net.bandwidth), 2, next(tick), i))

    for i, (sender, _, link, chunk, copy) in enumerate(rows):
        if parts[sender, chunk] == 0 and not (copy and (sender, chunk) in told):
            queues[link].append(i)
    for link in sorted(queues):
        serve(link, 0.0)
    while events:
        now, kind, _, i = heapq.heappop(events)
        sender, receiver, link, chunk, copy = rows[i]
        there = False
        if kind == 2:
            if now + net.latency > dies.get(link, math.inf):
                continue
            heapq.heappush(events, (now + net.latency, 1, next(tick), i))
            busy.discard(link)
            serve(link, now)
        elif kind == 1 and not copy and size / net.adds > 0:
            adders[receiver].append(i)
            if len(adders[receiver]) == 1:
                heapq.heappush(events, (now + size / net.adds, 0, next(tick), i))
        else:
            there = True
            if kind == 0:
                adders[receiver].popleft()
                if adders[receiver]:
                    heapq.heappush(events, (now + size / net.adds, 0, next(tick), adders[receiver][0]))
        if there:
            arrive[i] = now
            here = (receiver, chunk)
            if not copy:
                parts[here] -= 1
                if parts[here]:
                    continue
            for j in outgoing[here]:
                goes_on = rows[j][4]
                if (goes_on and (copy or here not in told)) or (not goes_on and not copy):
                    queues[rows[j][2]].append(j)
                    serve(rows[j][2], now)
    return begin, arrive


def in_order(table: Schedule, nbytes: float, net: Network, dies: dict[int, float]) -> Times:
    """Each link, each adder: one after the other, in the order of the table."""
    size = nbytes / table.chunks
    have: dict[tuple[int, int], float] = defaultdict(float)
    free: dict[int, float] = defaultdict(float)
    adder: dict[int, float] = defaultdict(float)
    begin, arrive = [], []
    for sender, receiver, link, chunk, copy in zip(
        table.sender.tolist(), table.receiver.tolist(), table.link.tolist(), table.chunk.tolist(), table.copy.tolist(),
        strict=True,
    ):  # fmt: skip
        now = max(have[sender, chunk], free[link])
        alive = dies.get(link, math.inf)
        begin.append(now if now < alive else math.inf)
        free[link] = now + (net.overhead + size / net.bandwidth)
        there = free[link] + net.latency
        if there > alive:
            there = free[link] = math.inf
        elif not copy:
            there = max(there, adder[receiver]) + size / net.adds if math.isfinite(net.adds) else there
            adder[receiver] = there
        arrive.append(there)
        have[receiver, chunk] = max(have[receiver, chunk], there)
    return begin, arrive
