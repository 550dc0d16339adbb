"""PyTorch objects as a job's state, lane by lane: what is summed, what is filled, what travels."""

from __future__ import annotations

import copy
import difflib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meshmend as mm
from meshmend.job.frameworks.torch import TorchState
from tests.job import states
from tests.job.states import digest_of

X = torch.from_numpy(np.random.default_rng(0).normal(size=(96, 6)).astype(np.float32))
Y = X[:, :3].argmax(1)
nn, functional = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed: int = 0, dropout: float = 0.0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def everything(seed: int = 0) -> tuple[Any, Any, Any]:
    model = network(seed, dropout=0.2)
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": [*model[1].parameters(), *model[4].parameters()]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])


def train(objects: tuple[Any, ...], steps: int, *, reduction: str = "exact", lanes: int = 4, **options: Any) -> mm.Job:
    model, optimizer = objects[:2]
    with mm.Job((X, Y), batch=32, lanes=lanes, reduction=reduction, **options) as job:
        job.share(*objects)
        for _ in job.steps(steps):
            job.sum(lambda lane: (functional.cross_entropy(model(lane[0]), lane[1]) / job.lanes).backward())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for scheduler in objects[2:]:
                scheduler.step()
            job.commit()
    return job


def test_it_trains_as_a_plain_loop_does() -> None:
    """One lane a step: the same gradients, statistics and updates as without meshmend, up to the last digits."""
    ours, plain = everything(), everything()
    job = train(ours, 7, reduction="float", lanes=1)
    model, optimizer, scheduler = plain
    for step in range(7):
        ids = job.training.lanes.ids(step, 0)
        torch.manual_seed(int(np.random.SeedSequence((0, step, 0)).generate_state(2, np.uint64)[0] >> 1))
        optimizer.zero_grad()
        functional.cross_entropy(model(X[ids]), Y[ids]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(ours[0].state_dict()[name], value, msg=name)
    assert ours[2].state_dict() == scheduler.state_dict()


def test_gradients_are_sums_over_all_lanes_and_metrics_too() -> None:
    model = nn.Linear(6, 3)
    with mm.Job((X, Y), batch=96, lanes=4) as job:
        job.share(model)

        def backward(lane: Any) -> Any:
            loss = functional.cross_entropy(model(lane[0]), lane[1], reduction="sum") / job.batch
            loss.backward()
            return {"loss": loss, "seen": len(lane[0])}

        sums = job.sum(backward)
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        loss = functional.cross_entropy(model(X), Y)
        loss.backward()
        for grad, parameter in zip(got, model.parameters(), strict=True):
            torch.testing.assert_close(grad, parameter.grad)
        torch.testing.assert_close(sums["loss"], loss.detach())
        assert sums["seen"] == 96
        job.commit(loss=sums["loss"])


@pytest.mark.parametrize("reduction", ["float", "exact"])
def test_sums_take_the_memory_of_the_last_lanes_gradients(reduction: str) -> None:
    """No new memory for every step, as with DDP; but never memory that belongs to a gradient of an earlier step."""
    model, seen = network(), []

    def backward(lane: Any) -> None:
        functional.cross_entropy(model(lane[0]), lane[1], reduction="sum").backward()
        seen.append([parameter.grad.data_ptr() for parameter in model.parameters()])

    with mm.Job((X, Y), batch=32, lanes=4, reduction=reduction) as job:
        job.share(model)
        kept: list[tuple[list[Any], list[Any]]] = []
        for _ in job.steps(3):
            job.sum(backward)
            grads = [parameter.grad for parameter in model.parameters()]
            assert [one.data_ptr() for one in grads] == seen[-1]
            kept.append((grads, [one.clone() for one in grads]))
            job.commit()
    for grads, before in kept:
        assert all(torch.equal(one, other) for one, other in zip(grads, before, strict=True))


@pytest.mark.parametrize("together", ["same", "overlapping", "strided"])
def test_gradients_that_share_memory_are_averaged_apart(together: str) -> None:
    """Autograd gives each parameter memory of its own; a script that sets `.grad` itself may not."""

    def places(row: Any) -> tuple[Any, Any]:
        found = {"same": (row[:4], row[:4]), "overlapping": (row[:4], row[2:6]), "strided": (row[::2], row[::2])}
        return found[together]

    rows = torch.arange(8.0)
    model = nn.ParameterList([nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))])
    with mm.Job((X, Y), batch=96, lanes=4) as job:
        model, optimizer = mm.torch.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), job)
        sampler = mm.torch.Sampler(job)
        for _ in job.epochs(1):
            for _ in sampler:
                model[0].grad, model[1].grad = places(rows.clone())
                optimizer.step()
    first, second = places(rows)
    assert torch.equal(model[0], -first) and torch.equal(model[1], -second)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_a_lane_does_not_depend_on_those_before_it(order: list[int]) -> None:
    """Statistics, dropout and the random numbers of numpy and Python."""
    model = network(dropout=0.5)
    state = TorchState((model,))

    def work(lane: int) -> Any:
        noise = np.random.normal() + random.random()
        loss = functional.cross_entropy(model(X[lane * 8 : lane * 8 + 8]), Y[lane * 8 : lane * 8 + 8]) * noise
        loss.backward()
        return loss

    trees = {lane: copy.deepcopy(state.lane(lambda lane=lane: work(lane), (7, 3, lane))) for lane in order}
    for lane in range(4):
        fresh = TorchState((network(dropout=0.5),))
        model = fresh.shared
        assert digest_of(fresh.lane(lambda lane=lane: work(lane), (7, 3, lane))) == digest_of(trees[lane])


