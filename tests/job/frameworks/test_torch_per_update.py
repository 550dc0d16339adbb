"""A wrapped loop runs once per lane: averages, scalers and schedules in it advance once per update all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import meshmend as mm
from meshmend.job.frameworks.torch import TorchState

X = torch.from_numpy(np.random.default_rng(0).normal(size=(96, 6)).astype(np.float32))
Y = X[:, :3].argmax(1)
nn, cross_entropy = torch.nn, torch.nn.functional.cross_entropy
STEPS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def average_of(model: Any) -> Any:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]


def wrapped(model: Any, optimizer: Any, *more: Any, body: Callable[..., None], **options: Any) -> mm.Job:
    """Two epochs of three steps, each of four lanes; `body` is called with the loss and what `wrap` returned."""
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        found = mm.torch.wrap(model, optimizer, job, *more, **options)
        for _ in job.epochs(2):
            for x, y in mm.torch.Loader(job, num_workers=0):
                optimizer.zero_grad()
                body(cross_entropy(model(x), y), *found)
        assert job.step + 1 == STEPS
    return job


def weights(*models: Any) -> list[bytes]:
    return [value.numpy().tobytes() for model in models for value in model.state_dict().values()]


def test_an_average_of_the_weights_is_updated_once_per_update() -> None:
    """As one that is updated between sum and commit."""

    def body(loss: Any, _model: Any, optimizer: Any, average: Any) -> None:
        loss.backward()
        optimizer.step()
        average.update_parameters(model)

    model, optimizer = network()
    average = average_of(model)
    wrapped(model, optimizer, average, body=body)
    assert average.n_averaged == STEPS

    plain, other = network()
    beside = average_of(plain)
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        job.share(plain, other, beside)
        for _ in job.steps(STEPS):
            job.sum(lambda lane: cross_entropy(plain(lane[0]), lane[1]).backward())
            for parameter in plain.parameters():
                parameter.grad /= 4
            other.step()
            beside.update_parameters(plain)
            job.commit()
    assert weights(model, average) == weights(plain, beside)


def test_an_average_has_no_gradients_to_sum() -> None:
    model, optimizer = network()
    state = TorchState((model, optimizer, average_of(model)))
    tree = state.lane(lambda: cross_entropy(model(X), Y).backward(), (0, 0, 0))
    assert {name.split(".")[0] for name in tree["grads"]} == {"model"}
    assert {name.split(".")[0] for name, _ in state.leaves()} >= {"model", "model2"}  # but it travels


def test_what_follows_an_update_is_called_once_for_each() -> None:
    seen = []

    def body(loss: Any, _model: Any, optimizer: Any) -> None:
        loss.backward()
        optimizer.step()

    model, optimizer = network()
    changed = lambda: seen.append(weights(model))  # noqa: E731
    wrapped(model, optimizer, body=body, after_update=changed)
    assert len(seen) == STEPS and seen[-1] == weights(model) != seen[-2]


def scaled(bad: int | None = None, *, enabled: bool = True) -> tuple[Any, Any, list[list[bytes]]]:
    """A model trained with a scaler, and its weights before each update; the loss of the lane `bad` is Inf."""
    lanes, before = iter(range(4 * STEPS)), []

    def body(loss: Any, _model: Any, optimizer: Any, scaler: Any) -> None:
        loss = loss * float("inf") if next(lanes) == bad else loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    model, optimizer = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4, enabled=enabled)
    wrapped(model, optimizer, scaler, body=body, after_sum=lambda: before.append(trained(model)))
    return model, scaler, before


def trained(model: Any) -> list[bytes]:
    return [value.detach().numpy().tobytes() for value in model.parameters()]


def test_a_scaler_changes_no_bit_and_grows_by_updates() -> None:
    """Its factors are powers of two, so float32 gradients come out as they went in."""
    (plain, off, _), (model, scaler, _) = scaled(enabled=False), scaled()
    assert weights(plain) == weights(model)
    assert off.get_scale() == 1.0 and scaler.get_scale() == 2048.0  # after 4 of 6 updates, not of 24 lanes
    assert scaler.state_dict()["_growth_tracker"] == 2


def test_inf_in_one_lane_skips_the_update() -> None:
    """The last one: the weights are those before it, and the scale that had doubled is halved."""
    (model, scaler, _), (_, _, before) = scaled(bad=4 * STEPS - 2), scaled()
    assert len(before) == STEPS and trained(model) == before[-1]
    assert scaler.get_scale() == 1024.0


def test_gradients_are_unscaled_when_they_are_clipped() -> None:
    def body(loss: Any, model: Any, optimizer: Any, scaler: Any) -> None:
        with pytest.raises(mm.JobError, match="after_sum"):
            scaler.unscale_(optimizer)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        del model

    norms = []

    def clip() -> None:
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))

    model, optimizer = network()
    wrapped(model, optimizer, torch.amp.GradScaler("cpu"), body=body, after_sum=clip)
    assert len(norms) == STEPS and all(0 < norm < 10 for norm in norms)


@pytest.mark.parametrize("options", [{"reduction": "exact"}, {"nonfinite": "skip"}])
def test_a_scaler_needs_sums_that_may_be_inf(options: dict[str, str]) -> None:
    model, optimizer = network()
    scaler = torch.amp.GradScaler("cpu")
    with mm.Job((X, Y), batch=32, lanes=4, **options) as job, pytest.raises(mm.JobError, match="nonfinite="):
        mm.torch.wrap(model, optimizer, job, scaler)


def test_an_evaluation_in_training_mode_leaves_the_statistics_as_they_are() -> None:
    """Each worker evaluates other chunks, so their batch-norm statistics would differ."""
    model, optimizer = network()
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        job.share(model, optimizer)
        for _ in job.steps(2):
            job.sum(lambda lane: cross_entropy(model(lane[0]), lane[1]).backward())
            optimizer.step()
            job.commit()
        before = weights(model)
        assert job.evaluate((X, Y), lambda chunk: (model(chunk[0]).argmax(1) == chunk[1]).sum()) > 0
        assert weights(model) == before


@pytest.mark.parametrize(("when", "said"), [("before", 0), ("after", 1)])
def test_a_schedule_that_advances_after_the_commit_is_told_once(when: str, said: int, capsys: Any) -> None:
    """A newcomer would not have it, nor a run that is resumed there."""
    model, optimizer = network()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        job.share(model, optimizer, scheduler)
        for epoch in job.epochs(4):
            for step in job.steps():
                job.sum(lambda lane: cross_entropy(model(lane[0]), lane[1]).backward())
                optimizer.step()
                if when == "before" and step + 1 == job.steps_in(epoch + 1):
                    scheduler.step()
                job.commit()
            if when == "after":
                scheduler.step()
    assert capsys.readouterr().out.count("the optimizer was changed after job.commit") == said


@pytest.mark.parametrize(("evaluated", "said"), [(False, 0), (True, 1)])
def test_a_wrapped_loop_commits_what_follows_its_last_lane(evaluated: bool, said: int, capsys: Any) -> None:
    """Unless workers have met since, as in an evaluation: then the step is committed already."""
    model, optimizer = network()
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        plain = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        _, _, scheduler = mm.torch.wrap(model, optimizer, job, plain)
        for _ in job.epochs(3):
            for x, y in mm.torch.Loader(job, num_workers=0):
                cross_entropy(model(x), y).backward()
                optimizer.step()
            if evaluated:
                job.evaluate((X, Y), lambda chunk: len(chunk[1]))
            scheduler.step()
    assert capsys.readouterr().out.count("was changed after job.commit") == said


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")  # PyTorch's, as no update is made by then
@pytest.mark.parametrize("before", [False, True])
def test_a_schedule_that_was_not_wrapped_is_refused_with_the_second_lane(before: bool) -> None:
    """It would advance once per lane, and further on a worker with more of them."""
    model, optimizer = network()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def body(loss: Any, _model: Any, optimizer: Any) -> None:
        loss.backward()
        if before:
            scheduler.step()
        optimizer.step()
        if not before:
            scheduler.step()

    with pytest.raises(mm.JobError, match="the learning rate changed between two lanes of step 0: give"):
        wrapped(model, optimizer, body=body)


def test_a_rate_may_depend_on_the_step() -> None:
    model, optimizer = network()
    rates = []
    with mm.Job((X, Y), batch=32, lanes=4) as job:
        mm.torch.wrap(model, optimizer, job)
        for _ in job.epochs(2):
            for x, y in mm.torch.Loader(job, num_workers=0):
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + job.step)
                cross_entropy(model(x), y).backward()
                optimizer.step()
                rates.append(optimizer.param_groups[0]["lr"])
    assert len(set(rates)) == STEPS
