"""Sharded updates alone, without `meshmend run`: the same weights as the loop without, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshmend as mm
from meshmend.errors import JobError, NotFinite
from meshmend.job.slices import checkpoints as slice_checkpoints
from tests.job.slices.test_holder import init, update

X = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)
ADAM = mm.optimizer(init, update)
START = {"w": np.linspace(-1, 1, 3000, dtype=np.float32).reshape(50, 60), "b": np.zeros(7, np.float32)}


def gradient(weights: Any, lane: Any) -> dict[str, Any]:
    return {name: np.float32(lane.sum()) * value + np.float32(0.5) for name, value in weights.items()}


def job(**how: Any) -> mm.Job:
    return mm.Job(X, batch=8, lanes=4, **{"reduction": "exact", "check": False, **how})


def unsharded(steps: int, **how: Any) -> dict[str, Any]:
    with job(**how) as one:
        weights, state = one.share((START, {name: init(value) for name, value in START.items()}))
        for _ in one.steps(steps):
            sums = one.sum(lambda lane, weights=weights: gradient(weights, lane))
            done = {name: update(weights[name], sums[name], state[name]) for name in weights}
            weights, state = ({name: pair[which] for name, pair in done.items()} for which in (0, 1))
            one.commit((weights, state))
    return dict(weights)


def test_alone_the_weights_are_those_of_the_loop_without_sharding() -> None:
    with job() as one:
        weights = one.share(START, optimizer=ADAM)
        for _ in one.steps(5):
            weights, count = one.update(lambda lane, weights=weights: (gradient(weights, lane), np.int32(len(lane))))
            one.commit(count=count)
            assert count == 8
    for name, value in unsharded(5).items():
        assert weights[name].tobytes() == value.tobytes() and weights[name].shape == START[name].shape
    with pytest.raises(ValueError, match="read-only"):
        weights["w"][0] = 1
    assert START["b"].sum() == 0


def test_sums_may_be_float32_numbers() -> None:
    with job(reduction="float") as one:
        weights = one.share(START, optimizer=ADAM)
        for _ in one.steps(5):
            weights, count = one.update(lambda lane, weights=weights: (gradient(weights, lane), np.int32(len(lane))))
            one.commit(count=count)
            assert count == 8
    expected = unsharded(5, reduction="float")
    assert all(weights[name].tobytes() == value.tobytes() for name, value in expected.items())
    assert weights["w"].tobytes() != unsharded(5)["w"].tobytes()


def test_a_function_may_return_gradients_alone() -> None:
    with job() as one:
        weights = one.share(START, optimizer=ADAM, buddies=1)
        for _ in one.steps(2):
            weights = one.update(lambda lane, weights=weights: gradient(weights, lane))
            one.commit()
    assert weights["b"].tobytes() == unsharded(2)["b"].tobytes()


def test_a_checkpoint_with_a_name_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with job() as one:
        weights = one.share(START, optimizer=ADAM)
        for _ in one.steps(2):
            weights = one.update(lambda lane, weights=weights: gradient(weights, lane))
            one.commit()
        one.save("best", loss=3.0)
        assert one.saved("best") == {"loss": 3.0}
    found = mm.load_checkpoint(tmp_path, "best", like=START)
    assert all(found[name].tobytes() == weights[name].tobytes() for name in START)


def test_a_checkpoint_that_cannot_be_written_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slice_checkpoints, "SLICES_WAIT", 0.01)
    (tmp_path / "checkpoints").touch()
    with job() as one:
        weights = one.share(START, optimizer=ADAM)
        for step in one.steps(2):
            weights = one.update(lambda lane, weights=weights: gradient(weights, lane))
            one.commit()
            if step == 0:
                one.save("best")
    said = capsys.readouterr().out
    assert "cannot write slices" in said and "there is no checkpoint of it" in said
    assert weights["b"].tobytes() == unsharded(2)["b"].tobytes()


def test_steps_with_nan_are_skipped_or_end_the_job() -> None:
    def poisoned(weights: Any, lane: Any, bad: bool) -> dict[str, Any]:
        return {name: value * np.float32(np.nan if bad else 1) for name, value in gradient(weights, lane).items()}

    with job(nonfinite="skip") as one:
        weights = one.share(START, optimizer=ADAM)
        for _ in one.steps(3):
            weights = one.update(lambda lane, weights=weights: poisoned(weights, lane, one.step == 1))
            one.commit()
        assert one.step >= 3 and np.isfinite(weights["w"]).all()
    with pytest.raises(NotFinite), job() as one:
        weights = one.share(START, optimizer=ADAM)
        one.update(lambda lane: poisoned(weights, lane, True))


def norm_bound(weights: Any, gradients: Any, state: Any) -> Any:
    return weights - gradients / np.float32(1 + np.linalg.norm(gradients)), state


def broken(weights: Any, gradients: Any, state: Any) -> Any:
    del weights, gradients, state
    raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"optimizer": mm.optimizer(init, norm_bound)}, "cut into slices"),
        ({"optimizer": mm.optimizer(init, broken)}, "ZeroDivisionError"),
        ({"optimizer": "adam"}, "mm.optimizer"),
        ({"optimizer": ADAM, "buddies": -1}, "buddies=-1"),
        ({"buddies": 1}, "without an optimizer"),
    ],
)
def test_optimizers_that_cannot_be_cut_are_refused(how: dict[str, Any], said: str) -> None:
    with job() as one, pytest.raises(JobError, match=said) as caught:
        one.share(START, **how)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([{"w": np.zeros(3)}], "float64"),
        ([{"n": np.zeros((), np.int32)}], "int32"),
        ([{"w": 1.0}], "float"),
        ([{}], "no weights"),
        ([START, START], "2 states"),
    ],
)
def test_weights_that_cannot_be_cut_are_refused(state: list[Any], said: str) -> None:
    with job() as one, pytest.raises(JobError, match=said):
        one.share(*state, optimizer=ADAM)


def test_words_in_another_order_or_of_another_kind_of_job_are_refused() -> None:
    with job() as one:
        weights = one.share(START, optimizer=ADAM)
        with pytest.raises(JobError, match=r"job\.update"):
            one.sum(lambda lane: gradient(weights, lane))
        with pytest.raises(JobError, match="same names and shapes"):
            one.update(lambda lane: {"w": gradient(weights, lane)["w"]})
        with pytest.raises(JobError, match=r"before job\.update"):
            one.commit()
        one.update(lambda lane, weights=weights: gradient(weights, lane))
        with pytest.raises(JobError, match="twice"):
            one.update(lambda lane, weights=weights: gradient(weights, lane))
        with pytest.raises(JobError, match="metrics only"):
            one.commit(weights)
    with job() as one:
        one.share(START)
        with pytest.raises(JobError, match="optimizer="):
            one.update(lambda lane: lane)
    for how in ({"reduction": "float", "wire": "bf16"}, {"reduction": "float", "nonfinite": "skip"}):
        with job(**how) as one, pytest.raises(JobError, match=r"sharded updates ") as caught:
            one.share(START, optimizer=ADAM)
        assert "\n" not in str(caught.value)
    with pytest.raises(JobError, match="two functions"):
        mm.optimizer(init, None)  # type: ignore[arg-type]


@pytest.mark.jobs
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformations_that_look_at_tensors_get_whole_ones() -> None:
    """Muon and LAMB of optax; clipping by the global norm looks at all tensors at once, and is refused."""
    import jax
    import optax
    from optax import contrib

    start = {"w": jax.numpy.linspace(-1, 1, 3000).reshape(50, 60), "b": jax.numpy.zeros(7)}
    for made in (contrib.muon(0.01), optax.lamb(0.01)):
        with job() as one:
            weights = one.share(start, optimizer=made, slices="tensors")
            for _ in one.steps(3):
                weights = one.update(lambda lane, weights=weights: gradient(weights, lane))
                one.commit()
        with job() as one:
            plain, state = one.share((start, made.init(start)))
            for _ in one.steps(3):
                sums = one.sum(lambda lane, plain=plain: gradient(plain, lane))
                updates, state = made.update(sums, state, plain)
                plain = optax.apply_updates(plain, updates)
                one.commit((plain, state))
        for name in start:
            np.testing.assert_allclose(weights[name], plain[name], rtol=1e-4, atol=1e-5)
    with job() as one, pytest.raises(JobError, match=r"mm\.clipped"):
        one.share(start, optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), slices="tensors")