def test_the_random_numbers_of_the_script_go_on() -> None:
    def draws() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    def seed() -> None:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    state = TorchState((network(),))
    seed()
    expected = [draws(), draws()]
    seed()
    got = [draws()]
    state.lane(draws, (0, 0, 0))
    assert [*got, draws()] == expected


def test_statistics_of_lanes_are_averaged() -> None:
    model = nn.BatchNorm1d(6, momentum=0.1)
    with mm.Job(X, batch=96, lanes=4) as job:
        job.share(model)
        job.sum(lambda lane: model(lane).sum().backward())
        job.commit()
    ids = [job.training.lanes.ids(0, lane) for lane in range(4)]
    mean = torch.stack([X[i].mean(0) for i in ids]).mean(0)
    var = torch.stack([X[i].var(0) for i in ids]).mean(0)
    torch.testing.assert_close(model.running_mean, 0.1 * mean)
    torch.testing.assert_close(model.running_var, 0.9 + 0.1 * var)
    assert model.num_batches_tracked == 1


class Odd(nn.Module):  # type: ignore[misc, name-defined]
    """Tied weights, a parameter used in one lane only, one never used, a frozen one, and buffers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 6, bias=False)
        self.decode = nn.Linear(6, 6, bias=False)
        self.decode.weight = self.encode.weight
        self.sometimes = nn.Parameter(torch.ones(6))
        self.never = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))
        self.register_buffer("cache", torch.zeros(6), persistent=False)
        self.register_buffer("small", torch.ones(6, dtype=torch.bfloat16))

    def forward(self, x: Any, *, use: bool) -> Any:
        self.cache = self.cache + 1
        y = self.decode(torch.tanh(self.encode(x))) * self.frozen
        return (y * self.sometimes if use else y).masked_fill(~self.mask, 0)


def test_parameters_without_gradients_tied_and_frozen_ones() -> None:
    model = Odd()
    with mm.Job(X, batch=8, lanes=4) as job:
        job.share(model)
        calls = iter(range(99))
        job.sum(lambda lane: model(lane, use=next(calls) == 2).sum().backward())
        assert model.never.grad is None and model.frozen.grad is None
        assert model.sometimes.grad is not None
        assert model.decode.weight.grad is model.encode.weight.grad
        expected = copy.deepcopy(model)
        expected.zero_grad()
        ids = np.concatenate([job.training.lanes.ids(0, lane) for lane in range(4)])
        expected(X[ids], use=False).sum().backward()
        torch.testing.assert_close(model.encode.weight.grad, expected.encode.weight.grad)
        assert model.cache.sum() == 0  # not kept in state dicts, so every lane begins anew
        job.commit()


def test_a_bool_buffer_has_no_average_and_a_frozen_weight_stays_so() -> None:
    model = Odd()
    with mm.Job(X, batch=8, lanes=4) as job:
        job.share(model)

        def changes(lane: Any) -> None:
            model.mask[0] = False
            model(lane, use=True).sum().backward()

        with pytest.raises(mm.JobError, match="which has no mean"):
            job.sum(changes)
        model.frozen.requires_grad_(True)
        with pytest.raises(mm.JobError, match="was frozen when it was shared"):
            job.sum(lambda lane: model(lane, use=True).sum().backward())


class Turned(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.phase = nn.Parameter(torch.ones(6, dtype=torch.complex64), requires_grad=trained)
        self.register_buffer("turns", torch.ones(6, dtype=torch.complex64))

    def forward(self, x: Any) -> Any:
        return (x * self.weight * self.turns * self.phase).real


def test_complex_weights_and_changes_are_refused_and_constants_are_not() -> None:
    job = mm.Job(X, batch=8, lanes=4)
    with pytest.raises(mm.JobError, match=r"'model\.phase' is complex"):
        job.share(Turned(trained=True))
    model = Turned(trained=False)
    job.share(model)
    job.sum(lambda lane: model(lane).sum().backward())
    assert torch.isfinite(model.weight.grad).all()
    job.commit()

    def changes(lane: Any) -> None:
        model.turns *= 1j
        model(lane).sum().backward()

    with pytest.raises(mm.JobError, match=r"changed buffer 'model\.turns' of complex numbers"):
        job.sum(changes)


class Masked(nn.Module):  # type: ignore[misc, name-defined]
    """A causal mask that is kept in state dicts, and values that an addition of nothing would change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))
        self.register_buffer("odd", torch.tensor([torch.inf, torch.nan, -0.0, 1.0]))
        self.register_buffer("bytes", torch.tensor([200, 3], dtype=torch.uint8))

    def forward(self, x: Any) -> Any:
        self.odd[3] += 1
        self.bytes[0] -= 20
        self.bytes[1] += 4
        return self.linear(x) @ torch.softmax(self.mask, -1)


