"""Interpreters of MSCCL algorithms and of MSCCL++ execution plans, over integers, in any order of threadblocks.

They know the formats and not how ours are made. Beside the result they find deadlocks (nothing can go on) and races:
two accesses to one chunk, one of them a write, that no chain of waits puts in order (vector clocks).
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np

Clock = dict[Any, int]
Step = Callable[[], bool]
"""Does one step, or returns False if it has to wait."""


class Memory:
    """Buffers of all GPUs, with who read and wrote each chunk last."""

    def __init__(self) -> None:
        self.cells: dict[Any, int] = {}
        self.clock: dict[Any, Clock] = defaultdict(dict)
        self._writes: dict[Any, tuple[Any, int]] = {}
        self._reads: dict[Any, dict[Any, int]] = defaultdict(dict)

    def tick(self, block: Any) -> None:
        self.clock[block][block] = self.clock[block].get(block, 0) + 1

    def learn(self, block: Any, other: Clock) -> None:
        for who, when in other.items():
            self.clock[block][who] = max(when, self.clock[block].get(who, 0))

    def _ordered(self, block: Any, who: Any, when: int, cell: Any) -> None:
        assert who == block or self.clock[block].get(who, 0) >= when, f"a race: {who} and {block} at {cell}"

    def read(self, block: Any, cell: Any) -> int:
        if cell in self._writes:
            self._ordered(block, *self._writes[cell], cell)
        self._reads[cell][block] = self.clock[block].get(block, 0)
        return self.cells[cell]

    def write(self, block: Any, cell: Any, value: int) -> None:
        if cell in self._writes:
            self._ordered(block, *self._writes[cell], cell)
        for who, when in self._reads.pop(cell, {}).items():
            self._ordered(block, who, when, cell)
        self._writes[cell] = block, self.clock[block].get(block, 0)
        self.cells[cell] = value


def _run(programs: dict[Any, list[Step]], memory: Memory, seed: int) -> None:
    random = np.random.default_rng(seed)
    at = dict.fromkeys(programs, 0)
    open_blocks = [block for block, steps in programs.items() if steps]
    while open_blocks:
        random.shuffle(open_blocks)
        moved = False
        for block in list(open_blocks):
            memory.tick(block)
            if programs[block][at[block]]():
                at[block] += 1
                moved = True
                if at[block] == len(programs[block]):
                    open_blocks.remove(block)
        assert moved, f"a deadlock: {open_blocks[:4]} wait forever"


def run_msccl(text: str, parts: np.ndarray, seed: int) -> np.ndarray:
    """The buffers of all GPUs after an in-place all-reduce of `parts`, [GPU, chunk]."""
    root = ElementTree.fromstring(text)
    assert root.get("coll") == "allreduce" and root.get("inplace") == "1" and root.get("proto") == "Simple"
    assert {"minBytes", "maxBytes", "outofplace", "nchannels"} <= set(root.keys())
    assert int(root.get("ngpus", 0)) == len(parts) and int(root.get("nchunksperloop", 0)) == parts.shape[1]
    memory, wires = Memory(), defaultdict(deque)  # type: ignore[var-annotated]
    for gpu, chunk in np.ndindex(parts.shape):
        memory.cells[gpu, chunk] = int(parts[gpu, chunk])
    programs: dict[Any, list[Step]] = {}
    done: dict[Any, Clock] = {}
    ends = set()
    for gpu in root:
        g = int(gpu.get("id", -1))
        assert [int(block.get("id", -1)) for block in gpu] == list(range(len(gpu)))
        for block in gpu:
            b, send, receive, channel = (int(block.get(name, -9)) for name in ("id", "send", "recv", "chan"))
            assert channel < int(root.get("nchannels", 0)) and len(block) <= 64
            for end in ((g, send, channel, "s"), (g, receive, channel, "r")):
                assert end[1] < 0 or end not in ends, "two threadblocks at one end of a channel"
                ends.add(end)
            steps = [
                _msccl_step(memory, wires, done, (g, b), send, receive, channel, number, step, gpu)
                for number, step in enumerate(block)
            ]
            programs[g, b] = steps
    _run(programs, memory, seed)
    assert not any(wires.values()), "something was sent that nobody received"
    return np.array([[memory.cells[g, c] for c in range(parts.shape[1])] for g in range(len(parts))])


def _msccl_step(
    memory: Memory,
    wires: Any,
    done: Any,
    me: Any,
    send: int,
    receive: int,
    channel: int,
    number: int,
    step: Any,
    gpu: Any,
) -> Step:
    kind, cell = step.get("type"), (me[0], int(step.get("srcoff")))
    assert step.get("srcbuf") == step.get("dstbuf") == "i" and step.get("srcoff") == step.get("dstoff")
    assert int(step.get("s")) == number and int(step.get("cnt")) == 1
    needs = int(step.get("depid")), int(step.get("deps"))
    if needs[0] >= 0:
        assert gpu[needs[0]][needs[1]].get("hasdep") == "1", "a step that is waited for does not say so"

    def go() -> bool:
        if needs[0] >= 0:
            if (me[0], *needs) not in done:
                return False
            memory.learn(me, done[me[0], *needs])
        if kind == "s":
            wires[me[0], send, channel].append((memory.read(me, cell), dict(memory.clock[me])))
        else:
            wire = wires[receive, me[0], channel]
            if not wire:
                return False
            value, clock = wire.popleft()
            memory.learn(me, clock)
            memory.write(me, cell, value + memory.read(me, cell) if kind == "rrc" else value)
        done[*me, number] = dict(memory.clock[me])
        return True

    return go


def run_mscclpp(text: str, parts: np.ndarray, seed: int, calls: int = 1) -> np.ndarray:
    """The input buffers of all GPUs after so many all-reduces in place, one right after the other."""
    plan = json.loads(text)
    gpus = plan["gpus"]
    assert plan["collective"] == "allreduce" and plan["inplace"] and [gpu["id"] for gpu in gpus] == [*range(len(parts))]
    memory, signals = Memory(), defaultdict(deque)  # type: ignore[var-annotated]
    for gpu, chunk in np.ndindex(parts.shape):
        memory.cells[gpu, "i", chunk] = int(parts[gpu, chunk])
    programs = {}
    for gpu in gpus:
        g = gpu["id"]
        assert gpu["input_chunks"] == parts.shape[1]
        for chunk in range(gpu["scratch_chunks"]):
            memory.cells[g, "s", chunk] = -(10**9)
        for block in gpu["threadblocks"]:
            assert len(block["ops"]) <= 64 and len(block["channels"][0]["channel_ids"]) <= 16
            steps = [_mscclpp_step(memory, signals, gpus, gpu, block, op) for op in block["ops"]]
            programs[g, block["id"]] = steps * calls
    _run(programs, memory, seed)
    assert not any(signals.values()), "a signal that nobody waited for"
    return np.array([[memory.cells[g, "i", c] for c in range(parts.shape[1])] for g in range(len(parts))])


def _far_end(gpus: Any, gpu: Any, number: int) -> tuple[int, int]:
    """The GPU and channel at the other end: the n-th channel to a peer is the peer's n-th back."""
    here, peers = gpu["id"], gpu["channels"][0]["connected_to"]
    nth = peers[:number].count(peers[number])
    theirs = gpus[peers[number]]["channels"][0]["connected_to"]
    return peers[number], [at for at, peer in enumerate(theirs) if peer == here][nth]


