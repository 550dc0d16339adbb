"""Checks of arrays on several devices, run in a process of its own with as many virtual devices as are asked for.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.job.frameworks.jax_sharded_member digests 20 job
"""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

import meshmend as mm
from meshmend.errors import JobError
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.base import HostAccumulator
from meshmend.job.frameworks.choose import framework_of
from meshmend.job.frameworks.jax.sharded import ShardedSums
from meshmend.job.frameworks.jax.state import JaxState
from meshmend.job.reduction.registry import KINDS
from meshmend.job.state import safetensors
from meshmend.job.state.digest import device_digest_of
from tests.job.states import through

P: Any = jax.sharding.PartitionSpec
LANES = 4
TYPES = (np.float32, ml_dtypes.bfloat16, np.int32, np.int8, np.bool_, np.float16, np.complex64, np.uint16)
Random = np.random.Generator


def meshes() -> list[Mesh]:
    devices = np.array(jax.devices())
    return [
        Mesh(devices.reshape(2, 2), ("a", "b")),
        Mesh(devices[::-1].reshape(2, 2), ("a", "b")),
        Mesh(devices, ("a",)),
        jax.make_mesh((2, 2), ("a", "b")),  # its axes are explicit
        Mesh(devices[:2], ("a",)),
    ]


def any_sharding(random: Random, shape: tuple[int, ...], mesh: Mesh | None = None) -> Any:
    """On any mesh, cut along any dimensions that the axes divide; or on one device."""
    if mesh is None and random.integers(8) == 0:
        return SingleDeviceSharding(jax.devices()[random.integers(4)])
    mesh = mesh or meshes()[random.integers(len(meshes()))]
    axes: list[Any] = [*mesh.axis_names, tuple(mesh.axis_names)]
    spec: list[Any] = [None] * len(shape)
    for dim in random.permutation(len(shape)).tolist():
        axis = axes[random.integers(len(axes))]
        names = axis if isinstance(axis, tuple) else (axis,)
        used = {name for one in spec if one is not None for name in (one if isinstance(one, tuple) else (one,))}
        if not used & set(names) and shape[dim] % int(np.prod([mesh.shape[name] for name in names])) == 0:
            spec[dim] = axis
    return NamedSharding(mesh, P(*spec))


def any_array(random: Random, dtype: Any, scale: float = 1.0) -> np.ndarray:
    shape = tuple(int(random.choice([1, 2, 3, 4, 8, 12, 24, 40])) for _ in range(random.integers(4)))
    values = random.normal(size=shape) * scale * (100 if np.dtype(dtype).kind in "iu" else 1)
    return np.abs(values).astype(dtype) if np.dtype(dtype).kind in "u" else values.astype(dtype)


def digests(count: int) -> None:
    """A digest does not depend on how leaves are sharded, and finds every changed bit, in every shard."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        arrays = {f"{n}": any_array(random, TYPES[n % len(TYPES)]) for n in range(10)}
        tree = {name: jax.device_put(one, any_sharding(random, one.shape)) for name, one in arrays.items()}
        state = JaxState(tree)
        expected = device_digest_of(sorted(arrays.items()))
        assert state.digest() == expected, seed
        name = f"{random.choice([n for n, one in arrays.items() if one.size])}"
        bits = arrays[name].copy().reshape(-1).view(np.uint8)
        bits[random.integers(len(bits))] ^= 1
        changed = bits.view(arrays[name].dtype).reshape(arrays[name].shape)
        if np.dtype(arrays[name].dtype) == np.bool_:
            continue
        state.commit(({**tree, name: jax.device_put(changed, tree[name].sharding)},))
        assert state.digest() == device_digest_of(sorted({**arrays, name: changed}.items())) != expected, seed


def lane(random: Random, shapes: dict[str, tuple[int, ...]], scale: float) -> dict[str, Any]:
    found: dict[str, Any] = {name: np.float32(random.normal(size=shape) * scale) for name, shape in shapes.items()}
    found["half"] = found["half"].astype(ml_dtypes.bfloat16)
    return found | {"count": random.integers(0, 9, shapes["count"]).astype(np.int32)}


def sums(count: int) -> None:
    """Messages and totals are those of the host, to the bit, however the lanes of a worker are sharded."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        sizes = [1, 2, 3, 4, 8, 12, 40, 64, 96]
        shapes = {
            name: tuple(int(random.choice(sizes)) for _ in range(rank))
            for name, rank in (("one", 1), ("two", 2), ("three", 3), ("half", 2), ("count", 1), ("loss", 0))
        }
        shapes["big"] = 40, int(random.choice([96, 100, 256]))
        mesh = meshes()[seed % 4]
        for kind in KINDS:
            check_sums(random, kind, shapes, mesh if seed % 2 else None)