@pytest.mark.parametrize("reduction", ["float", "exact"])
def test_what_no_lane_changes_in_a_buffer_stays_bit_for_bit_what_it_is(reduction: str) -> None:
    model = Masked()
    before = copy.deepcopy(model)
    with mm.Job(X, batch=8, lanes=4, reduction=reduction) as job:
        job.share(model)
        for _ in job.steps(3):
            job.sum(lambda lane: model(lane).sum().backward())
            job.commit()
    assert model.mask.numpy().tobytes() == before.mask.numpy().tobytes()
    assert model.odd[:3].numpy().tobytes() == before.odd[:3].numpy().tobytes()
    assert (model.odd[3], *model.bytes) == (4, 140, 15)
    assert torch.isfinite(model.linear.weight.grad).all()


def through(state: TorchState, like: TorchState) -> None:
    assert states.through(state, like, step=3) == (like.shared, {"step": 3})


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("way", ["newcomer", "checkpoint"])
def test_a_newcomer_goes_on_with_moments_rates_and_schedule(steps: int, way: str, tmp_path: Path) -> None:
    """Its own optimizer has no moments yet; the checkpoint is plain safetensors."""
    ours, theirs = everything(seed=1), everything(seed=2)
    train(ours, steps)
    state, like = TorchState(ours), TorchState(theirs)
    assert digest_of(state) != digest_of(like)
    if way == "newcomer":
        through(state, like)
    else:
        path = states.save(tmp_path, state, step=steps, about={})
        assert states.load(path, like) == (like.shared, steps, {})
        from safetensors.numpy import load_file

        np.testing.assert_array_equal(load_file(path)["model.0.weight"], ours[0][0].weight.detach())
    assert digest_of(state) == digest_of(like)
    assert theirs[1].state_dict()["param_groups"] == ours[1].state_dict()["param_groups"]
    for model, optimizer, scheduler in (ours, theirs):
        torch.manual_seed(0)
        optimizer.zero_grad()
        functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        scheduler.step()
    assert digest_of(TorchState(ours)) == digest_of(TorchState(theirs))


