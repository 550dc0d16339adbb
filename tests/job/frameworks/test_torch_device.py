"""PyTorch's objects on a device, and lanes that are added up there: here the device is the processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import meshmend as mm
from meshmend.errors import JobError, NotFinite
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.base import HostAccumulator
from meshmend.job.frameworks.choose import framework_of
from meshmend.job.frameworks.torch import TorchState
from meshmend.job.frameworks.torch.device import DeviceTorchState, devices_of
from meshmend.job.frameworks.torch.sums import TorchSums
from meshmend.job.reduction.registry import KINDS
from meshmend.job.state import safetensors
from meshmend.job.state.tree import OnDevice
from tests.job.frameworks.test_torch import X, everything, network, train
from tests.job.states import through

LANES = 4
CPU = torch.device("cpu")
nn = torch.nn


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MESHMEND_STATE", "device")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_where_a_state_stays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(framework_of((network(),)), DeviceTorchState)
    monkeypatch.setenv("MESHMEND_STATE", "")
    assert type(framework_of((network(),))) is TorchState  # a processor is no accelerator
    monkeypatch.setenv("MESHMEND_STATE", "host")
    assert type(framework_of((network(),))) is TorchState
    halves = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    capsys.readouterr()
    monkeypatch.setattr("meshmend.job.frameworks.torch.TorchState", lambda state: state)
    assert framework_of((halves,)) == (halves,)
    assert "cpu and meta" in capsys.readouterr().out


def test_an_average_whose_count_is_on_the_host_stays_on_its_device() -> None:
    """PyTorch keeps the count on the host wherever the average is, and no lane has to do with it."""
    model = nn.Linear(2, 2, device="meta")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    assert average.n_averaged.device == CPU
    assert devices_of((model, average)) == {torch.device("meta")}
    odd = nn.Module()
    odd.register_buffer("n_averaged", torch.zeros(()))
    assert devices_of((model, odd)) == {torch.device("meta"), CPU}, "somebody else's buffer of that name"


def test_the_count_of_an_average_is_part_of_the_state_and_of_no_sum() -> None:
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    state = DeviceTorchState((model, average))
    before = state.digest()
    [name] = [name for name, _ in state.leaves() if name.endswith("n_averaged")]
    average.update_parameters(model)
    state.commit()
    assert int(np.asarray(dict(state.leaves())[name])) == 1 and state.digest() != before
    tree = state.lane(lambda: model(X[:4]).sum().backward(), (0, 0, 0))
    assert not any("n_averaged" in name for name in tree["buffers"]) and tree["buffers"]
    assert average.n_averaged == 1


def test_nothing_is_fetched_before_somebody_looks_and_it_is_what_the_host_has() -> None:
    objects = everything()
    train(objects, 2)
    device, host = DeviceTorchState(objects), TorchState(objects)
    assert all(isinstance(leaf, OnDevice) for name, leaf in device.leaves() if name != "objects")
    for (name, mine), (other, theirs) in zip(device.leaves(), host.leaves(), strict=True):
        assert (name, mine.shape, mine.dtype) == (other, theirs.shape, theirs.dtype)
        assert np.asarray(mine).tobytes() == theirs.tobytes()


def test_any_change_of_the_objects_changes_the_digest() -> None:
    objects = everything()
    train(objects, 2)
    state = DeviceTorchState(objects)
    found = [state.digest(), state.digest(np.array([1], np.int16))]

    def changed() -> None:
        state.commit()
        found.append(state.digest())

    with torch.no_grad():
        objects[0][0].weight[0, 0] += 1e-7
        changed()
        objects[0][1].running_mean[0] += 1
        changed()
        next(iter(objects[1].state.values()))["exp_avg"].view(-1)[0] += 1
        changed()
        next(iter(objects[1].state.values()))["step"] += 1
        changed()
    objects[1].param_groups[0]["lr"] *= 2
    changed()
    assert len(set(found)) == len(found)
    changed()
    assert found[-1] == found[-2]


def test_a_newcomer_and_a_checkpoint_get_the_same_state(tmp_path: Path) -> None:
    objects = everything()
    train(objects, 3)
    state, other = DeviceTorchState(objects), DeviceTorchState(everything(seed=1))
    through(state, other)
    assert other.digest() == state.digest()
    snapshot = state.snapshot()
    with torch.no_grad():
        objects[0][0].weight.zero_()
    path = safetensors.save(tmp_path, snapshot, step=3, about={})
    leaves, _, _ = safetensors.load(path, None)
    again = DeviceTorchState(everything(seed=2))
    again.adopt(leaves)
    assert again.digest() == other.digest()


@pytest.mark.parametrize("options", [{}, {"reduction": "float"}, {"reduction": "float", "wire": "bf16"}], ids=str)
def test_a_job_on_the_device_gives_the_bits_of_one_on_the_host(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for place in ("device", "host"):
        monkeypatch.setenv("MESHMEND_STATE", place)
        objects = everything()
        job = train(objects, 6, nonfinite="error", **options)
        assert isinstance(job.training.framework, DeviceTorchState) == (place == "device")
        found.append({name: np.asarray(leaf).tobytes() for name, leaf in TorchState(objects).leaves()})
    assert found[0] == found[1]


def lanes_of(seed: int, count: int, scale: float = 1.0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "big": torch.from_numpy((rng.normal(size=(70, 40)) * scale).astype(np.float32)),
            "count": torch.tensor(rng.integers(0, 9)),
            "found": np.array([1, 0], np.float32),
            "loss": rng.normal() * scale,
            "middle": torch.from_numpy((rng.normal(size=65) * scale).astype(np.float32)),
            "none": torch.zeros((0, 3)),
        }
        for _ in range(count)
    ]


def as_host(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in tree.items()}


def bits(tree: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if tree is None else {name: np.asarray(value).tobytes() for name, value in as_host(tree).items()}


def copied(tree: dict[str, Any]) -> dict[str, Any]:
    """The first lane's tensors are added to."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in tree.items()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.reduction}-{kind.wire}")
