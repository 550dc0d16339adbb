"""Compiles the all-reduce for real TPUs with Google's own compiler, without a TPU, and reads what came out: `make tpu`.

    python benchmarks/tpu.py [--into docs/results/tpu.md] [WORD…]     only rows that contain one of the words

It needs `pip install libtpu`, which is under Google's own terms, so `make tpu` installs it into an environment of its
own. Beside each program it shows what `lax.psum` compiles to when the same chips are left out. A row that breaks a
limit is marked, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "results" / "tpu.md"
NBYTES = 2**28
"""The payload: too large for the fast memory of a chip, so that what is counted as temporary memory is all there is."""
LEAST_CHUNKS = 96
SLOWEST, LARGEST = 5.0, 1.2
"""Limits: seconds to compile, and temporary memory in payloads."""

SYNCHRONOUS = ("v3:", "v5e:16x16")
"""Where the compiler has no asynchronous permutes."""

CASES = """
v3:4x4       4x4
v3:8x8       8x8 -2x2@2,2
v3:32x32     32x32 wrap=xy -4x2@8,12
v4:2x2x2     2x2x2 -chip@0,0,0
v4:4x4x4     4x4x4 wrap=xyz
v4:4x4x4     4x4x4 wrap=xyz -2x2x1@0,0,0
v4:4x4x8     4x4x8 wrap=xyz -2x2x1@0,0,3 -chip@3,3,3
v4:8x8x8     8x8x8 wrap=xyz -chip@1,2,3
v5e:4x4      4x4
v5e:4x4      4x4 -2x2@0,2
v5e:4x4      4x4 -1x4@3,0
v5e:4x4      4x4 -chip@1,1
v5e:2x4      2x4 -chip@0,1
v5e:16x16    16x16 wrap=xy
v5e:16x16    16x16 wrap=xy -2x4@4,4
v5p:2x2x4    2x2x4 -chip@1,1,0
v5p:4x4x4    4x4x4 wrap=xyz -4x4x1@0,0,0
v5p:4x4x4    4x4x4 wrap=xyz -2x2x1@0,0,0
v5p:8x8x8    8x8x8 wrap=xyz -2x2x1@0,0,3
v5p:8x8x8    8x8x8 wrap=xyz -chip@1,2,3
v6e:2x4      2x4 -chip@0,1
v6e:8x8      8x8
v6e:8x8      8x8 -2x2@2,2
v6e:16x16    16x16 wrap=xy -2x2@4,4
v6e:16x16    16x16 wrap=xy -chip@1,1
tpu7x:2x2x2  2x2x2 -chip@0,0,0
tpu7x:4x4x4  4x4x4 wrap=xyz -2x2x1@0,0,0
tpu7x:8x8x8  8x8x8 wrap=xyz -2x2x1@0,0,3
tpu7x:8x8x8  8x8x8 wrap=xyz -chip@1,2,3
"""

KERNEL_CASES = """
v5e:4x4      4x4
v5e:4x4      4x4 -2x2@0,2
v5e:4x4      4x4 -chip@1,1
v5p:2x2x4    2x2x4 -chip@1,1,0
v5p:4x4x4    4x4x4 wrap=xyz -2x2x1@0,0,0
v5p:8x8x8    8x8x8 wrap=xyz -2x2x1@0,0,3
v6e:8x8      8x8 -2x2@2,2
v6e:16x16    16x16 wrap=xy -2x2@4,4
"""

COLUMNS = (
    "topology", "mesh", "devices", "bound", "plan", "chunks", "slots", "compile", "permutes", "copies", "memory",
    "`psum` of the same devices",
)  # fmt: skip

HEAD = """# Compiled for real TPUs