def test_types_that_numpy_has_not_and_tied_weights_travel() -> None:
    ours, theirs = Odd(), Odd()
    state, like = TorchState((ours,)), TorchState((theirs,))
    with torch.no_grad():
        ours.small.mul_(1.5)
        ours.encode.weight.normal_()
        ours.mask[3] = False
    state.commit()
    through(state, like)
    assert torch.equal(theirs.small, ours.small) and theirs.small.dtype == torch.bfloat16
    assert torch.equal(theirs.mask, ours.mask)
    assert theirs.decode.weight is theirs.encode.weight
    assert [name for name, _ in state.leaves()].count("model.encode.weight") == 0  # decode.weight stands for both


@pytest.mark.parametrize(
    "kind",
    ["StepLR", "OneCycleLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "SequentialLR", "LambdaLR"],
)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad", "RMSprop", "NAdam", "Adafactor"])
def test_optimizers_and_schedulers_of_pytorch_travel(optimizer: str, kind: str) -> None:
    def made() -> tuple[Any, ...]:
        model = network()
        options = {"momentum": 0.9} if optimizer == "SGD" else {}
        one = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **options)
        schedules = torch.optim.lr_scheduler
        make = {
            "StepLR": lambda: schedules.StepLR(one, 2),
            "OneCycleLR": lambda: schedules.OneCycleLR(one, 0.1, total_steps=10, cycle_momentum=False),
            "CosineAnnealingWarmRestarts": lambda: schedules.CosineAnnealingWarmRestarts(one, 3),
            "ReduceLROnPlateau": lambda: schedules.ReduceLROnPlateau(one, patience=0),
            "SequentialLR": lambda: schedules.SequentialLR(
                one, [schedules.ConstantLR(one, 0.1), schedules.ExponentialLR(one, 0.9)], [2]
            ),
            "LambdaLR": lambda: schedules.LambdaLR(one, lambda step: 0.5**step),
        }
        return model, one, make[kind]()

    def step(objects: tuple[Any, ...], count: int) -> None:
        model, one, scheduler = objects
        for number in range(count):
            one.zero_grad()
            functional.cross_entropy(model(X), Y).backward()
            one.step()
            scheduler.step(*([float(number)] if kind == "ReduceLROnPlateau" else []))

    ours, theirs = made(), made()
    step(ours, 3)
    through(TorchState(ours), TorchState(theirs))
    step(ours, 2)
    step(theirs, 2)
    assert digest_of(TorchState(ours)) == digest_of(TorchState(theirs))


def test_the_seal_covers_all_of_it() -> None:
    objects = everything()
    train(objects, 2)
    state = TorchState(objects)
    before = digest_of(state)
    model, optimizer, scheduler = objects

    def changed(change: Any) -> bool:
        kept = [(name, np.array(value)) for name, value in state.leaves()]
        change()
        state.commit()
        different = digest_of(state) != before
        state.adopt(kept)
        assert digest_of(state) == before
        return different

    assert changed(lambda: model[0].weight.data[0].add_(1))
    assert changed(lambda: model[1].running_var.add_(1))
    assert changed(lambda: optimizer.state[model[0].weight]["exp_avg"].add_(1))
    assert changed(lambda: optimizer.param_groups[0].update(lr=0.3))
    assert changed(lambda: setattr(scheduler, "last_epoch", 9))
    state.flip_bit()
    assert digest_of(state) != before


def test_lanes_do_not_change_what_others_are_given() -> None:
    """A survivor hands its state out while it computes the lanes of the dead."""
    model = network()
    state = TorchState((model,))
    before = digest_of(state)

    def work() -> None:
        model(X).sum().backward()
        assert digest_of(state) == before
        assert not torch.equal(model[1].running_mean, torch.zeros(8))

    state.lane(work, (0, 0, 0))


