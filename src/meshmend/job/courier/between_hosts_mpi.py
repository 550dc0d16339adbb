"""Slices between the hosts of one group: sums, totals and new weights, along the routes of `host_routes.py`.

The notes and the footer, which everybody needs, are added up by MPI. Buffers belong to one group and are never used
again after a failure: late messages may still arrive in them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.job.courier.holder_port import Floats, HolderPort, Wire
from meshmend.job.courier.host_routes import Hosts, Routes, Span, spread, sums
from meshmend.job.protocol import Total
from meshmend.job.transport.base import PIECE, Buffers, Hello, patient


class BetweenHosts:
    """One member of a group whose members are on several hosts."""

    def __init__(self, comm: MPI.Comm, members: Sequence[Hello], holder: HolderPort) -> None:
        self.comm, self._members, self._holder = comm, members, holder
        self._here = comm.Get_rank()
        self._hosts = Hosts(tuple(member.host for member in members))
        self._places = {member.rank: place for place, member in enumerate(members)}
        self._out, self._in = (np.empty(PIECE, np.uint8) for _ in range(2))
        self._routed: object = None
        """What these were made for: a plan stays the same for many rounds."""
        self._adders: list[int] = []
        self._sums = self._totals = Routes()

    def scatter(self, round: int, takers: Sequence[Collection[int]], parts: Sequence[Buffers]) -> Total:
        """The first taker of a slice adds up what all hosts have of it, and the others get its total."""
        bounds = self._holder.stretches
        self._route(takers, bounds)
        total, wire = self._holder.total(round), self._holder.wire
        messages = [one.part for one in parts]

        def add(span: Span, out: Wire) -> None:
            wire.combine([part[span[1] : span[2]] for part in messages], out, span[1])

        def add_to(span: Span, values: Wire) -> None:
            here = total[span[1] : span[2]]
            np.add(here, values, out=here)

        def read(span: Span, out: Wire) -> None:
            out[:] = total[span[1] : span[2]]

        def write(span: Span, values: Wire) -> None:
            total[span[1] : span[2]] = values

        for number, adder in enumerate(self._adders):
            if adder == self._here:
                begin, end = bounds[number : number + 2]
                add((number, begin, end), total[begin:end])
        self._run(self._sums, total.dtype, add, add_to)
        self._run(self._totals, total.dtype, read, write)
        self._read_near(round, total, parts)
        self._sum_rest(total, bounds[-1])
        return self._holder.read(total)

    def _route(self, takers: Sequence[Collection[int]], bounds: Sequence[int]) -> None:
        if self._routed == (takers, bounds):
            return
        found = [[self._places[rank] for rank in ranks] for ranks in takers]
        self._adders = [positions[0] for positions in found]
        self._sums = sums(bounds, self._adders, self._hosts)
        self._totals = spread(bounds, [one[:1] for one in found], [one[1:] for one in found], self._hosts)
        self._routed = takers, bounds

    def _read_near(self, round: int, total: Wire, parts: Sequence[Buffers]) -> None:
        """Totals that others of this host have; these stay as they are until the round after the next."""
        if not self._totals.near:
            return
        patient(self.comm.Ibarrier())
        bounds, beside = self._holder.stretches, self._hosts.beside(self._here)
        for number, position in self._totals.near.get(self._here, {}).items():
            here = slice(bounds[number], bounds[number + 1])
            total[here] = parts[beside.index(position)].total(round)[here]

    def _sum_rest(self, total: Wire, begin: int) -> None:
        rest = self._holder.rest.copy()
        step = PIECE // rest.itemsize
        for place in range(0, len(rest), step):
            some = rest[place : place + step]
            summed = np.empty_like(some)
            self.comm.Allreduce(some, summed, MPI.SUM)
            total[begin + place : begin + place + len(some)] = summed

    def give(self, givers: Sequence[int], held: npt.NDArray[np.bool_], *, take: bool) -> None:
        """A host on which nobody holds a slice gets its new weights once; `held` says which member has which."""
        bounds, taken = self._holder.bounds, dict[int, Floats]()
        takes = np.empty(len(self._members), np.uint8)
        patient(self.comm.Iallgather(np.array([take], np.uint8), takes))
        routes = self._route_weights(givers, held, np.flatnonzero(takes).tolist())

        def read(span: Span, out: Wire) -> None:
            number, begin, end = span
            out[:] = self._holder.weights(number)[begin - bounds[number] : end - bounds[number]]

        def write(span: Span, values: Wire) -> None:
            number, begin, end = span
            if number not in taken:
                taken[number] = np.empty(bounds[number + 1] - bounds[number], np.float32)
            taken[number][begin - bounds[number] : end - bounds[number]] = values

        self._run(routes, np.dtype(np.float32), read, write)
        for number, weights in taken.items():
            self._holder.receive(number, weights)
        self._holder.before("take")
        if routes.near:
            patient(self.comm.Ibarrier())
            near = routes.near.get(self._here, {})
            self._holder.copy_weights({number: self._members[position] for number, position in near.items()})

    def _route_weights(self, givers: Sequence[int], held: npt.NDArray[np.bool_], takes: list[int]) -> Routes:
        having: list[list[int]] = []
        for number, giver in enumerate(givers):
            first, holders = self._places.get(giver), np.flatnonzero(held[:, number]).tolist()
            having.append([one for one in holders if one == first] + [one for one in holders if one != first])
        wanting = [[position for position in takes if position not in holders] for holders in having]
        return spread(self._holder.bounds, having, wanting, self._hosts)

    def _run(
        self,
        routes: Routes,
        dtype: np.dtype[np.generic],
        read: Callable[[Span, Wire], None],
        write: Callable[[Span, Wire], None],
    ) -> None:
        """Send everything; `read` puts a span where it is sent from, `write` takes one that has arrived.

        All members are here, or will be in a moment: so they wait within MPI, and do not look now and then.
        """
        members = len(self._members)
        most = max(1, PIECE // dtype.itemsize // (members - 1))
        out, arrived = self._out.view(dtype), self._in.view(dtype)
        sends = [routes.between(self._here, other, most) for other in range(members)]
        takes = [routes.between(other, self._here, most) for other in range(members)]
        for _ in range(routes.turns(most)):
            counts, place = [], 0
            for spans in map(next, sends):
                before = place
                for span in spans:
                    size = span[2] - span[1]
                    read(span, out[place : place + size])
                    place += size
                counts.append(place - before)
            coming = [next(one) for one in takes]
            sizes = [sum(end - begin for _, begin, end in spans) for spans in coming]
            self.comm.Alltoallv([out[:place], counts], [arrived[: sum(sizes)], sizes])
            place = 0
            for span in (one for spans in coming for one in spans):
                size = span[2] - span[1]
                write(span, arrived[place : place + size])
                place += size
