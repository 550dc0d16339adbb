"""The all-reduce on XLA devices: compile and run times over devices, chunks and bytes, beside `lax.psum`.

    python benchmarks/xla.py              8, 16 and 64 virtual CPU devices (ten minutes on two cores)
    python benchmarks/xla.py 8 16         only these
    python benchmarks/xla.py --here 4x4   the devices of this machine, wired as 4x4

On CPU the virtual devices share memory and cores: there `psum` is a memcpy, and a slot costs the meeting of all
devices' threads, not a transfer. What these figures show there is that compile time does not grow with slots, and which
plan needs fewer of them. Each number of devices has a process of its own; run times are medians of five, or of as many
as three seconds allow.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

SIZES = {8: "2x4", 16: "4x4", 64: "8x8", 256: "16x16"}
BYTES = (2**14, 2**20, 2**24)
CHUNKS = (None, 256)
ALGORITHMS = ("trees", "ring", "rowpair")


def medians(run: Callable[[], object], times: int = 5) -> float:
    import jax

    jax.block_until_ready(run())
    taken = []
    while len(taken) < times and sum(taken) < 3:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def table(size: str) -> None:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import meshmend as mm

    mesh = mm.Mesh.parse(size)
    kind = jax.devices()[0].device_kind
    for nbytes in BYTES:
        if nbytes * mesh.size > 2**29:
            continue
        parts = np.random.default_rng(0).normal(size=(mesh.size, nbytes // 4)).astype(np.float32)
        for algorithm in ALGORITHMS:
            plan = mm.plan(mesh, algorithm=algorithm)
            for chunks in CHUNKS:
                begin = time.perf_counter()
                reduce = mm.jax.allreduce(plan, chunks=chunks)
                tables = time.perf_counter() - begin
                own = jax.device_put(parts, NamedSharding(reduce.mesh, P("chips")))
                mapped = partial(jax.shard_map, mesh=reduce.mesh, out_specs=P("chips"))
                program = jax.jit(mapped(reduce, in_specs=(P("chips"), reduce.spec))).lower(own, reduce.tables)
                begin = time.perf_counter()
                compiled = program.compile()
                compile_seconds = time.perf_counter() - begin
                run = medians(partial(compiled, own, reduce.tables))
                print(
                    f"| {mesh.size} {kind} | {nbytes:,} | {algorithm} | {reduce.schedule.chunks} | "
                    f"{reduce.schedule.slots} | {tables:.2f} s | {compile_seconds:.2f} s | {1e3 * run:.1f} ms | "
                    f"{1e6 * run / reduce.schedule.slots:.0f} µs |",
                    flush=True,
                )
        add = partial(jax.lax.psum, axis_name="chips")
        program = jax.jit(mapped(add, in_specs=P("chips"), out_specs=P())).lower(own)
        begin = time.perf_counter()
        compiled = program.compile()
        compile_seconds = time.perf_counter() - begin
        run = medians(partial(compiled, own))
        print(
            f"| {mesh.size} {kind} | {nbytes:,} | psum | | | | {compile_seconds:.2f} s | {1e3 * run:.1f} ms | |",
            flush=True,
        )


def main(words: list[str]) -> None:
    if words and words[0] == "--here":
        return table(words[1])
    print("| devices | bytes | plan | chunks | slots | schedule | compile | run | a slot |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for devices in map(int, words or ["8", "16", "64"]):
        flags = f"--xla_force_host_platform_device_count={devices}"
        env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        subprocess.run([sys.executable, __file__, "--here", SIZES[devices]], env=env, check=True)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