@pytest.mark.parametrize("reduction", ["float", "exact"])
def test_bf16_and_sparse_gradients(reduction: str) -> None:
    """Autocast, weights of bf16, and an embedding with sparse gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2))
    half = nn.Linear(2, 2, dtype=torch.bfloat16)
    words = torch.randint(0, 10, (64, 2))
    with mm.Job(words, batch=64, lanes=4, reduction=reduction) as job:
        job.share(model, half)

        def backward(lane: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                loss = half(model(lane)).square().mean() / job.lanes
            loss.backward()
            return loss

        loss = job.sum(backward)
        assert loss > 0
        assert half.weight.grad.dtype == torch.bfloat16
        assert model[0].weight.grad.shape == (10, 4) and not model[0].weight.grad.is_sparse
        job.commit(loss=loss)


def test_a_batch_that_is_not_finite_is_skipped_with_its_statistics() -> None:
    bad = X.clone()
    bad[5] = float("inf")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mm.Job((bad, Y), batch=32, lanes=4, reduction="exact", nonfinite="skip") as job:
        job.share(model, optimizer)
        for _ in job.steps(3):
            job.sum(lambda lane: functional.cross_entropy(model(lane[0]), lane[1]).backward())
            optimizer.step()
            job.commit()
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert model[1].num_batches_tracked == job.step - 1


class Squares(torch.utils.data.Dataset):  # type: ignore[misc, name-defined, type-arg]
    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> Any:
        return torch.tensor([float(number)]), number**2


def test_datasets_of_pytorch_are_data() -> None:
    job = mm.Job(Squares(), batch=8, lanes=2)
    x, y = job.lane(1)
    assert x.shape == (4, 1) and torch.equal(x[:, 0].long() ** 2, y)
    x, y = mm.Job(torch.utils.data.TensorDataset(X, Y), batch=8, lanes=2).lane(0)
    assert x.shape == (4, 6) and torch.equal(x[:, :3].argmax(1), y)


def test_warm_leaves_no_trace() -> None:
    model = network()
    seen = []
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        job.share(model, warm=lambda model, lane: seen.append(model(lane[0]).sum().backward()))
        assert len(seen) == 1
        assert all(p.grad is None for p in model.parameters())
        assert torch.equal(model[1].running_mean, torch.zeros(8))


class Holder:
    """Anything with a state dict can be shared."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_all_that_json_can_say_travels_and_the_rest_is_refused() -> None:
    value = {1: (1.5, None, True, "ä"), "b": [float("inf"), np.arange(3)], "c": np.float32(2.5), (1, 2): -(2**70)}
    model, ours, theirs = nn.Linear(1, 1), Holder(value), Holder(None)
    through(TorchState((model, ours)), TorchState((model, theirs)))
    assert repr(theirs.value[1]) == repr(value[1]) and theirs.value[(1, 2)] == -(2**70)
    assert theirs.value["b"][0] == float("inf") and list(theirs.value["b"][1]) == [0, 1, 2]
    assert theirs.value["c"] == 2.5
    with pytest.raises(mm.JobError, match=r"holder\.value of the shared state is a object"):
        TorchState((model, Holder(object())))


def test_mistakes_are_one_sentence() -> None:
    model, other = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = mm.Job((X, Y), batch=32, lanes=4)
    with pytest.raises(mm.JobError, match="share the model that holds them"):
        job.share(other, optimizer)
    with pytest.raises(mm.JobError, match=r"share the torch\.nn\.Module too"):
        job.share(optimizer)
    with pytest.raises(mm.JobError, match="got a dict together with PyTorch objects"):
        job.share(model, {})
    with pytest.raises(mm.JobError, match=r"before job\.share"):
        job.sum(lambda _: None)
    job.share(np.zeros(1, np.float32))
    with pytest.raises(mm.JobError, match="return gradients, or share a model"):
        job.sum(lambda _: None)
    with pytest.raises(mm.JobError, match="same script on all workers"):
        through(TorchState((model,)), TorchState((nn.Linear(2, 2),)))
    with pytest.raises(mm.JobError, match="but this worker shares model;"):
        through(TorchState((model, optimizer)), TorchState((other,)))


def test_nothing_is_pickled() -> None:
    state = TorchState(everything())
    name, text = state.leaves()[-1]
    assert name == "objects" and json.loads(bytes(text))["optimizer"]


def wrapped(objects: tuple[Any, ...], epochs: int, *, lanes: int = 4, zero: str = "first") -> mm.Job:
    model, optimizer = objects[:2]
    with mm.Job((X, Y), batch=32, lanes=lanes, reduction="exact") as job:
        clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # noqa: E731
        model, optimizer, *schedulers = mm.torch.wrap(model, optimizer, job, *objects[2:], after_sum=clip)
        assert (model, optimizer) == objects[:2]
        sampler = mm.torch.Sampler(job)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                if zero == "first":
                    optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                if zero == "late":
                    optimizer.zero_grad()
                loss.backward()
                optimizer.step(loss=loss)
                for scheduler in schedulers:
                    scheduler.step()
    return job