def check_sums(random: Random, kind: Any, shapes: dict[str, tuple[int, ...]], mesh: Mesh | None) -> None:
    first = lane(random, shapes, 1.0)
    layout = {name: any_sharding(random, shape, mesh) for name, shape in shapes.items()}
    others = {name: any_sharding(random, shape) for name, shape in shapes.items()}
    put = lambda tree: {name: jax.device_put(value, layout[name]) for name, value in tree.items()}  # noqa: E731
    mine = ShardedSums(kind, put(first), LANES, meshes()[2])
    theirs = HostAccumulator(TreeState(first), kind, first, LANES)
    size = theirs.reduction.size
    part, other = (np.zeros(size + 7, theirs.reduction.dtype) for _ in range(2))
    for step in range(3):
        trees = [lane(random, shapes, [1, 1e-3, 1e6][step]) for _ in range(LANES)]
        for _ in range(3):
            for number, tree in enumerate(trees):
                elsewhere = {name: jax.device_put(value, others[name]) for name, value in tree.items()}
                given = [put(tree), put(tree), elsewhere, tree][number]  # what lies elsewhere is moved
                mine.accumulate(given, part[:size], first=number == 0)
                theirs.accumulate(tree, other[:size], first=number == 0)
                if number == 1:
                    mine.export(part[:size])  # the part may be asked for before all lanes are there
            mine.export(part[:size])
            theirs.export(other[:size])
            assert part.tobytes() == other.tobytes(), kind
            grid = mine.reduction.state()
            alone = mine.finish(mine.alone(part), step, check=True)
            mine.reduction.restore(grid)
            total = mine.finish(part, step, check=True)
            host = theirs.finish(other, step, check=True)
            assert mine.reduction.state().tobytes() == theirs.reduction.state().tobytes()
            assert (alone is None) == (total is None) == (host is None)
            if host is not None and alone is not None and total is not None:
                break
        assert host is not None and alone is not None and total is not None
        for name, value in host.items():
            assert alone[name].dtype == total[name].dtype == value.dtype
            assert np.asarray(alone[name]).tobytes() == np.asarray(total[name]).tobytes() == value.tobytes(), name
            assert all(one[name].sharding.is_equivalent_to(layout[name], value.ndim) for one in (alone, total))
        mine.settle()


def programs(sums: ShardedSums, lane: dict[str, Any]) -> list[Any]:
    """Everything that is compiled for a sum, as it was compiled."""
    found = []
    for wire in sums._exact:
        leaves = wire.group.taken(list(lane.values()))
        per_unit = wire.group.whole(wire.exact.factors[0])
        units, notes = wire._first(leaves, per_unit, wire._begins)
        found += [wire._first.lower(leaves, per_unit, wire._begins), wire._values.lower(units, per_unit, wire._begins)]
        found += [wire._add.lower(units, notes, leaves, per_unit, wire._begins)]
    for wire in sums._float:
        leaves = wire.group.taken(list(lane.values()))
        found += [wire._add.lower(leaves, leaves), wire._packed.lower(leaves)]
    return [one.compile() for one in found]


def shares() -> None:
    """No device holds more than its share of a gradient at any time, and only the largest of blocks are exchanged."""
    mesh, size = meshes()[0], 1 << 18
    shape = size // 512, 512
    for spec in (P("a", "b"), P(None, ("a", "b")), P(("b", "a")), P("b")):
        tree = {"w": jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, spec))}
        share = 4 * size // (2 if spec == P("b") else 4)
        for kind in KINDS:
            sums = ShardedSums(kind, tree, LANES, mesh)
            for one in programs(sums, tree):
                text = one.as_text()
                assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute")), text
                assert set(re.findall(r"(\w+\[\d*\])\S* all-reduce", text)) <= {f"s32[{size // 1024}]"}, text
                used = one.memory_analysis()
                assert used.argument_size_in_bytes <= 2.2 * share and used.output_size_in_bytes <= 1.1 * share
                assert used.temp_size_in_bytes <= 3 * share, (used.temp_size_in_bytes, share, kind, spec)
            total = np.zeros(sums.reduction.size + 7, sums.reduction.dtype)
            for _ in range(2):
                sums.accumulate(tree, total[:-7], first=True)
                sums.export(total[:-7])
                found = sums.finish(total, 0)
            assert {shard.data.nbytes for shard in found["w"].addressable_shards} == {share}
            assert found["w"].sharding == tree["w"].sharding


