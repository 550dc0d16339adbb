"""The event engine: when each transfer of a schedule begins and arrives, on links that serve in order of arrival.

A chunk goes over a link when its sender has it (all parts of the tree below, or the result) and the link is free. It
occupies the link for `service[link]` seconds, is at the receiver `latency` seconds later, and where it is to be added
it then occupies the receiver's adder for `add` seconds. Links and adders serve in order of arrival, and those that
arrive at the same time in the order of the schedule.

Chunks are all of one size, so on links of one speed what begins later ends later: ends of service (one for each speed),
arrivals and ends of adding are conveyor belts, each in order of time by itself, and no sorted queue of events is
needed. Work grows with the transfers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


@kernel
def first_come(
    link: Places, sender: Places, receiver: Places, chunk: Places, copy: Flags, chips: int, chunks: int,
    service: Floats, latency: float, add: float, dies: Floats,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Times at which transfers begin and have arrived (and are added); infinite for those that never do.

    `dies` holds for each link the time from which on nothing arrives over it any more.
    """
    total, links, never = len(link), len(dies), np.inf
    begin, arrive = np.full(total, never), np.full(total, never)
    # What a chip still waits for, chunk by chunk, and what it sends then: lists linked through `sibling`.
    parts = np.zeros((chips, chunks), np.int16)
    told = np.zeros((chips, chunks), np.bool_)  # the result comes from elsewhere
    outgoing = np.full((chips, chunks), -1, np.int32)
    sibling = np.full(total, -1, np.int32)
    for i in range(total - 1, -1, -1):
        sibling[i] = outgoing[sender[i], chunk[i]]
        outgoing[sender[i], chunk[i]] = i
        if copy[i]:
            told[receiver[i], chunk[i]] = True
        else:
            parts[receiver[i], chunk[i]] += 1
    # Who waits for a link or an adder: lists from head to tail, linked through `behind`.
    behind = np.full(total, -1, np.int32)
    head, tail, busy = np.full(links, -1, np.int32), np.full(links, -1, np.int32), np.zeros(links, np.bool_)
    adder_head, adder_tail = np.full(chips, -1, np.int32), np.full(chips, -1, np.int32)
    adding = np.zeros(chips, np.bool_)
    ends, landings, sums = np.empty(total, np.int32), np.empty(total, np.int32), np.empty(total, np.int32)
    end_time, landing_time, sum_time = np.empty(total), np.empty(total), np.empty(total)
    lengths = np.unique(service)
    kind = np.searchsorted(lengths, service)
    kinds = len(lengths)
    ends_out, ended = np.zeros(kinds, np.int64), np.zeros(kinds, np.int64)  # each speed's part of the belt of ends
    for i in range(total):
        for k in range(kind[link[i]] + 1, kinds):
            ends_out[k] += 1
    ended[:] = ends_out
    landed = summed = 0
    landings_out = sums_out = 0
    # Transfers that wait for nothing stand at their links in the order of the schedule.
    for i in range(total):
        if parts[sender[i], chunk[i]] == 0 and (not copy[i] or not told[sender[i], chunk[i]]):
            at = link[i]
            if tail[at] < 0:
                head[at] = i
            else:
                behind[tail[at]] = i
            tail[at] = i
    for at in range(links):
        if head[at] >= 0 and dies[at] > 0:
            i = head[at]
            busy[at] = True
            begin[i] = 0.0
            ends[ended[kind[at]]], end_time[ended[kind[at]]] = i, service[at]
            ended[kind[at]] += 1
    while True:
        next_sum = sum_time[sums_out] if sums_out < summed else never
        next_landing = landing_time[landings_out] if landings_out < landed else never
        next_end, which = never, 0
        for k in range(kinds):
            if ends_out[k] < ended[k] and end_time[ends_out[k]] < next_end:
                next_end, which = end_time[ends_out[k]], k
        now = min(next_sum, next_landing, next_end)
        if now == never:
            break
        there = -1  # the transfer that has now arrived and been added
        if next_sum <= now:
            there = sums[sums_out]
            sums_out += 1
            chip = receiver[there]
            i = behind[there]
            adder_head[chip] = i
            if i < 0:
                adder_tail[chip] = -1
                adding[chip] = False
            else:
                sums[summed], sum_time[summed] = i, now + add
                summed += 1
        elif next_landing <= now:
            i = landings[landings_out]
            landings_out += 1
            if copy[i] or add == 0.0:
                there = i
            else:
                chip = receiver[i]
                behind[i] = -1
                if adding[chip]:
                    behind[adder_tail[chip]] = i
                else:
                    adding[chip] = True
                    adder_head[chip] = i
                    sums[summed], sum_time[summed] = i, now + add
                    summed += 1
                adder_tail[chip] = i
        else:
            i = ends[ends_out[which]]
            ends_out[which] += 1
            at = link[i]
            if now + latency <= dies[at]:
                landings[landed], landing_time[landed] = i, now + latency
                landed += 1
                head[at] = behind[i]
                if head[at] < 0:
                    tail[at] = -1
                    busy[at] = False
                elif now < dies[at]:
                    begin[head[at]] = now
                    ends[ended[kind[at]]], end_time[ended[kind[at]]] = head[at], now + service[at]
                    ended[kind[at]] += 1
            # Else the link is dead, and stays busy with what it lost.
        if there < 0:
            continue
        arrive[there] = now
        chip, piece = receiver[there], chunk[there]
        if not copy[there]:
            parts[chip, piece] -= 1
            if parts[chip, piece] > 0:
                continue
        i = outgoing[chip, piece]
        while i >= 0:
            if (copy[i] and (copy[there] or not told[chip, piece])) or (not copy[i] and not copy[there]):
                at = link[i]
                behind[i] = -1
                if tail[at] >= 0:
                    behind[tail[at]] = i
                else:
                    head[at] = i
                tail[at] = i
                if not busy[at] and now < dies[at]:
                    busy[at] = True
                    begin[i] = now
                    ends[ended[kind[at]]], end_time[ended[kind[at]]] = i, now + service[at]
                    ended[kind[at]] += 1
            i = sibling[i]
    return begin, arrive