@pytest.mark.parametrize("zero", ["first", "late", "never"])
def test_a_wrapped_loop_gives_the_same(zero: str) -> None:
    """Up to the last digits: gradients four times as large lie on another grid."""
    ours, theirs = everything(), everything()
    assert wrapped(ours, 2, zero=zero).step == train(theirs, 6).step == 6
    for name, value in ours[0].state_dict().items():
        torch.testing.assert_close(theirs[0].state_dict()[name], value, msg=name)
    assert ours[2].state_dict() == theirs[2].state_dict()


def test_a_scheduler_of_epochs_is_in_the_last_step_of_each() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        model, optimizer, scheduler = mm.torch.wrap(model, optimizer, job, scheduler)
        sampler = mm.torch.Sampler(job)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for ids in sampler:
                functional.cross_entropy(model(X[ids]), Y[ids]).backward()
                optimizer.step()
            scheduler.step()
            scheduler.step()  # nothing was updated since
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.5, 0.25, 0.125]


def test_an_epoch_holds_the_steps_that_begin_in_it() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mm.Job((X, Y), batch=40, lanes=4) as job:
        mm.torch.wrap(model, optimizer, job)
        sampler = mm.torch.Sampler(job)
        counts, seen = [], []
        for epoch in range(5):
            sampler.set_epoch(epoch)
            counts.append(len(sampler))
            for ids in sampler:
                seen.append(ids)
                model(X[ids]).sum().backward()
                optimizer.step()
    assert counts == [12, 8, 12, 8, 8]  # 96 samples are 2.4 batches
    assert len(seen) == sum(counts)
    assert seen == [job.training.lanes.ids(step, lane).tolist() for step in range(12) for lane in range(4)]