What Google's compiler (libtpu {libtpu}, with jax {jax}) makes of the
[all-reduce on XLA devices](../execution.md#xla-devices), for real topologies and {mib} MiB of float32 per device, on a
machine without one: `make tpu` writes this page.

"""

NOTES = """
* **devices**: those that take part. v3, v4 and TPU7x show two per chip.
* **bound**, **plan**: payload per time in units of one link's bandwidth, one way: what any plan could reach at most,
  and what ours reaches.
* **compile**: with lowering, on two cores that others use too.
* **permutes**: in the loop over the slots, one per way, and in brackets how many are in flight at once. For v3, and for
  v5e slices of several hosts, the compiler makes them synchronous.
* **copies** of the whole buffer, in the loop or elsewhere.
* **memory**: temporary memory, beside arguments and results, in payloads.
* **`psum`**: the algorithm that the compiler chose for one all-reduce of all these devices. *Ring, 1 colour* is one
  ring through all chips, which carries at most one link's bandwidth in each direction; whole slices get 2 to 6 colours.
  *RingSumEmitter* is the compiler's fallback. *Does not compile* comes with words of its error. Where ours is missing
  too, the compiler takes no program at all that leaves out devices of this slice: v5e slices of several hosts.
"""

KERNELS = """
## The Pallas kernel

The same sums as [one kernel](../execution.md#as-one-pallas-kernel) with remote copies between neighbours;
compile times are in seconds of processor.

| topology | mesh | devices | chunks | kernels | compile | memory |
|---|---|---|---|---|---|---|
"""

FOOT = """
## What this does not show

* **Nothing ran.** Times, bandwidths and results on a TPU are unknown; results are tested on virtual CPU devices.
* The programs leave devices out. Whether a machine with a dead chip or host lets the rest of a slice start at all is up
  to its runtime; so is the path that the compiler's ring takes.
* A permutation between neighbours is one hop if the machine has that link. Wraps are taken from Google's documentation:
  v4, v5p and TPU7x from cubes of 4x4x4 on, v5e and v6e at 16x16, v3 at 32x32. The compiler does not say which links it
  uses.
* Bound and plan count all links as equal.
"""


@dataclass(frozen=True)
class Loop:
    """What the compiled program does in the loop over the slots."""

    permutes: int
    at_once: int
    """Most that are in flight at the same time; 1 if they are not asynchronous."""
    copies: int
    """Of the whole buffer, anywhere in the program."""


def read_program(text: str, chunks: int) -> Loop:
    """Find the loop with the most permutes in compiled HLO, and the copies of a buffer of `chunks` and a spare row."""
    bodies = set(re.findall(r"\bbody=%?([\w.-]+)", text))
    permutes = at_once = 0
    for computation in re.split(r"\n\s*\n", text):
        name = re.match(r"\s*%?([\w.-]+)", computation)
        if not name or name[1] not in bodies:
            continue
        events = re.findall(r" collective-permute(-start|-done|)\(", computation)
        if len(events) - events.count("-done") > permutes:
            permutes, at_once = len(events) - events.count("-done"), _most_in_flight(events)
    buffer = rf"\w+\[{chunks + 1},\d+,\d+\]"
    copies = re.findall(rf"= \(?{buffer}[^=]*? (?:copy|copy-start)\(", text)
    return Loop(permutes, at_once, len(copies))


def _most_in_flight(events: list[str]) -> int:
    most = flying = 0
    for event in events:
        flying += -1 if event == "-done" else 1
        most = max(most, flying)
        flying -= event == ""
    return most


def algorithm_of(text: str) -> str:
    """What the compiler chose for the all-reduce of a program."""
    emitter = re.search(r'"emitter":"(\w+)"', text)
    strategy = re.search(r"(?:\\n)?(\w+)\{colors:(\d+) phases:(\d+)", text)
    if strategy:
        name = {"StrategyRing": "ring"}.get(strategy[1], strategy[1])
        colours = f"{strategy[2]} colour" + "s" * (strategy[2] != "1")
        return f"{name}, {colours}"
    return emitter[1] if emitter else "no algorithm named"


def devices_of(topology: str, mesh: Any) -> list[Any]:
    """The devices of the live chips, in the topology's own order."""
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    live = {tuple(mesh.chip(i)) for i in mesh.live}
    return [device for device in devices if tuple(device.coords)[: len(mesh.dims)] in live]


def compiled(reduce: Any) -> tuple[Any, float]:
    """The program for a reduction that takes `tables`, and the seconds it took."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    each = P("chips")
    shape = jax.ShapeDtypeStruct(
        (reduce.mesh.size * NBYTES // 4,), np.float32, sharding=NamedSharding(reduce.mesh, each)
    )
    begin = time.perf_counter()
    mapped = jax.shard_map(reduce, mesh=reduce.mesh, in_specs=(each, reduce.spec), out_specs=each, check_vma=False)
    program = jax.jit(mapped).lower(shape, reduce.shapes).compile()
    return program, time.perf_counter() - begin


def psum_of(devices: list[Any]) -> str:
    """What `lax.psum` over these devices compiles to."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(devices), ("chips",))
    each = P("chips")
    shape = jax.ShapeDtypeStruct((len(devices) * NBYTES // 4,), np.float32, sharding=NamedSharding(mesh, each))
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "chips"), mesh=mesh, in_specs=each, out_specs=P(), check_vma=False)
    try:
        return algorithm_of(jax.jit(mapped).lower(shape).compile().as_text())
    except Exception as error:
        return refusal(error)


def refusal(error: Exception) -> str:
    """The first words of a compiler's error."""
    first = re.sub(r"\([\w/.]+/(\w+\.cc):\d+\)", r"(\1)", str(error).splitlines()[0])
    words = re.split(r" (?=On platforms)|(?<=Count) ", first)
    return f"does not compile: `{words[-1][:100] if len(words) > 1 else first[:100]}`"


def row(topology: str, text: str) -> tuple[str, bool]:
    """A line of the table, and whether it keeps the limits."""
    import meshmend as mm

    mesh = mm.Mesh.parse(text)
    devices = devices_of(topology, mesh)
    plan = mm.plan(mesh, algorithm="trees")
    # Chunks of this payload would be megabytes on a small mesh, and a dozen of them are in flight.
    reduce = mm.jax.allreduce(plan, devices, chunks=max(LEAST_CHUNKS, mm.jax.chunks_of(plan)))
    figures = [topology, f"`{text}`", len(devices), f"{plan.bound.value:.3f}", f"{plan.algbw:.3f}"]
    chunks = reduce.schedule.chunks
    try:
        program, seconds = compiled(reduce)
    except Exception as error:
        # Nothing of ours, if the compiler takes no program at all for these devices.
        psum = psum_of(devices)
        return " | ".join(map(str, [*figures, *"––––––", psum])), refusal(error) == psum
    loop = read_program(program.as_text(), chunks)
    memory = program.memory_analysis().temp_size_in_bytes / NBYTES
    ways = 2 * sum(side > 1 for side in mesh.dims)
    checks = {
        f"{seconds:.1f} s": seconds <= SLOWEST,
        f"{loop.permutes} ({loop.at_once})": loop.permutes == ways
        and (loop.at_once > 1 or topology.startswith(SYNCHRONOUS)),
        f"{loop.copies}": loop.copies == 0,
        f"{memory:.2f}": memory <= LARGEST,
    }
    cells = [words if right else f"**{words}**" for words, right in checks.items()]
    counts = [chunks, reduce.schedule.slots]
    return " | ".join(map(str, [*figures, *counts, *cells, psum_of(devices)])), all(checks.values())


def kernel_row(topology: str, text: str) -> tuple[str, bool]:
    """The same for the Pallas kernel."""
    import meshmend as mm

    mesh = mm.Mesh.parse(text)
    devices = devices_of(topology, mesh)
    plan = mm.plan(mesh, algorithm="trees")
    chunks = max(LEAST_CHUNKS, mm.jax.chunks_of(plan))
    begin = time.process_time()  # processors' time does not depend on who else is at work
    program, _ = compiled(mm.jax.allreduce(plan, devices, chunks=chunks, kernel=True))
    seconds = time.process_time() - begin
    kernels = program.as_text().count('custom_call_target="tpu_custom_call"')
    permutes = len(re.findall(r" collective-permute", program.as_text()))
    memory = program.memory_analysis().temp_size_in_bytes / NBYTES
    checks = {
        f"{kernels}": kernels == 1 and not permutes,
        f"{seconds:.1f} s": seconds <= SLOWEST,
        f"{memory:.2f}": memory <= LARGEST,
    }
    cells = [words if right else f"**{words}**" for words, right in checks.items()]
    return " | ".join([topology, f"`{text}`", str(len(devices)), str(chunks), *cells]), all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the all-reduce for real TPUs and read the programs.")
    parser.add_argument("--into", type=Path, default=None)
    parser.add_argument("words", nargs="*")
    chosen = parser.parse_args()
    os.environ.update(
        JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_MIN_LOG_LEVEL="3", TPU_WORKER_HOSTNAMES="localhost"
    )
    try:
        versions = {name: importlib.metadata.version(name) for name in ("libtpu", "jax")}
    except importlib.metadata.PackageNotFoundError as error:
        sys.exit(f"{error.name} is not installed here: run make tpu, or pip install libtpu 'meshmend[jax]'")
    text = HEAD.format(**versions, mib=NBYTES >> 20)
    text += f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
    print(text, end="", flush=True)
    right = True
    for line in _chosen(CASES.strip().splitlines(), chosen.words):
        cells, kept = row(*line.split(maxsplit=1))
        right &= kept
        print(f"| {cells} |", flush=True)
        text += f"| {cells} |\n"
    text += NOTES + KERNELS
    print(NOTES + KERNELS, end="", flush=True)
    for line in _chosen(KERNEL_CASES.strip().splitlines(), chosen.words):
        cells, kept = kernel_row(*line.split(maxsplit=1))
        right &= kept
        print(f"| {cells} |", flush=True)
        text += f"| {cells} |\n"
    text += FOOT
    print(FOOT, end="")
    if chosen.into:
        chosen.into.write_text(text)
    return 0 if right else 1


def _chosen(lines: list[str], words: list[str]) -> Iterable[str]:
    return [line for line in lines if not words or any(word in line for word in words)]


if __name__ == "__main__":
    sys.exit(main())