@pytest.mark.parametrize("tensors", [False, True], ids=["numpy", "tensors"])
def test_the_same_message_and_the_same_total_as_on_the_host(kind: Any, tensors: bool) -> None:
    trees = lanes_of(1, LANES)
    device = TorchSums(kind, trees[0], LANES, CPU)
    host = HostAccumulator(TreeState(as_host(trees[0])), kind, as_host(trees[0]), LANES)
    size = host.reduction.size
    mine, theirs = (np.zeros(size + 7, host.reduction.dtype) for _ in range(2))

    def place(array: Any) -> Any:
        return torch.from_numpy(array) if tensors else array

    for step in range(4):
        trees = lanes_of(step, LANES, scale=[1, 1e-3, 1e6, 1e6][step])
        for _ in range(3):
            for number, tree in enumerate(trees):
                device.accumulate(copied(tree), mine[:size], first=number == 0)
                host.accumulate(as_host(tree), theirs[:size], first=number == 0)
                if number == 1:  # the part may be asked for before all lanes are there
                    device.export(place(mine[:size]))
            device.export(place(mine[:size]))
            host.export(theirs[:size])
            assert mine.tobytes() == theirs.tobytes()
            grid = device.reduction.state()
            alone = device.finish(device.alone(mine), step, check=True)
            device.reduction.restore(grid)
            assert bits(alone) == bits(host.finish(theirs, step, check=True))
            assert bits(device.finish(place(mine.copy()), step)) == bits(alone)
            assert device.reduction.state().tobytes() == host.reduction.state().tobytes()
            if alone is not None:
                break
        assert alone is not None and alone["count"].dtype == torch.int64


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.reduction}-{kind.wire}")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_sum_that_is_not_finite_is_found(kind: Any, value: float) -> None:
    tree = lanes_of(1, 1)[0]
    tree["big"][3, 3] = value
    device = TorchSums(kind, tree, LANES, CPU)
    device.accumulate(tree, np.zeros(0), first=True)
    with pytest.raises(NotFinite, match="big"):
        device.finish(device.alone(np.zeros(0)), 5, check=True)
    tree = {**lanes_of(1, 1)[0], "loss": value}
    device.accumulate(tree, np.zeros(0), first=True)
    with pytest.raises(NotFinite, match="loss"):
        device.finish(device.alone(np.zeros(0)), 5, check=True)


@pytest.mark.parametrize(("value", "kind"), [(2**23, "int64"), (100, "int8")], ids=["not exact", "too narrow"])
def test_integers_are_looked_at_one_step_later(value: int, kind: str) -> None:
    for tree in ({"n": torch.full((2,), value, dtype=getattr(torch, kind))}, {"n": np.full(2, value, kind)}):
        device = TorchSums(KINDS[0], tree, LANES, CPU)
        for number in range(2):
            device.accumulate(tree, np.zeros(0), first=number == 0)
        device.finish(device.alone(np.zeros(0)), 5)
        with pytest.raises(JobError, match="'n'"):
            device.settle()


class Odd(nn.Module):
    """Buffers that have no mean."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(2))


@pytest.mark.parametrize("wrong", ["mask", "seen", ""])
def test_what_a_lane_must_not_do_is_told_one_step_later(wrong: str) -> None:
    model = Odd()
    with mm.Job(X, batch=8, lanes=4, check=False) as job:
        job.share(model)

        def work(lane: Any) -> None:
            model.linear(lane).sum().backward()
            model.mean += 2
            model.seen += 2**23 if wrong == "seen" else 1
            if wrong == "mask":
                model.mask[0] = False

        job.sum(work)
        job.commit()
        if wrong:
            with pytest.raises(JobError):
                job.sum(work)
            return
        assert (model.mean.tolist(), int(model.seen)) == ([2, 2], 1)
        job.sum(work)
        assert (model.mean.tolist(), int(model.seen)) == ([4, 4], 2)
        job.commit()


def test_with_one_lane_gradients_are_those_of_backward_and_metrics_are_the_users() -> None:
    model, kept = nn.Linear(6, 3), []
    with mm.Job(X, batch=8, lanes=2, check=False) as job:
        job.share(model)

        def work(lane: Any) -> Any:
            loss = model(lane).square().sum()
            loss.backward()
            kept.append((loss, loss.item(), model.weight.grad))
            return loss

        total = job.sum(work)
        assert model.weight.grad.data_ptr() == kept[0][2].data_ptr()
        assert [loss.item() for loss, _, _ in kept] == [value for _, value, _ in kept]
        assert total.item() == pytest.approx(sum(value for _, value, _ in kept))
        job.commit(loss=total)


def test_an_unused_parameter_has_no_gradient_and_a_narrow_one_its_own_type() -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 2).bfloat16(), "unused": nn.Linear(6, 2)})
    with mm.Job(X, batch=8, lanes=4, check=False) as job:
        job.share(model)
        job.sum(lambda lane: model["used"](lane.bfloat16()).sum().backward())
        assert model["unused"].weight.grad is None
        assert model["used"].weight.grad.dtype == torch.bfloat16
        job.commit()
