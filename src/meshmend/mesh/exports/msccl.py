"""A plan as an MSCCL algorithm (XML), for msccl-executor-nccl and RCCL, and by way of `collectiveapi` for ASTRA-sim.

GPUs are the live chips in their order. Each link has two threadblocks, one that sends at its one end and one that
receives at the other, and both keep to the order of the schedule, as the executor over MPI does. Parts of one chunk are
added one after the other: every receive waits for the one before it, and what is sent for the last (`depid`, `deps`).

Where a link carries more chunks than a threadblock has steps, its chunks are dealt out to several channels, which have
threadblocks of their own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from meshmend.errors import PlanError
from meshmend.mesh.planners.cost import whole_shares
from meshmend.mesh.planners.plan import Plan

MOST_STEPS = 64
"""Of a threadblock, as msccl-executor-nccl is built."""
MOST_CHANNELS = 8


@dataclass
class _Step:
    kind: str
    chunk: int
    after: tuple[int, int] | None = None
    """The threadblock and step that must be done before."""
    awaited: bool = False


@dataclass
class _Block:
    send: int
    receive: int
    channel: int
    steps: list[_Step] = field(default_factory=list)


def msccl_xml(plan: Plan) -> str:
    """The algorithm as text."""
    schedule = plan.schedule(whole_shares(plan) or len(plan), even=True)
    mesh, place = plan.mesh, plan.mesh.place
    busiest = max((int(n) for n in _counts(schedule.link.tolist()).values()), default=0)
    channels = max(1, -(-busiest // MOST_STEPS))
    if channels > MOST_CHANNELS:
        raise PlanError(
            f"MSCCL supports {MOST_STEPS} steps per threadblock in {MOST_CHANNELS} channels, but a link of this "
            f"plan carries {busiest} chunks: plan with fewer flows, such as --flows 32, and without --spread-roots"
        )
    gpus: list[list[_Block]] = [[] for _ in mesh.live]
    found: dict[tuple[int, int, int, bool], int] = {}
    last: dict[tuple[int, int], tuple[int, int]] = {}  # of each GPU and chunk: the step that changed it last

    def block(gpu: int, peer: int, channel: int, sends: bool) -> int:
        key = gpu, peer, channel, sends
        if key not in found:
            found[key] = len(gpus[gpu])
            gpus[gpu].append(_Block(peer if sends else -1, -1 if sends else peer, channel))
        return found[key]

    rows = zip(schedule.sender, schedule.receiver, schedule.chunk, schedule.copy, strict=True)
    for sender, receiver, chunk, copy in rows:
        here, there, piece = int(place[sender]), int(place[receiver]), int(chunk)
        for gpu, peer, sends in ((here, there, True), (there, here, False)):
            number = block(gpu, peer, piece % channels, sends)
            step = _Step("s" if sends else "r" if copy else "rrc", piece, last.get((gpu, piece)))
            if step.after and step.after[0] == number:
                step.after = None  # a threadblock keeps its own order
            if step.after:
                gpus[gpu][step.after[0]].steps[step.after[1]].awaited = True
            gpus[gpu][number].steps.append(step)
            if not sends:
                last[gpu, piece] = number, len(gpus[gpu][number].steps) - 1
    return "\n".join(_lines(plan, gpus, schedule.chunks, channels)) + "\n"


def _counts(values: list[int]) -> dict[int, int]:
    counts: dict[int, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return counts


def _lines(plan: Plan, gpus: list[list[_Block]], chunks: int, channels: int) -> list[str]:
    head = {
        "name": f"meshmend {plan.algorithm} {plan.mesh}", "proto": "Simple", "nchannels": channels,
        "nchunksperloop": chunks, "ngpus": len(gpus), "coll": "allreduce", "inplace": 1, "outofplace": 0,
        "minBytes": 0, "maxBytes": 1 << 40,
    }  # fmt: skip
    lines = [f"<algo{_attributes(head)}>"]
    for gpu, blocks in enumerate(gpus):
        lines.append(f'  <gpu id="{gpu}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="0">')
        for number, block in enumerate(blocks):
            lines.append(f'    <tb id="{number}" send="{block.send}" recv="{block.receive}" chan="{block.channel}">')
            for at, step in enumerate(block.steps):
                depends, of = step.after or (-1, -1)
                values = {
                    "s": at, "type": step.kind, "srcbuf": "i", "srcoff": step.chunk, "dstbuf": "i",
                    "dstoff": step.chunk, "cnt": 1, "depid": depends, "deps": of, "hasdep": int(step.awaited),
                }  # fmt: skip
                lines.append(f"      <step{_attributes(values)}/>")
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return [*lines, "</algo>"]


def _attributes(values: dict[str, object]) -> str:
    return "".join(f" {name}={quoteattr(str(value))}" for name, value in values.items())
