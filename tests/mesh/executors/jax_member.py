"""Checks of the executor on XLA, run in a process of its own with as many virtual devices as are asked for.

XLA_FLAGS=--xla_force_host_platform_device_count=16 python -m tests.mesh.executors.jax_member sums 4x4 0 5, inside 4x4
"""

from __future__ import annotations

import re
import sys
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import meshmend as mm
from tests.strategies import numbers

ALGORITHMS = ("trees", "ring", "rowpair", "rowcol")


def own_rows(value: jax.Array) -> np.ndarray:
    """What each device holds of a replicated array."""
    return np.stack([np.asarray(shard.data) for shard in value.addressable_shards])


def holed(size: str, seed: int) -> mm.Mesh:
    """A mesh of this size with any wrap and any hole."""
    random = np.random.default_rng(seed)
    mesh = mm.Mesh.parse(size)
    wrap = (seed % 3 == 0 and mesh.rows > 2, seed % 2 == 0 and mesh.cols > 2, seed % 2 == 1 and mesh.layers > 2)
    mesh = mm.Mesh(mesh.rows, mesh.cols, wrap, layers=mesh.layers)
    chips, links = (min(int(random.integers(3)), mesh.size // 4) for _ in range(2))
    return mesh.fail_random(seed, chips=chips, links=links).largest()


def planned(mesh: mm.Mesh, seed: int) -> mm.Plan:
    """By one of the algorithms that exist on this mesh, in turn."""
    for algorithm in ALGORITHMS[(seed + 1) % 4 :]:
        try:
            return mm.plan(mesh, algorithm=algorithm)
        except mm.PlanError:
            continue
    return mm.plan(mesh, algorithm="trees")


def psum(reduce: mm.jax.Allreduce, parts: np.ndarray) -> np.ndarray:
    add = partial(jax.lax.psum, axis_name="chips")
    mapped = jax.shard_map(add, mesh=reduce.mesh, in_specs=P("chips"), out_specs=P())
    return np.asarray(jax.jit(mapped)(parts))[0]


def sums(size: str, first: int, end: int) -> None:
    """Any plan on any mesh: integers to the bit, floats to the bit too where the order of adding is the reference's."""
    for seed in range(first, end):
        mesh = holed(size, seed)
        plan = planned(mesh, seed)
        live, random = len(mesh.live), np.random.default_rng(seed)
        chunks = [None, 1, 5, 48][seed % 4]
        reduce = mm.jax.allreduce(plan, jax.devices()[: mesh.size], chunks=chunks)
        width = int(random.integers(1, [300, 30000][seed % 2] // max(1, mesh.size // 16)))
        tree = {
            "ints": numbers(seed, live, width).astype(np.int32),
            "floats": (random.normal(size=(live, 3, width)).astype(np.float32), np.ones(live, np.float32)),
            "half": jnp.asarray(random.normal(size=(live, 11)), jnp.bfloat16),
            "nothing": np.zeros((live, 0), np.float32),
        }
        found = reduce.sum(tree)
        for name, part, got in zip(
            ("floats", "floats", "half", "ints", "nothing"), jax.tree.leaves(tree), jax.tree.leaves(found), strict=True
        ):
            part, held = np.asarray(part), own_rows(got)
            where = f"{mesh}, {plan.algorithm}, {name} of shape {part.shape}"
            assert got.dtype == part.dtype and held.shape == part.shape, where
            assert (held == held[:1]).all(), f"{where}: chips differ"
            if name == "ints":
                assert np.array_equal(held, mm.local.allreduce(reduce.schedule, part)), where
                assert np.array_equal(held[0], part.sum(0)), where
            elif name == "half":
                assert np.allclose(held[0].astype(np.float64), part.astype(np.float64).sum(0), atol=0.05 * live), where
            else:
                assert np.allclose(held[0], part.sum(0), atol=1e-5 * live), where
        same = np.concatenate([part.reshape(live, -1) for part in tree["floats"]], 1)
        flat = np.concatenate([own_rows(got).reshape(live, -1) for got in found["floats"]], 1)
        assert np.allclose(flat[0], psum(reduce, same), atol=1e-5 * live), where
        if not any(mesh.wrap):
            assert np.array_equal(flat, mm.local.allreduce(reduce.schedule, same)), where


def cores(size: str, first: int, end: int) -> None:
    """Two devices per chip: the two halves are summed by their own cores, and both cores hold the same bits."""
    for seed in range(first, end):
        mesh = holed(size, seed)
        plan, live, random = planned(mesh, seed), len(mesh.live), np.random.default_rng(seed)
        line = jax.sharding.Mesh(np.array(jax.devices()[: 2 * live]), ("chips",))
        reduce = mm.jax._made(plan.schedule([9, 1, 40][seed % 3], hop=2, even=True), line)
        width = [1, 2, 777, 16384, 20001, 65536][seed % 6]
        tree = {
            "ints": numbers(seed, 2 * live, width).astype(np.int32),
            "floats": random.normal(size=(2 * live, width)).astype(np.float32),
        }
        found = reduce.sum(tree)
        assert np.array_equal(own_rows(found["ints"]), np.tile(tree["ints"].sum(0), (2 * live, 1))), f"{mesh} {width}"
        held = own_rows(found["floats"])
        assert (held == held[:1]).all() and np.allclose(held[0], tree["floats"].sum(0), atol=1e-5 * live), mesh
        assert [shape.shape for shape in jax.tree.leaves(reduce.shapes)] == [
            table.shape for table in jax.tree.leaves(reduce.tables)
        ]


def kernel(size: str, first: int, end: int) -> None:
    """The Pallas kernel: the bits of the reference, without races, whenever and in whatever order copies are made."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    from jax.experimental.pallas import tpu as pltpu

    for seed in range(first, end):
        mesh = holed(size, seed)
        plan, live, random = planned(mesh, seed), len(mesh.live), np.random.default_rng(seed)
        chunks = [None, 1, 5, 24][seed % 4]
        for mode in ("eager", "on_wait"):
            how = pltpu.InterpretParams(detect_races=True, dma_execution_mode=mode, random_seed=seed)
            reduce = mm.jax.allreduce(plan, jax.devices()[: mesh.size], chunks=chunks, kernel=how)
            parts = random.normal(size=(live, int(random.integers(1, 3000)))).astype(np.float32)
            held = own_rows(reduce.sum(parts))
            assert np.array_equal(held, mm.local.allreduce(reduce.schedule, parts)), f"{mesh}, {mode}"
            assert not interpret_pallas_call.races.races_found, f"{mesh}, {mode}: a race"


def inside(size: str) -> None:
    """Called inside a shard_map of the user's, checked by JAX or not, also with a value that is the same everywhere."""
    mesh = mm.Mesh.parse(size).fail((0, 1))
    reduce = mm.jax.allreduce(mm.plan(mesh, algorithm="trees"), chunks=7)
    parts = numbers(1, len(mesh.live), 20).astype(np.int32)
    for check in (True, False):
        mapped = partial(jax.shard_map, mesh=reduce.mesh, check_vma=check)
        own = mapped(reduce, in_specs=(P("chips"), reduce.spec), out_specs=P("chips"))
        assert np.array_equal(own(parts, reduce.tables), mm.local.allreduce(reduce.schedule, parts))
        everywhere = mapped(reduce, in_specs=(P(), reduce.spec), out_specs=P("chips"))
        try:
            got = jax.jit(everywhere)(parts[0], reduce.tables)
            assert not check and np.array_equal(got, np.tile(parts[0] * len(parts), len(parts)))
        except mm.PlanError as error:
            assert check and "check_vma=False" in str(error)


def compiled_once(size: str) -> None:
    """Another plan for the same mesh is other tables; the program does not grow with the slots; TPUs take it too."""
    mesh = mm.Mesh.parse(size)
    first = mm.jax.allreduce(mm.plan(mesh, algorithm="ring"), chunks=64)
    parts = numbers(2, mesh.size, 1000).astype(np.int32)
    traced = []

    def step(parts: jax.Array, tables: mm.jax.Tables) -> jax.Array:
        traced.append(1)
        return first(parts, tables)

    program = jax.jit(jax.shard_map(step, mesh=first.mesh, in_specs=(P("chips"), first.spec), out_specs=P("chips")))
    for algorithm in ("ring", "trees", "rowpair"):
        other = first.replanned(mm.plan(mesh, algorithm=algorithm))
        assert other.tables.send.shape == first.tables.send.shape
        assert np.array_equal(program(parts, other.tables), mm.local.allreduce(other.schedule, parts))
        assert np.array_equal(other.sum(parts), parts.sum(0))
    assert len(traced) == 1 and program._cache_size() == 1
    assert mm.jax._summing(first.mesh, jax.tree.structure(first.tables))._cache_size() == 1
    sizes = []
    for chunks in (8, 512):
        reduce = mm.jax.allreduce(mm.plan(mesh, algorithm="trees"), chunks=chunks)
        wide = np.ones((mesh.size, 512 * 16), np.float32)
        mapped = jax.shard_map(reduce, mesh=reduce.mesh, in_specs=(P("chips"), reduce.spec), out_specs=P("chips"))
        text = jax.jit(mapped).lower(wide, reduce.tables).compile().as_text()
        sizes.append(len(text.splitlines()))
        assert len(re.findall(r" collective-permute(?:-start)?\(", text)) == 4
        buffer = rf"\[{chunks + 1},\d+,\d+\]"
        assert re.search(buffer, text) and not re.search(rf"{buffer}\S* copy\(", text), "the whole buffer is copied"
    assert abs(sizes[0] - sizes[1]) < 0.1 * sizes[0], sizes
    elsewhere = jax.export.export(jax.jit(mapped), platforms=["tpu", "cuda"])(wide, reduce.tables)
    assert elsewhere.mlir_module().count("stablehlo.collective_permute") == 4


def survivors(size: str) -> None:
    """State comes from the survivors' own copies, without a copy; a repaired board gets it from one of them."""
    mesh = mm.Mesh.parse(size)
    whole = mm.jax.allreduce(mm.plan(mesh, algorithm="trees"))
    state = whole.replicate({"w": jnp.arange(10.0), "step": 3})
    broken = mm.jax.allreduce(mm.plan(mesh.fail("-2x2@0,2"), algorithm="trees"))
    kept = broken.replicate(state)
    assert broken.mesh.size == mesh.size - 4 and set(kept["w"].devices()) == set(broken.mesh.devices.flat)
    pointers = {shard.device: shard.data.unsafe_buffer_pointer() for shard in state["w"].addressable_shards}
    assert all(pointers[s.device] == s.data.unsafe_buffer_pointer() for s in kept["w"].addressable_shards)
    again = whole.replicate(kept)
    assert (own_rows(again["w"]) == np.arange(10.0)).all() and int(again["step"]) == 3
    assert set(again["w"].devices()) == set(whole.mesh.devices.flat)


def collectives(size: str, seed: int) -> None:
    """Every collective, and groups, beside the reference in numpy."""
    mesh = holed(size, seed)
    chips = len(mesh.live)
    plans = [mm.plan(mesh, collective=name) for name in mm.COLLECTIVES if name != "all_reduce"]
    plans.append(mm.plan(size, groups=mm.tile(*(1, 2, 1)[: len(mesh.dims)])))
    for plan in plans:
        chips = len(plan.mesh.live)
        for width in (0, 7):
            shapes = {"reduce_scatter": (chips, chips * width), "all_to_all": (chips, chips, width)}
            shape = shapes.get(plan.collective, (chips, width))
            parts = np.random.default_rng(seed).integers(-1000, 1000, shape).astype(np.float32)
            made = mm.jax.collective(plan)
            out = np.asarray(made.run(parts))
            assert np.array_equal(out, mm.local.run(plan, parts)), (plan.collective, width)
    for words, attempt in {
        "one row per live device": lambda: made.run(np.zeros((chips + 1, 2))),
        "devices for": lambda: mm.jax.collective(plan, jax.devices()[:1]),
    }.items():
        try:
            attempt()
        except mm.PlanError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"nothing was said: {words}")


def refused(size: str) -> None:
    """What cannot be is one sentence."""
    mesh = mm.Mesh.parse(size)
    plan = mm.plan(mesh, algorithm="trees")
    reduce = mm.jax.allreduce(plan)
    attempts = {
        "3 devices for": lambda: mm.jax.allreduce(plan, jax.devices()[:3]),
        "cannot replace one for": lambda: reduce.replanned(mm.plan(mesh.fail((0, 0)), algorithm="trees")),
        "one row per live device": lambda: reduce.sum(np.zeros((mesh.size + 1, 2))),
        "were given to an all-reduce for": lambda: reduce(0, mm.jax.allreduce(plan, chunks=1).tables),
        "booleans": lambda: reduce.sum(np.zeros((mesh.size, 2), bool)),
    }
    for words, attempt in attempts.items():
        try:
            attempt()
        except mm.PlanError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"nothing was said: {words}")


if __name__ == "__main__":
    for call in " ".join(sys.argv[1:]).split(","):
        name, size, *numbers_given = call.split()
        globals()[name](size, *map(int, numbers_given))
        print("right:", call, flush=True)