def _mscclpp_step(memory: Memory, signals: Any, gpus: Any, gpu: Any, block: Any, op: Any) -> Step:
    me, g = (gpu["id"], block["id"]), gpu["id"]
    channel = block["channels"][0]["channel_ids"][op["channel_ids"][0]] if "channel_ids" in op else -1

    def cells(buffer: Any) -> list[Any]:
        owner, kind = g, buffer.get("type")
        if "buffer_id" in buffer:
            remote = gpu["remote_buffers"][block["remote_buffer_refs"][0]["remote_buffer_ids"][buffer["buffer_id"]]]
            owner, kind = remote["rank"], remote["type"]
        room = gpus[owner]["scratch_chunks" if kind == "s" else "input_chunks"]
        assert buffer["index"] >= 0 and buffer["index"] + buffer["size"] <= room
        return [(owner, kind, buffer["index"] + i) for i in range(buffer["size"])]

    def go() -> bool:
        match op["name"]:
            case "nop":
                pass
            case "wait":
                if not signals[g, channel]:
                    return False
                memory.learn(me, signals[g, channel].popleft())
            case "re":
                sources = [cells(buffer) for buffer in op["src_buff"]]
                for target, *source in zip(cells(op["dst_buff"][0]), *sources, strict=True):
                    memory.write(me, target, sum(memory.read(me, cell) for cell in source))
            case "pws":
                for source, target in zip(cells(op["src_buff"][0]), cells(op["dst_buff"][0]), strict=True):
                    memory.write(me, target, memory.read(me, source))
                signals[_far_end(gpus, gpu, channel)].append(dict(memory.clock[me]))
            case other:
                raise AssertionError(f"an operation that we never write: {other}")
        return True

    return go
