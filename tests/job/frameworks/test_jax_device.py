"""A state of JAX that stays on its device, and lanes that are added up there: here the device is the processor."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import meshmend as mm
from meshmend.errors import JobError, NotFinite
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.base import HostAccumulator
from meshmend.job.frameworks.choose import framework_of
from meshmend.job.frameworks.jax.state import JaxState
from meshmend.job.frameworks.jax.sums import JaxSums
from meshmend.job.reduction.exact import ExactSum
from meshmend.job.reduction.registry import KINDS
from meshmend.job.state import safetensors
from meshmend.job.state.digest import device_digest_of
from meshmend.job.state.tree import OnDevice
from tests.job.states import through

X = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
TREE = {"w": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "h": jnp.ones(5, jnp.bfloat16), "n": np.int32(3)}
LANES = 4


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMEND_STATE", "device")


def test_where_a_state_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(framework_of((TREE,)), JaxState)
    assert isinstance(framework_of(({"w": np.ones(2)},)), TreeState)
    monkeypatch.setenv("MESHMEND_STATE", "")
    assert isinstance(framework_of((TREE,)), TreeState)  # a processor is no accelerator
    monkeypatch.setenv("MESHMEND_STATE", "there")
    with pytest.raises(JobError):
        framework_of((TREE,))


def test_nothing_is_fetched_before_somebody_looks() -> None:
    state = JaxState(TREE)
    leaves = state.leaves()
    assert [name for name, _ in leaves] == ["h", "n", "w"]
    assert all(isinstance(leaf, OnDevice) for name, leaf in leaves if name != "n")
    for (_, leaf), mine in zip(leaves, (TREE["h"], TREE["n"], TREE["w"]), strict=True):
        assert (leaf.shape, leaf.dtype, leaf.nbytes) == (mine.shape, mine.dtype, mine.nbytes)
        assert np.asarray(leaf).tobytes() == np.asarray(mine).tobytes()


def test_the_digest_is_that_of_the_definition_and_of_the_host() -> None:
    state, grid = JaxState(TREE), np.array([1, 2], np.int16)
    assert state.digest(grid) == state.digest_begun(grid).value()
    assert state.digest(grid) == device_digest_of([("h", TREE["h"]), ("n", TREE["n"]), ("w", TREE["w"])], grid)
    before = state.digest()
    state.flip_bit()
    assert state.digest() != before
    assert JaxState({**TREE, "w": TREE["w"].reshape(3, 2)}).digest() != before


def test_a_key_is_refused_with_what_to_do() -> None:
    with pytest.raises(JobError, match="key_data"):
        JaxState({"key": jax.random.key(0)})


def test_a_state_arrives_on_the_device_of_the_one_before(tmp_path: Path) -> None:
    state = JaxState({**TREE, "w": TREE["w"] * 0})
    found, _ = through(JaxState(TREE), state)
    assert isinstance(found["w"], jax.Array) and found["w"].committed == TREE["w"].committed
    assert isinstance(found["n"], np.ndarray)
    assert state.digest() == JaxState(TREE).digest()
    with pytest.raises(JobError):
        through(JaxState(TREE), JaxState({**TREE, "w": TREE["h"]}))
    path = safetensors.save(tmp_path, state.leaves(), step=1, about={})
    assert dict(safetensors.load(path, state.template())[0])["w"].tolist() == TREE["w"].tolist()


def test_a_snapshot_and_a_digest_outlive_a_donation() -> None:
    update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    tree = {"w": jnp.arange(4.0)}
    state = JaxState(tree)
    snapshot, digest = state.snapshot(), state.digest_begun()
    digest.begin()
    expected = device_digest_of([("w", np.arange(4, dtype=np.float32))])
    after = update(tree)
    assert np.asarray(snapshot[0][1]).tolist() == [0, 1, 2, 3]
    assert digest.value() == expected
    tree = {"w": after["w"] + 0}
    state.commit((tree,))
    assert state.holds(summed=True)
    tree["w"].delete()
    assert not state.holds(summed=False)
    with pytest.raises(JobError):
        state.commit((tree,))


def test_a_state_that_was_donated_before_its_digest_is_one_sentence() -> None:
    tree = {"w": jnp.arange(4.0)}
    digest = JaxState(tree).digest_begun()
    tree["w"].delete()
    with pytest.raises(JobError, match="'w'"):
        digest.value()


def lanes_of(seed: int, count: int, scale: float = 1.0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "big": (rng.normal(size=(70, 40)) * scale).astype(np.float32),
            "half": (rng.normal(size=2000) * scale).astype(ml_dtypes.bfloat16),
            "count": np.int32(rng.integers(0, 9)),
            "loss": rng.normal() * scale,
            "none": np.zeros((0, 3), np.float32),
        }
        for _ in range(count)
    ]


def pair(kind: Any, tree: Any) -> tuple[JaxSums, HostAccumulator]:
    return JaxSums(kind, tree, LANES), HostAccumulator(TreeState(tree), kind, tree, LANES)


def as_device(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, float) else jnp.asarray(value) for name, value in tree.items()}


def bits(tree: dict[str, Any] | None) -> dict[str, Any] | None:
    """Compared as float32 where JAX has no float64."""
    if tree is None:
        return None
    found = {name: np.asarray(value) for name, value in tree.items()}
    return {n: (np.float32(v) if v.dtype == np.float64 else v).tobytes() for n, v in found.items()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.reduction}-{kind.wire}")
def test_the_same_message_and_the_same_total_as_on_the_host(kind: Any) -> None:
    trees = lanes_of(1, LANES)
    device, host = pair(kind, trees[0])
    mine, theirs = (np.zeros(host.reduction.size + 7, host.reduction.dtype) for _ in range(2))
    size = host.reduction.size
    for step in range(4):
        trees = lanes_of(step, LANES, scale=[1, 1e-3, 1e6, 1e6][step])
        for _ in range(3):
            for number, tree in enumerate(trees):
                device.accumulate(as_device(tree), mine[:size], first=number == 0)
                host.accumulate(tree, theirs[:size], first=number == 0)
                if number == 1:  # the part may be asked for before all lanes are there
                    device.export(mine[:size])
            device.export(mine[:size])
            host.export(theirs[:size])
            assert mine.tobytes() == theirs.tobytes()
            two = mine.copy()
            device.reduction.wire_format(7).combine([mine, mine], two)
            grid = device.reduction.state()
            alone = device.finish(device.alone(mine), step, check=True)
            if kind.reduction == "float":
                assert bits(device.finish(two, step)) == bits(host.finish(two, step))
            device.reduction.restore(grid)
            assert bits(alone) == bits(host.finish(theirs, step, check=True))
            assert bits(device.finish(mine, step)) == bits(alone)
            assert device.reduction.state().tobytes() == host.reduction.state().tobytes()
            if alone is not None:
                break
        assert alone is not None
        assert {name: value.dtype for name, value in alone.items()} == {
            "big": np.float32, "half": ml_dtypes.bfloat16, "count": np.int32, "loss": np.float32, "none": np.float32,
        }  # fmt: skip


@pytest.mark.parametrize("committed", [False, True])
def test_exact_sums_are_compiled_once(committed: bool) -> None:
    put = partial(jax.device_put, device=jax.devices()[0]) if committed else jnp.asarray
    sums = None
    for step in range(4):
        tree = {"w": put(np.full((40, 60), 1.0 + step, np.float32)), "b": put(np.ones(7, np.float32))}
        sums = sums or JaxSums(ExactSum, tree, LANES)
        for _ in range(2):
            for number in range(2):
                sums.accumulate(tree, np.zeros(0), first=number == 0)
            if sums.finish(sums.alone(np.zeros(0)), step) is not None:
                break
    assert sums is not None and sums._exact is not None
    wire = sums._exact
    programs = wire.first, wire.add_in_place, wire.values, wire.grid._move
    assert [one._cache_size() for one in programs] == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.reduction}-{kind.wire}")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_sum_that_is_not_finite_is_found(kind: Any, value: float) -> None:
    tree = lanes_of(1, 1)[0]
    tree["big"][3, 3] = value
    device = JaxSums(kind, tree, LANES)
    device.accumulate(as_device(tree), np.zeros(0), first=True)
    total = np.array(device.part())
    for given in (device.alone(np.zeros(0)), total):
        with pytest.raises(NotFinite, match="big"):
            device.finish(given, 5, check=True)


def test_one_look_at_a_total_is_enough_where_it_is_finite() -> None:
    tree = {"big": jnp.ones((3, 4)), "other": jnp.full(5, 2.0)}
    device = JaxSums(KINDS[0], tree, LANES)
    device.accumulate(tree, np.zeros(0), first=True)
    found = device.finish(np.array(device.part()), 5, check=True)
    assert bits(found) == bits(tree)


def test_a_sum_too_large_for_its_type_is_found() -> None:
    tree = {"half": jnp.full(3, 60000, jnp.float16)}
    device = JaxSums(KINDS[0], tree, LANES)
    for number in range(2):
        device.accumulate(tree, np.zeros(0), first=number == 0)
    with pytest.raises(NotFinite, match="half"):
        device.finish(device.alone(np.zeros(0)), 5, check=True)


@pytest.mark.parametrize(("value", "kind"), [(2**23, np.int32), (100, np.int8)], ids=["not exact", "too narrow"])
def test_integers_are_looked_at_one_step_later(value: int, kind: Any) -> None:
    tree = {"n": jnp.full(2, value, kind)}
    device = JaxSums(KINDS[0], tree, LANES)
    for number in range(2):
        device.accumulate(tree, np.zeros(0), first=number == 0)
    device.finish(device.alone(np.zeros(0)), 5)
    with pytest.raises(JobError, match="'n'"):
        device.settle()
    device.settle()  # once


def test_another_tree_is_refused() -> None:
    device = JaxSums(KINDS[0], {"a": jnp.ones(2)}, LANES)
    for other in ({"b": jnp.ones(2)}, {"a": jnp.ones(3)}, {"a": jnp.ones(2, jnp.int32)}):
        with pytest.raises(JobError):
            device.accumulate(other, np.zeros(0), first=True)
    with pytest.raises(JobError):
        JaxSums(KINDS[0], {}, LANES)


def trained(**options: Any) -> npt.NDArray[np.float32]:
    """A job with donation, integers, and a metric that stays on the device."""
    grad = jax.jit(lambda state, x: (jax.grad(lambda w: ((x @ w - 1) ** 2).sum())(state["w"]), jnp.int32(len(x))))
    update = jax.jit(lambda state, g, n: {"w": state["w"] - 0.1 * g / n, "m": state["m"] + g}, donate_argnums=0)
    with mm.Job(X, batch=16, lanes=LANES, **options) as job:
        state = job.share({"w": jnp.zeros(3), "m": jnp.zeros(3)})
        for _ in job.steps(6):
            g, n = job.sum(partial(grad, state))
            state = update(state, g, n)
            job.commit(state, norm=jnp.abs(g).sum())
        assert isinstance(state["w"], jax.Array)
        return np.asarray(state["w"])


def test_a_job_on_the_device_gives_the_bits_of_one_on_the_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ({}, {"reduction": "exact"}, {"wire": "bf16"}, {"nonfinite": "error"}):
        monkeypatch.setenv("MESHMEND_STATE", "device")
        device = trained(**options)
        assert "norm" in capsys.readouterr().out
        monkeypatch.setenv("MESHMEND_STATE", "host")
        assert device.tobytes() == trained(**options).tobytes()


def test_alone_nothing_goes_over_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("an array went over the host")

    for name in ("begin", "fetch", "Destination.upload", "Destination.upload_flat"):
        monkeypatch.setattr(f"meshmend.job.frameworks.jax.host.{name}", refuse)
    monkeypatch.setattr("meshmend.job.frameworks.jax.state.sums_begun", refuse)  # nobody to compare with
    with mm.Job(X, batch=16, lanes=LANES, check=False) as job:
        state = job.share(jnp.zeros((50, 3)))
        for _ in job.steps(4):
            grads = job.sum(lambda lane: jnp.full((50, 3), lane.sum()))
            state = state - grads
            job.commit(state, norm=jnp.abs(grads).max())
    assert np.asarray(state).shape == (50, 3)


def test_bounds_are_in_order() -> None:
    layout = JaxSums(KINDS[0], TREE, LANES).layout
    assert all(a <= b for a, b in pairwise(layout.bounds.tolist())) and layout.number & 1
