"""LARS and LAMB, for large batches: each tensor's step is scaled by the ratio of its norm to that of the step.

    LARS   You, Gitman, Ginsburg: Large batch training of convolutional networks (arXiv 1708.03888)
    LAMB   You et al.: Large batch optimization for deep learning, training BERT in 76 minutes (arXiv 1904.00962)

Both are optimizers of slices that ask for norms of whole tensors (`measures.py`), in numpy, on the host where slices
are: so numpy, JAX and PyTorch get the same bits, for any number of workers. Tensors with one dimension (biases, the
scales of normalisations) have a ratio of 1 and no weight decay, as in the papers' own runs.

`PUBLISHED` has rates, warm-up and decay of published large-batch runs as data, each with its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.reduction.norms import trust_ratio
from meshmend.job.reduction.pieces import Pieces
from meshmend.job.slices.optimizers import Optimizer

Floats = npt.NDArray[np.float32]
Rate = float | Callable[[int], float]
"""A learning rate, or a function of how many updates have been made."""


@dataclass(frozen=True)
class WarmupDecay:
    """Linear warm-up to a rate, and polynomial decay from it: a function of how many updates have been made."""

    peak: float
    warmup: int
    """Updates until the peak."""
    updates: int
    """In all; from then on the rate is `end`."""
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.updates:
            raise JobError(
                f"got a schedule with warmup={self.warmup} and updates={self.updates}; warmup must be at least 0 and "
                "less than updates"
            )

    def __call__(self, done: int) -> float:
        """The rate of the next update."""
        if done < self.warmup:
            return self.peak * (done + 1) / self.warmup
        left = max(0.0, 1 - (done - self.warmup) / (self.updates - self.warmup))
        return self.end + (self.peak - self.end) * float(left**self.power)


def lars(
    rate: Rate, *, momentum: float = 0.9, decay: float = 0.0, coefficient: float = 0.001, divide: float = 1.0
) -> Optimizer:
    """LARS for `job.share(weights, optimizer=…)`.

    `rate` is a number or a function of how many updates have been made (`mm.WarmupDecay`); gradients are divided by
    `divide` first (`job.batch` makes means of sums). `coefficient` is the paper's η, `decay` its β.
    """
    _check("lars", momentum=momentum, decay=decay, coefficient=coefficient, divide=divide)

    def init(weights: Floats) -> dict[str, Any]:
        return {"momentum": np.zeros_like(weights), "count": np.zeros((), np.int64)}

    def update(weights: Floats, gradients: Floats, state: dict[str, Any], pieces: Pieces) -> Any:
        gradients, matrices = gradients / np.float32(divide), pieces.matrices
        step = gradients + np.float32(decay) * weights * matrices
        of_weights, of_step = yield weights, step
        ratio = np.where(matrices, trust_ratio(of_weights.tensor, of_step.tensor, coefficient), np.float32(1))
        count = int(state["count"])
        moved = np.float32(momentum) * state["momentum"] + np.float32(_rate(rate, count)) * ratio * step
        return weights - moved, {"momentum": moved, "count": np.asarray(count + 1)}

    return Optimizer(init, update)


def lamb(
    rate: Rate, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, decay: float = 0.01,
    divide: float = 1.0,
) -> Optimizer:  # fmt: skip
    """LAMB for `job.share(weights, optimizer=…)`; `rate` and `divide` as for `mm.lars`, `decay` is the paper's λ."""
    _check("lamb", one=betas[0], two=betas[1], eps=eps, decay=decay, divide=divide)

    def init(weights: Floats) -> dict[str, Any]:
        return {"m": np.zeros_like(weights), "v": np.zeros_like(weights), "count": np.zeros((), np.int64)}

    def update(weights: Floats, gradients: Floats, state: dict[str, Any], pieces: Pieces) -> Any:
        gradients, matrices, count = gradients / np.float32(divide), pieces.matrices, int(state["count"]) + 1
        first, second = map(np.float32, betas)
        m = first * state["m"] + (1 - first) * gradients
        v = second * state["v"] + (1 - second) * gradients * gradients
        mean, size = m / np.float32(1 - betas[0] ** count), v / np.float32(1 - betas[1] ** count)
        step = mean / (np.sqrt(size) + np.float32(eps)) + np.float32(decay) * weights * matrices
        of_weights, of_step = yield weights, step
        ratio = np.where(matrices, trust_ratio(of_weights.tensor, of_step.tensor), np.float32(1))
        new = weights - np.float32(_rate(rate, count - 1)) * ratio * step
        return new, {"m": m, "v": v, "count": np.asarray(count)}

    return Optimizer(init, update)


def _rate(rate: Rate, done: int) -> float:
    return rate(done) if callable(rate) else rate


def _check(name: str, **numbers: float) -> None:
    for word, number in numbers.items():
        if not isinstance(number, (int, float)) or number < 0 or (word == "divide" and not number):
            raise JobError(f"mm.{name} got {word}={number!r}; give a number that is not negative")


@dataclass(frozen=True)
class Published:
    """The rate of a run that others have published."""

    model: str
    optimizer: str
    batches: tuple[int, int]
    """Of which sizes of batch: from the first up to, not including, the second."""
    peak: float
    warmup: float
    """Epochs, or a share of all updates if `updates` is given."""
    power: float
    """Of the decay to 0."""
    epochs: float = 0.0
    updates: int = 0
    """How long it takes; one of the two."""
    source: str = ""

    def rate(self, samples: int, batch: int = 0) -> WarmupDecay:
        """As `rate=` of an optimizer; `samples` is the size of the data, and `batch` the batch if a range is given."""
        if self.updates:
            return WarmupDecay(self.peak, int(self.warmup * self.updates), self.updates, self.power)
        steps = samples / (batch or self.batches[0])
        return WarmupDecay(self.peak, int(self.warmup * steps), int(self.epochs * steps), self.power)


_TPU = "https://github.com/tensorflow/tpu/blob/master/models/official/resnet/lars_util.py"
_NVIDIA = "https://github.com/NVIDIA/DeepLearningExamples/blob/master/PyTorch/LanguageModeling/BERT/scripts/run_pretraining.sh"
PUBLISHED = (
    Published("ResNet-50", "lars", (2_048, 16_384), 10.0, 5, 2.0, epochs=90, source=_TPU),
    Published("ResNet-50", "lars", (16_384, 32_768), 25.0, 5, 2.0, epochs=90, source=_TPU),
    Published("ResNet-50", "lars", (32_768, 65_537), 32.0, 14, 2.0, epochs=90, source=_TPU),
    Published("BERT-large, 128 tokens", "lamb", (65_536, 65_537), 6e-3, 0.2843, 0.5, updates=7_038, source=_NVIDIA),
    Published("BERT-large, 512 tokens", "lamb", (32_768, 32_769), 4e-3, 0.128, 0.5, updates=1_563, source=_NVIDIA),
)
"""Rates, warm-up and decay as their sources have them; Google's TPU reference and NVIDIA's follow the two papers."""
