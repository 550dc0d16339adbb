"""A plan as Chakra execution traces, a file per rank, for ASTRA-sim as a custom collective.

Ranks are the live chips in their order. A transfer is a send at its one end and a receive at the other, with the same
tag; a part that is added is a node of computation behind its receive. Nodes depend on what they need and on nothing
else, so a simulator is free in all but the data. `et_def.proto` of mlcommons/chakra has the schema; the few messages
that are needed are written by hand, so that nothing depends on protobuf.

ASTRA-sim takes them with `"all-reduce-implementation-custom": ["PREFIX"]` in its system file; sizes are those in the
traces, whatever the workload says.
"""

from __future__ import annotations

from collections import defaultdict

from meshmend.errors import PlanError
from meshmend.mesh.planners.plan import Plan

VERSION = "0.0.4"
COMPUTE, SEND, RECEIVE = 4, 5, 6
"""Kinds of nodes."""
CHUNKS_PER_FLOW = 4
"""So that reducing and broadcasting overlap."""
MOST_TRANSFERS = 500_000
"""Beyond that the traces take longer to read than to simulate."""
INT32, INT64, UINT64, BOOL = 7, 9, 13, 27
"""Fields of an attribute's value."""


def chakra_traces(plan: Plan, nbytes: float) -> list[bytes]:
    """The trace of each rank for a payload of so many bytes."""
    live, place = plan.mesh.live, plan.mesh.place
    chunks = CHUNKS_PER_FLOW * len(plan)
    transfers = 2 * chunks * (len(live) - 1)
    if transfers > MOST_TRANSFERS:
        fits = max(1, MOST_TRANSFERS // (2 * CHUNKS_PER_FLOW * max(1, len(live) - 1)))
        raise PlanError(
            f"traces hold at most {MOST_TRANSFERS:,} transfers, but this plan of {len(plan)} flows has {transfers:,}: "
            f"plan with fewer, such as --flows {min(fits, 16)}"
        )
    size = int(nbytes // chunks)
    if size < 1:
        raise PlanError(
            f"a payload of {nbytes:.0f} bytes is cut into {chunks} chunks of at least 1 byte: "
            f"give --nbytes {chunks} or more, or fewer --flows"
        )
    ranks = [_Trace(size) for _ in live]
    tags: dict[tuple[int, int], int] = defaultdict(int)
    schedule = plan.schedule(chunks, even=True)
    rows = zip(schedule.sender, schedule.receiver, schedule.chunk, schedule.copy, strict=True)
    for sender, receiver, chunk, copy in rows:
        ends = int(place[sender]), int(place[receiver])
        ranks[ends[0]].send(int(chunk), *ends, tags[ends])
        ranks[ends[1]].receive(int(chunk), *ends, tags[ends], add=not copy)
        tags[ends] += 1
    return [bytes(rank.text) for rank in ranks]


class _Trace:
    """What one rank does."""

    def __init__(self, size: int) -> None:
        self.size, self.nodes = size, 0
        self.text = bytearray(_delimited(_text(1, VERSION)))
        self._last: dict[int, int] = {}
        """The node that made what the rank holds of a chunk."""

    def send(self, chunk: int, source: int, target: int, tag: int) -> None:
        """What the rank holds of a chunk leaves."""
        self._comm(SEND, chunk, source, target, tag, [self._last[chunk]] if chunk in self._last else [])

    def receive(self, chunk: int, source: int, target: int, tag: int, add: bool) -> None:
        """A part or a result comes in."""
        came = self._comm(RECEIVE, chunk, source, target, tag, [])
        if not add:
            self._last[chunk] = came
            return
        needs = [came, *([self._last[chunk]] if chunk in self._last else [])]
        attributes = [("is_cpu_op", BOOL, 0), ("num_ops", INT64, self.size // 4), ("tensor_size", UINT64, self.size)]
        self._last[chunk] = self._node(COMPUTE, f"add chunk {chunk}", needs, attributes)

    def _comm(self, kind: int, chunk: int, source: int, target: int, tag: int, needs: list[int]) -> int:
        name = f"{'send' if kind == SEND else 'receive'} chunk {chunk}"
        attributes = [
            ("comm_size", INT64, self.size), ("comm_src", INT32, source), ("comm_dst", INT32, target),
            ("comm_tag", INT32, tag), ("is_cpu_op", BOOL, 0),
        ]  # fmt: skip
        return self._node(kind, name, needs, attributes)

    def _node(self, kind: int, name: str, needs: list[int], attributes: list[tuple[str, int, int]]) -> int:
        number = self.nodes
        self.nodes += 1
        node = _number(1, number) + _text(2, name) + _number(3, kind)
        node += _field(5, b"".join(map(_varint, needs))) if needs else b""
        for label, field, value in attributes:
            node += _field(10, _text(1, label) + _number(field, value))
        self.text += _delimited(node)
        return number


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _delimited(value)


def _text(field: int, value: str) -> bytes:
    return _field(field, value.encode())