def test_a_sampler_goes_on_from_its_state() -> None:
    model = nn.Linear(6, 3)
    job = mm.Job((X, Y), batch=32, lanes=4)
    sampler = mm.torch.Sampler(job)
    sampler.load_state_dict({"epoch": 1, "step": 4})
    with job:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mm.torch.wrap(model, optimizer, job)
        with pytest.raises(mm.JobError, match=r"load it before mm\.torch\.wrap"):
            sampler.load_state_dict(sampler.state_dict())
        done = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for ids in sampler:
                model(X[ids]).sum().backward()
                optimizer.step()
                done.append(epoch)
        assert done == [1] * 8 + [2] * 12
        assert sampler.state_dict() == {"epoch": 2, "step": 9}


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["sampler", "loader"])
def test_a_wrapped_loop_begins_where_the_job_stands(old: bool, kind: str, capsys: Any) -> None:
    """In a newcomer or a resumed run, what follows a past epoch (an evaluation) is not done again."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        job.training.step = 4
        mm.torch.wrap(model, optimizer, job)
        sampler = mm.torch.Sampler(job) if kind == "sampler" else mm.torch.Loader(job, num_workers=0)
        evaluated = []
        for epoch in range(3) if old else job.epochs(3):
            if old:
                sampler.set_epoch(epoch)
            for found in sampler:
                inputs = found[0] if kind == "loader" else X[found]
                model(inputs).sum().backward()
                optimizer.step()
            evaluated.append(epoch)
    assert job.step == 9
    assert evaluated == ([0, 1, 2] if old else [1, 2])
    assert capsys.readouterr().out.count("job.epochs(n)") == old


def test_a_schedule_can_be_made_of_the_length_of_a_loader() -> None:
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        sampler = mm.torch.Sampler(job)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_sampler=sampler)
        assert len(loader) == len(sampler) == len(mm.torch.Loader(job)) == 12


PLAIN = """
from torch.utils.data import DataLoader
loader = DataLoader(dataset, batch_size=32, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
"""
WRAPPED = """
import meshmend as mm
with mm.Job(dataset, batch=32, lanes=4) as job:
    model, optimizer = mm.torch.wrap(model, optimizer, job)
    loader = mm.torch.Loader(job, num_workers=0)
    for epoch in job.epochs(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
"""


def test_five_lines_of_a_script_for_one_process_change() -> None:
    """As `benchmarks/peers` counts them; for DDP it is eight."""
    old, new = ([line.strip() for line in text.strip().splitlines()] for text in (PLAIN, WRAPPED))
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    assert sum(max(b - a, d - c) for tag, a, b, c, d in blocks if tag != "equal") == 5
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset, loss_fn = torch.utils.data.TensorDataset(X, Y), nn.CrossEntropyLoss()
    names = {"model": model, "optimizer": optimizer, "dataset": dataset, "loss_fn": loss_fn}
    exec(WRAPPED, names)
    assert names["job"].step == 9  # type: ignore[attr-defined]


def test_mistakes_in_a_wrapped_loop_are_one_sentence() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = mm.Job((X, Y), batch=32, lanes=4)
    sampler = mm.torch.Sampler(job)
    with pytest.raises(mm.JobError, match="wrap model and optimizer first"):
        next(iter(sampler))
    mm.torch.wrap(model, optimizer, job)
    with pytest.raises(mm.JobError, match="call set_epoch"):
        next(iter(sampler))
    sampler.set_epoch(2)
    with pytest.raises(mm.JobError, match="epoch 2 begins with step 6, but the job is at step 0"):
        next(iter(sampler))
    with pytest.raises(mm.JobError, match=r"take the batches from mm\.torch\.Sampler"):
        optimizer.step()
    sampler.set_epoch(0)
    lanes = iter(sampler)
    next(lanes)
    with pytest.raises(mm.JobError, match="without gradient accumulation"):
        next(lanes)
    with pytest.raises(mm.JobError, match="optimizer that takes none"):
        optimizer.step(lambda: None)
    optimizer.step()
    with pytest.raises(mm.JobError, match="the loop ended in the middle of step 0"), job:
        pass


class Noisy(torch.utils.data.Dataset):  # type: ignore[misc, name-defined, type-arg]
    """Samples that are drawn with random numbers."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> Any:
        return X[number] + torch.rand(6) + float(np.random.rand()) + random.random(), Y[number]


def read_ahead(mine: tuple[int, ...], workers: int) -> int:
    model, optimizer, _ = everything()
    with mm.Job(Noisy(), batch=32, lanes=4, reduction="exact") as job:
        job.training.session.mine = mine
        mm.torch.wrap(model, optimizer, job)
        loader = mm.torch.Loader(job, num_workers=workers)
        for epoch in range(2):
            loader.set_epoch(epoch)
            for x, y in loader:
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    assert job.step == 6
    return digest_of(TorchState((model, optimizer)))


def test_reading_ahead_changes_nothing() -> None:
    """Whoever reads a lane: a process that guessed right, or this one. By itself, since readers are forked."""
    code = """
from tests.job.frameworks.test_torch import read_ahead, torch
torch.set_num_threads(1)
every = (0, 1, 2, 3)
print(len({read_ahead(every, 0), *(read_ahead(mine, 2) for mine in (every, (1, 2), ()))}))
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["1"], done.stderr


def test_a_loader_reads_a_pipeline_in_threads_and_gives_tensors() -> None:
    def noisy(sample: Any, rng: np.random.Generator) -> Any:
        return sample[0] + rng.normal(size=6).astype(np.float32), sample[1]

    def trained(ahead: int, cache: bool) -> int:
        model, optimizer, _ = everything()
        data = mm.data.arrays(X.numpy(), Y.numpy())
        data = (data.cache("1MB") if cache else data).map(noisy).read_ahead(ahead)
        with mm.Job(data, batch=32, lanes=4, reduction="exact") as job:
            mm.torch.wrap(model, optimizer, job)
            for _ in job.epochs(2):
                for x, y in mm.torch.Loader(job):
                    assert isinstance(x, torch.Tensor) and y.dtype == torch.int64
                    functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
        return digest_of(TorchState((model, optimizer)))

    assert len({trained(0, False), trained(5, True)}) == 1


def test_a_stream_of_pytorch_is_refused_with_what_to_give_instead() -> None:
    class Endless(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined, type-arg]
        def __iter__(self) -> Any:
            return iter(X)

    with pytest.raises(mm.JobError, match=r"mm\.data\.stream\(open, lengths\)"):
        mm.Job(Endless(), batch=8, lanes=2)