def states() -> None:
    """A state is handed over, saved, loaded and kept with the sharding of whoever takes it."""
    mesh, other = meshes()[0], meshes()[2]
    arrays = {"w": np.arange(96, dtype=np.float32).reshape(8, 12), "b": np.arange(12).astype(ml_dtypes.bfloat16)}
    put = lambda mesh, w, b: {  # noqa: E731
        "w": jax.device_put(arrays["w"], NamedSharding(mesh, w)),
        "b": jax.device_put(arrays["b"], NamedSharding(mesh, b)),
        "n": jnp.int32(3),
    }
    tree = put(mesh, P("a", "b"), P())
    assert isinstance(framework_of((tree,)), JaxState)
    assert isinstance(framework_of(({"n": jnp.int32(3)},)), TreeState)  # one processor
    for like in (put(other, P("a"), P("a")), put(mesh, P(None, "b"), P("b")), {**tree, "w": jnp.zeros((8, 12))}):
        zeros = jax.tree.map(
            lambda one: jax.device_put(np.zeros_like(one), one.sharding) if one.committed else one, like
        )
        for kind in (JaxState, TreeState):
            found, _ = through(JaxState(tree), kind(zeros))
            for name, value in arrays.items():
                assert np.asarray(found[name]).tobytes() == value.tobytes()
                if like[name].committed:
                    assert found[name].sharding == like[name].sharding
            assert JaxState(found).digest() == JaxState(tree).digest()
        with TemporaryDirectory() as folder:
            path = safetensors.save(Path(folder), JaxState(tree).snapshot(), step=1, about={})
            state = JaxState(zeros)
            state.adopt(safetensors.load(path, state.template())[0])
            loaded = mm.load_checkpoint(path, like=zeros)
        assert state.digest() == JaxState(tree).digest()
        assert state.shared["b"].sharding == loaded["b"].sharding == like["b"].sharding
    update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    state = JaxState(tree)
    snapshot, digest = state.snapshot(), state.digest_begun()
    digest.begin()
    expected = device_digest_of([*sorted(arrays.items())[:1], ("n", np.int32(3)), ("w", arrays["w"])])
    for _ in range(3):
        tree = update(tree)
    assert np.asarray(dict(snapshot)["w"]).tobytes() == arrays["w"].tobytes()
    assert digest.value() == expected


def trained(spec: Any, mesh: Mesh, **options: Any) -> dict[str, np.ndarray]:
    """Lanes whose arithmetic is exact, so that all shardings give the same; updates donate the state."""
    held = NamedSharding(mesh, spec)
    state = {"w": jax.device_put(np.zeros((8, 16), np.float32), held), "m": jnp.zeros(16)}
    grad = jax.jit(lambda w, x: (jnp.round(w * 4) / 4 + x.sum(), jnp.float32(1), jnp.int32(len(x))))
    update = jax.jit(
        lambda state, g, n: {"w": state["w"] - g[0] / 16, "m": state["m"] + n}, donate_argnums=0,
        out_shardings={"w": held, "m": NamedSharding(mesh, P())},
    )  # fmt: skip
    data = np.random.default_rng(0).integers(-8, 8, (64, 3)).astype(np.float32)
    with mm.Job(data, batch=16, lanes=LANES, **options) as job:
        state = job.share(state)
        for _ in job.steps(6):
            g, ones, n = job.sum(lambda lane: grad(state["w"], lane))  # noqa: B023
            assert g.sharding.is_equivalent_to(held, 2) and int(ones) == LANES
            state = update(state, (g,), n)
            job.commit(state, norm=jnp.abs(g).max())
    assert state["w"].sharding.is_equivalent_to(held, 2)
    return {name: np.asarray(value) for name, value in state.items()}


def job(count: int) -> None:
    """A whole job of one worker: the same weights however they are sharded."""
    shardings = [(P("a", "b"), 0), (P("a"), 3), (P(None, "a"), 2), (P(), 0)]
    for options in [{"reduction": "exact"}, {}, {"wire": "bf16"}, {"nonfinite": "error"}][:count]:
        found = [trained(spec, meshes()[number], **options) for spec, number in shardings[: count + 1]]
        for one, two in pairwise(found):
            assert all(one[name].tobytes() == two[name].tobytes() for name in one), options


def processes(port: int) -> None:
    """An array over two processes of JAX is refused, as a state and as a gradient."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(os.environ["MEMBER"]), initialization_timeout=120)
    mesh = Mesh(np.array(jax.devices()), ("a",))
    array = jax.make_array_from_callback((8,), NamedSharding(mesh, P("a")), lambda index: np.ones(8)[index])
    mine = jax.device_put(np.ones(8), NamedSharding(Mesh(np.array(jax.local_devices()), ("a",)), P("a")))
    assert not array.is_fully_addressable
    state = framework_of(({"w": mine},))
    for refused in (lambda: framework_of(({"w": array},)), lambda: state.accumulator(KINDS[0], array, LANES)):
        try:
            refused()
        except JobError as error:
            assert "jax.local_devices()" in str(error)
        else:
            raise AssertionError("an array over several processes was taken")


def main(*words: str) -> None:
    for word, more in pairwise([*words, ""]):
        if not word.isdigit():
            globals()[word](*([int(more)] if more.isdigit() else []))
            print(f"{word} as expected", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
