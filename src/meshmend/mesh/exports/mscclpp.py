"""A plan as an MSCCL++ execution plan (JSON), for NVIDIA and AMD GPUs.

GPUs are the live chips in their order. Each flow is one threadblock on every GPU: it waits for its children's parts,
which they put into scratch memory of its own for each child, adds them, puts the sum into its parent's scratch memory,
waits for the result, which its parent puts into its input, and puts it into its children's. Every link of every tree
has a channel of its own, so that no threadblock waits for another flow.

Calls may follow each other at once: a child puts the next call's part only after the result of this one, and with it
the news that its parent has read the part before.
"""

from __future__ import annotations

import json
from typing import Any

from meshmend.errors import PlanError
from meshmend.mesh.planners.cost import whole_shares
from meshmend.mesh.planners.plan import Plan, parents_of
from meshmend.mesh.schedule.schedule import share_out

MOST_FLOWS = 32
"""Threadblocks that fit a GPU at once, with room for others."""
MOST_OPS = 64
"""Of a threadblock (src/core/include/execution_common.hpp)."""
KIND = "memory"


def mscclpp_json(plan: Plan) -> str:
    """The execution plan as text."""
    if len(plan) > MOST_FLOWS:
        raise PlanError(
            f"MSCCL++ runs one threadblock per flow, at most {MOST_FLOWS}, but this plan has {len(plan)} flows: "
            f"plan with fewer, such as --flows {MOST_FLOWS}, and without --spread-roots"
        )
    mesh, chunks = plan.mesh, whole_shares(plan) or 16 * len(plan)
    count = share_out(plan, chunks)
    place = mesh.place.tolist()
    trees = [[[place[p] for p in tree[mesh.live]] for tree in parents_of(mesh, way)] for way in (plan.up, plan.down)]
    gpus = [_Gpu(rank, chunks) for rank in range(len(mesh.live))]
    begin = 0
    for flow, size in enumerate(count.tolist()):
        up, down = trees[0][flow], trees[1][flow]
        # Channels of a pair of GPUs are matched by their order, so both ends list them flow by flow.
        for child, parent in enumerate(up):
            if parent >= 0:
                gpus[parent].joins(flow, child, scratch=size)
                gpus[child].joins(flow, parent)
        for child, parent in enumerate(down):
            if parent >= 0:
                gpus[parent].joins(flow, child)
                gpus[child].joins(flow, parent)
        for rank in range(len(gpus)):
            gpus[rank].block(flow, begin, size, _near(up, rank), _near(down, rank), gpus)
        begin += size
    return json.dumps(
        {
            "name": f"meshmend {plan.algorithm} {plan.mesh}", "collective": "allreduce", "protocol": "Simple",
            "inplace": True, "reuse_resources": False, "gpus": [gpu.json() for gpu in gpus],
            "num_threads_per_block": 1024, "use_double_scratch_buffer": False, "buffer_alignment": 16,
            "min_message_size": 0, "max_message_size": (1 << 64) - 1,
        },
        separators=(",", ":"),
    )  # fmt: skip


def _near(tree: list[int], rank: int) -> tuple[int, list[int]]:
    """A rank's parent (-1 at the root) and children."""
    return tree[rank], [child for child, parent in enumerate(tree) if parent == rank]


class _Gpu:
    """What one GPU does."""

    def __init__(self, rank: int, chunks: int) -> None:
        self.rank, self.chunks, self.scratch = rank, chunks, 0
        self.peers: list[int] = []
        """The GPU at the other end of each channel."""
        self.remote: list[tuple[int, str]] = []
        self.blocks: list[dict[str, Any]] = []
        self._channel: dict[tuple[int, int], int] = {}
        self._slot: dict[tuple[int, int], int] = {}

    def joins(self, flow: int, peer: int, *, scratch: int = 0) -> None:
        """A channel to a neighbour for one flow, and room for what it sends."""
        if (flow, peer) not in self._channel:
            self._channel[flow, peer] = len(self.peers)
            self.peers.append(peer)
        if scratch:
            self._slot[flow, peer] = self.scratch
            self.scratch += scratch

    def block(
        self, flow: int, begin: int, size: int, up: tuple[int, list[int]], down: tuple[int, list[int]], gpus: list[_Gpu]
    ) -> None:
        """The threadblock of one flow."""
        own = {"type": "i", "index": begin, "size": size}
        channels = sorted({*up[1], *down[1], up[0], down[0]} - {-1})
        mine = {peer: number for number, peer in enumerate(channels)}
        buffers: list[int] = []
        ops: list[dict[str, Any]] = []

        def add(name: str, peer: int = -1, **more: Any) -> None:
            on = {"channel_ids": [mine[peer]], "channel_type": KIND} if peer >= 0 else {}
            ops.append({"name": name, **on, **more})

        def put(peer: int, kind: str, index: int) -> None:
            whole = (peer, kind)
            if whole not in self.remote:
                self.remote.append(whole)
            number = self.remote.index(whole)
            if number not in buffers:
                buffers.append(number)
            there = {"buffer_id": buffers.index(number), "index": index, "size": size}
            add("pws", peer, src_buff=[own], dst_buff=[there])

        for child in up[1]:
            slot = {"type": "s", "index": self._slot[flow, child], "size": size}
            add("wait", child)
            add("nop")
            add("re", src_buff=[own, slot], dst_buff=[own], reduce_op="sum")
        add("nop")
        if up[0] >= 0:
            put(up[0], "s", gpus[up[0]]._slot[flow, self.rank])
        if down[0] >= 0:
            add("wait", down[0])
            add("nop")
        for child in down[1]:
            put(child, "i", begin)
        if len(ops) > MOST_OPS:
            raise PlanError(
                f"MSCCL++ supports {MOST_OPS} operations per threadblock, but GPU {self.rank} needs {len(ops)}: "
                "its mesh has too many links per chip"
            )
        self.blocks.append(
            {
                "id": len(self.blocks), "ops": ops,
                "channels": [{"channel_type": KIND, "channel_ids": [self._channel[flow, peer] for peer in channels]}],
                "remote_buffer_refs": [{"access_channel_type": KIND, "remote_buffer_ids": buffers}],
            }
        )  # fmt: skip

    def json(self) -> dict[str, Any]:
        """As the format has it."""
        return {
            "id": self.rank, "input_chunks": self.chunks, "output_chunks": self.chunks, "scratch_chunks": self.scratch,
            "threadblocks": self.blocks, "channels": [{"channel_type": KIND, "connected_to": self.peers}],
            "remote_buffers": [
                {"rank": rank, "type": kind, "access_channel_types": [KIND]} for rank, kind in self.remote
            ],
            "semaphores": [],
        }  # fmt: skip
