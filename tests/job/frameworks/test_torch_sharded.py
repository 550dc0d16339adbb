"""PyTorch's sharded optimizer alone: the weights of the unsharded loop, bit for bit, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meshmend as mm
from meshmend.errors import JobError

X = np.random.default_rng(1).normal(size=(64, 12)).astype(np.float32)
CLASSES = {
    "SGD": {"lr": 1e-4, "momentum": 0.9, "dampening": 0.5}, "Adam": {}, "AdamW": {"amsgrad": True}, "Adagrad": {},
    "RMSprop": {"momentum": 0.9}, "NAdam": {}, "RAdam": {}, "Adamax": {}, "Adadelta": {}, "Rprop": {}, "ASGD": {},
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of PyTorch wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(12, 150), torch.nn.BatchNorm1d(150), torch.nn.Linear(150, 12))


def trained(optimizer: Any, net: Any, steps: int = 4, sharded: bool = True) -> bytes:
    with mm.Job(X, batch=16, lanes=4, reduction="exact", check=False) as job:
        job.share(net, optimizer)

        def backward(lane: Any) -> Any:
            rows = torch.from_numpy(lane)
            loss = ((net(rows) - rows) ** 2).sum()
            loss.backward()
            return loss

        for _ in job.steps(steps):
            loss = (job.update if sharded else job.sum)(backward)
            if not sharded:
                optimizer.step()
            job.commit(loss=loss)
    return b"".join(value.detach().numpy().tobytes() for value in net.state_dict().values())


@pytest.mark.parametrize("name", CLASSES)
def test_every_elementwise_class_gives_the_bits_of_the_unsharded_loop(name: str) -> None:
    kind, more = getattr(torch.optim, name), CLASSES[name]
    one, two = model(), model()
    expected = trained(kind(one.parameters(), **more), one, sharded=False)
    assert trained(mm.torch.ShardedOptimizer(two.parameters(), kind, **more), two) == expected


def test_clipping_is_that_of_pytorch_up_to_rounding() -> None:
    one, two = model(), model()
    plain = torch.optim.SGD(one.parameters(), lr=0.1)
    with mm.Job(X, batch=16, lanes=4, reduction="exact", check=False) as job:
        job.share(one, plain)
        for _ in job.steps(3):
            job.sum(lambda lane: (one(torch.from_numpy(lane)) ** 2).sum().backward())
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.5)
            plain.step()
            job.commit()
    with mm.Job(X, batch=16, lanes=4, reduction="exact", check=False) as job:
        job.share(two, mm.torch.ShardedOptimizer(two.parameters(), torch.optim.SGD, lr=0.1, clip=0.5))
        for _ in job.steps(3):
            job.update(lambda lane: (two(torch.from_numpy(lane)) ** 2).sum().backward())
            job.commit()
    for mine, theirs in zip(two.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_whole_tensors_for_what_looks_at_them() -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this version has no Muon")
    one, two = (
        torch.nn.Sequential(torch.nn.Linear(12, 40, bias=False), torch.nn.Linear(40, 12, bias=False)) for _ in "12"
    )
    two.load_state_dict(one.state_dict())
    expected = trained(torch.optim.Muon(one.parameters()), one, sharded=False)
    assert trained(mm.torch.ShardedOptimizer(two.parameters(), torch.optim.Muon, slices="tensors"), two) == expected


def test_a_named_checkpoint_holds_the_state_dicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = model()
    with mm.Job(X, batch=16, lanes=4, reduction="exact", check=False) as job:
        job.share(net, mm.torch.ShardedOptimizer(net.parameters(), torch.optim.Adam))
        for _ in job.steps(2):
            job.update(lambda lane: net(torch.from_numpy(lane)).sum().backward())
            job.commit()
        job.save("best")
    found = mm.load_checkpoint(tmp_path, "best")["model"]
    assert all(torch.equal(found[name], value) for name, value in net.state_dict().items())


class Unused(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Has a parameter without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = torch.nn.Linear(12, 12), torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.used(x)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda net: mm.torch.ShardedOptimizer(net.parameters(), torch.optim.LBFGS), "raised"),
        (lambda net: mm.torch.ShardedOptimizer(net.parameters(), torch.optim.Adafactor), "cut into slices"),
        (lambda net: mm.torch.ShardedOptimizer(net.parameters(), "adam"), "give a class"),
        (lambda net: mm.torch.ShardedOptimizer(net.parameters(), mm.lamb(0.1), lr=0.1), "lr="),
        (lambda net: mm.torch.ShardedOptimizer(net.parameters(), torch.optim.SGD, clip=-1), "norm=-1"),
        (lambda net: mm.torch.ShardedOptimizer(net.parameters(), torch.optim.SGD, slices="rows"), "slices='rows'"),
        (lambda net: mm.torch.ShardedOptimizer(net[0].parameters(), torch.optim.SGD), "does not have it"),
        (lambda _: mm.torch.ShardedOptimizer(model().parameters(), torch.optim.SGD), "no shared model"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_one_sentence(make: Any, said: str) -> None:
    net = model()
    with mm.Job(X, batch=16, lanes=4, reduction="exact") as job, pytest.raises(JobError, match=said) as caught:
        job.share(net, make(net))
    assert "\n" not in str(caught.value)


def test_words_of_another_kind_of_loop_are_refused() -> None:
    net = model()
    optimizer = mm.torch.ShardedOptimizer(net.parameters(), torch.optim.SGD)
    with mm.Job(X, batch=16, lanes=4, reduction="exact", check=False) as job:
        with pytest.raises(JobError, match="give them to"):
            job.share(net, optimizer, buddies=1)
        job.share(net, optimizer=optimizer)
        with pytest.raises(JobError, match=r"job\.update"):
            job.sum(lambda lane: net(torch.from_numpy(lane)).sum().backward())
        with pytest.raises(JobError, match="remove the call"):
            optimizer.step()
    net = model()
    optimizer = mm.torch.ShardedOptimizer(net.parameters(), torch.optim.SGD)
    with mm.Job(X, batch=16, lanes=4, reduction="exact") as job, pytest.raises(JobError, match="clip="):
        mm.torch.wrap(net, optimizer, job, after_sum=lambda: None)


def test_a_parameter_without_a_gradient_is_named() -> None:
    net = Unused()
    with (
        pytest.raises(JobError, match=r"model\.other.*got no gradient"),
        mm.Job(X, batch=16, lanes=4, reduction="exact", check=False) as job,
    ):
        job.share(net, mm.torch.ShardedOptimizer(net.parameters(), torch.optim.SGD))
        for _ in job.steps(1):
            job.update(lambda lane: net(torch.from_numpy(lane)).sum().backward())
