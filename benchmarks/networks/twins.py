"""Small twins of the papers' networks in JAX: the same layers in the same order, a fraction of the width.

AlexNet, GoogLeNet (with its heads) and ResNet-50 take images of 32x32, BERT texts of 16 tokens. Every sample has a
weight, and a lane's loss is a sum over samples; so any number of chips computes the same sums from the same batch.
Batch norm would tie the samples of a chip together, and is a norm over each image here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
Weights = dict[str, Array]
CLASSES, WORDS, TOKENS, IMAGE = 10, 64, 16, 32


class Tape:
    """Makes the weights of layers in order, or gives them out again in the same order."""

    def __init__(self, weights: Weights | None = None) -> None:
        self.made: Weights = {} if weights is None else weights
        self._fresh = weights is None
        self._random = np.random.default_rng(0)
        self._number = iter(range(10**6))

    def take(self, *shape: int, scale: float = 1.0) -> Array:
        """The next weights."""
        name = f"{next(self._number):03}"
        if self._fresh:
            self.made[name] = jnp.asarray(scale * self._random.normal(size=shape), jnp.float32)
        return self.made[name]

    def conv(self, x: Array, channels: int, kernel: int, stride: int = 1) -> Array:
        """A convolution with a bias."""
        inner = x.shape[-1]
        kernels = self.take(kernel, kernel, inner, channels, scale=(2 / (kernel * kernel * inner)) ** 0.5)
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernels, (stride, stride), "SAME", dimension_numbers=numbers)
        return x + self.take(channels, scale=0.0)

    def dense(self, x: Array, channels: int) -> Array:
        """A dense layer."""
        return x @ self.take(x.shape[-1], channels, scale=x.shape[-1] ** -0.5) + self.take(channels, scale=0.0)


def _pool(x: Array, stride: int = 2) -> Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, stride, stride, 1), "SAME")


def _norm(x: Array, axes: tuple[int, ...]) -> Array:
    return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + 1e-5)


def _wrong(scores: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], -1)[..., 0]


def alexnet(tape: Tape, images: Array, labels: Array) -> Array:
    """The loss of each image."""
    x = _pool(jax.nn.relu(tape.conv(images, 8, 5, 2)))
    x = _pool(jax.nn.relu(tape.conv(x, 16, 5)))
    for channels in (24, 16, 16):
        x = jax.nn.relu(tape.conv(x, channels, 3))
    x = _pool(x).reshape(len(x), -1)
    for channels in (64, 64):
        x = jax.nn.relu(tape.dense(x, channels))
    return _wrong(tape.dense(x, CLASSES), labels)


def googlenet(tape: Tape, images: Array, labels: Array) -> Array:
    """The loss of each image, with those of the two heads."""
    x = _pool(jax.nn.relu(tape.conv(images, 8, 5, 2)))
    total: Array = 0.0
    for number in range(9):
        branches = [tape.conv(x, 4, 1), tape.conv(jax.nn.relu(tape.conv(x, 4, 1)), 6, 3)]
        branches += [tape.conv(jax.nn.relu(tape.conv(x, 2, 1)), 3, 5), tape.conv(_pool(x, 1), 3, 1)]
        x = jax.nn.relu(jnp.concatenate(branches, -1))
        if number in (2, 5):
            head = jax.nn.relu(tape.dense(tape.conv(x, 8, 1).reshape(len(x), -1), 16))
            total = total + 0.3 * _wrong(tape.dense(head, CLASSES), labels)
        if number in (1, 6):
            x = _pool(x)
    return total + _wrong(tape.dense(x.mean((1, 2)), CLASSES), labels)


def resnet50(tape: Tape, images: Array, labels: Array) -> Array:
    """The loss of each image."""
    x = jax.nn.relu(_norm(tape.conv(images, 4, 3), (1, 2)))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            width, stride = 2 << stage, 2 if stage and not block else 1
            y = jax.nn.relu(_norm(tape.conv(x, width, 1), (1, 2)))
            y = jax.nn.relu(_norm(tape.conv(y, width, 3, stride), (1, 2)))
            y = _norm(tape.conv(y, 4 * width, 1), (1, 2, 3))
            x = jax.nn.relu(y + (x if x.shape == y.shape else tape.conv(x, 4 * width, 1, stride)))
    return _wrong(tape.dense(x.mean((1, 2)), CLASSES), labels)


def bert(tape: Tape, texts: Array, labels: Array) -> Array:
    """The loss of each text: masked words, and a class."""
    masked = np.arange(TOKENS) % 7 == 3
    words = tape.take(WORDS, 32, scale=0.05)
    x = _norm(words[jnp.where(masked, 1, texts)] + tape.take(TOKENS, 32, scale=0.05), (-1,))
    for _ in range(2):
        query, key, value = (tape.dense(x, 32).reshape(*x.shape[:2], 4, 8) for _ in range(3))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) / 8**0.5)
        x = _norm(x + tape.dense(jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape), 32), (-1,))
        x = _norm(x + tape.dense(jax.nn.gelu(tape.dense(x, 128)), 32), (-1,))
    guessed = _wrong(tape.dense(x[:, masked], 32) @ words.T, texts[:, masked]).mean(-1)
    return guessed + _wrong(tape.dense(x[:, 0], CLASSES), labels)


TWINS: dict[str, Callable[[Tape, Array, Array], Array]] = {
    "alexnet": alexnet, "googlenet": googlenet, "resnet50": resnet50, "bert": bert,
}  # fmt: skip


def batches(name: str, size: int, chips: int) -> Iterator[dict[str, Any]]:
    """Batches of the same samples for any number of chips, filled up with some that weigh nothing."""
    random = np.random.default_rng(1)
    while True:
        labels = random.integers(0, CLASSES, size)
        if name == "bert":
            inputs = (labels[:, None] + np.cumsum(random.integers(1, 3, (size, TOKENS)), 1)) % WORDS
        else:
            inputs = random.normal(size=(size, IMAGE, IMAGE, 3)).astype(np.float32) + labels[:, None, None, None] / 5
            inputs = inputs.astype(np.float32)
        found = {"inputs": inputs, "labels": labels, "weights": np.ones(size, np.float32)}
        more = -size % chips
        yield {k: np.concatenate([v, np.zeros((more, *v.shape[1:]), v.dtype)]) for k, v in found.items()}