@kernel
def in_order(
    link: Places, sender: Places, receiver: Places, chunk: Places, copy: Flags, chips: int, chunks: int,
    service: Floats, latency: float, add: float, dies: Floats,
) -> tuple[Floats, Floats]:  # fmt: skip
    """The same where every link and every adder keeps to the order of the schedule, and waits for the next in line."""
    total = len(link)
    begin, arrive = np.full(total, np.inf), np.full(total, np.inf)
    have = np.zeros((chips, chunks))
    free, adder = np.zeros(len(dies)), np.zeros(chips)
    for i in range(total):
        now = max(have[sender[i], chunk[i]], free[link[i]])
        there = now + service[link[i]] + latency
        if now < dies[link[i]]:
            begin[i] = now
        if there > dies[link[i]]:
            there = free[link[i]] = np.inf
        else:
            free[link[i]] = now + service[link[i]]
            if not copy[i] and add > 0.0:
                there = adder[receiver[i]] = max(there, adder[receiver[i]]) + add
        arrive[i] = there
        have[receiver[i], chunk[i]] = max(have[receiver[i], chunk[i]], there)
    return begin, arrive


@kernel
def in_order_of_cells(
    link: Places, take: Places, put: Places, receiver: Places, chunk: Places, copy: Flags, source: Places,
    first: npt.NDArray[np.int64], from_chunk: Places, places: int, service: Floats, latency: float, add: float,
    dies: Floats, chips: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """The same for a staged schedule, in which a chip has several partial sums of a chunk.

    What arrives in a cell is noted at `first[cell]`, as far on as its flow has chunks before this one; a cell is
    complete when it and those that it begins with (`source`) are.
    """
    total = len(link)
    begin, arrive = np.full(total, np.inf), np.full(total, np.inf)
    have = np.zeros(places)
    free, adder = np.zeros(len(dies)), np.zeros(chips)
    for i in range(total):
        now, cell = free[link[i]], take[i]
        while cell >= 0:
            now = max(now, have[first[cell] + chunk[i] - from_chunk[cell]])
            cell = source[cell]
        there = now + service[link[i]] + latency
        if now < dies[link[i]]:
            begin[i] = now
        if there > dies[link[i]]:
            there = free[link[i]] = np.inf
        else:
            free[link[i]] = now + service[link[i]]
            if not copy[i] and add > 0.0:
                there = adder[receiver[i]] = max(there, adder[receiver[i]]) + add
        arrive[i] = there
        at = first[put[i]] + chunk[i] - from_chunk[put[i]]
        have[at] = max(have[at], there)
    return begin, arrive


@kernel
def holdings(
    sender: Places, receiver: Places, chunk: Places, copy: Flags, arrived: Flags, chips: int, chunks: int
) -> npt.NDArray[np.int32]:
    """[chip, chunk]: how many chips' parts are in what it holds, after these transfers and no others."""
    parts = np.ones((chips, chunks), np.int32)
    for i in range(len(sender)):
        if arrived[i]:
            if copy[i]:
                parts[receiver[i], chunk[i]] = parts[sender[i], chunk[i]]
            else:
                parts[receiver[i], chunk[i]] += parts[sender[i], chunk[i]]
    return parts
