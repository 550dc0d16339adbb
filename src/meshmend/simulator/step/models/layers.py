"""Models by their shapes: a trace of a network without weights, layer by layer.

A **layer** is what has parameters or multiplies matrices. Its FLOPs are those of one example going forward, two for
each multiply-add, in convolutions, dense layers and attention; normalising, activations and pooling are left out, as
usual, for they are bound by memory. Going backward costs twice as much: one product for the inputs' gradient, one for
the weights'. Shapes are (channels, rows, cols) in images and (length, features) in text.

Model parallelism gives one **replica** to several cores, and `split` says what divides a layer among them:
`rows` of the image, `features` (heads, columns and rows of kernels, vocabulary), or nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from meshmend.base.registry import Registry
from meshmend.errors import SimulateError

Image = tuple[int, int, int]
Split = Literal["none", "rows", "features"]
WIRES: Registry[int] = Registry("wire format", SimulateError, {"bf16": 2, "float32": 4})
"""Bytes of a number on the wire."""
BACKWARD = 2
"""FLOPs of going backward, over those of going forward."""


@dataclass(frozen=True)
class Layer:
    """One layer, for one example."""

    name: str
    params: int
    flops: float = 0.0
    split: Split = "none"
    rows: int = 1
    """Rows of its output image."""
    halo: int = 0
    """Numbers that cross each border where its input image is divided by rows."""
    reduced: int = 0
    """Numbers that are summed over the replica after it, where it is divided by features."""
    summed: bool = True
    """Whether its gradient is summed over all replicas; tables that are divided over the chips are not."""
    norm: bool = False
    """Whether a batch norm follows, whose statistics may be shared among replicas."""

    def part(self, cores: int) -> float:
        """The part of the work that the busiest core of a replica does."""
        if self.split == "features":
            return 1 / cores
        return math.ceil(self.rows / cores) / self.rows if self.split == "rows" else 1.0


@dataclass(frozen=True)
class Model:
    """A network: its layers from the input to the loss, and how it is trained."""

    name: str
    title: str
    about: str
    """Which variant, and what an example is."""
    layers: tuple[Layer, ...]
    optimizer: str
    input_bytes: float
    """Bytes of one example, as the host gives it to a chip."""
    most_cores: int = 8
    """Cores that a replica can be divided among."""
    exchanged: int = 0
    """Numbers per example that go from the chips with the embedding tables to the one with the example."""

    @property
    def params(self) -> int:
        """All parameters."""
        return sum(layer.params for layer in self.layers)

    @property
    def summed(self) -> int:
        """Parameters whose gradient is summed over all replicas."""
        return sum(layer.params for layer in self.layers if layer.summed)

    @property
    def forward(self) -> float:
        """FLOPs of one example going forward."""
        return sum(layer.flops for layer in self.layers)

    @property
    def flops(self) -> float:
        """FLOPs to train on one example: forward and backward."""
        return (1 + BACKWARD) * self.forward

    def work(self, cores: int) -> float:
        """FLOPs that the busiest core of a replica does for one example."""
        return (1 + BACKWARD) * sum(layer.flops * layer.part(cores) for layer in self.layers)

    def part(self, cores: int) -> float:
        """The part of a replica's work that its busiest core does."""
        return self.work(cores) / self.flops

    @property
    def norms(self) -> int:
        """Batch norms."""
        return sum(layer.norm for layer in self.layers)

    @property
    def largest(self) -> float:
        """The largest layer's part of the gradients that are summed."""
        return max(layer.params for layer in self.layers if layer.summed) / self.summed

    def gradient_bytes(self, wire: str = "bf16") -> int:
        """The payload of the gradient sum."""
        return WIRES.find(wire) * self.summed

    @property
    def sharded(self) -> int:
        """Parameters that are divided among the cores of a replica."""
        return sum(layer.params for layer in self.layers if layer.split == "features" and layer.summed)


@dataclass
class Trace:
    """Records layers while an architecture is walked through with shapes."""

    split: Split = "rows"
    """What model parallelism divides in images."""
    layers: list[Layer] = field(default_factory=list)

    def conv(
        self,
        name: str,
        x: Image,
        channels: int,
        kernel: int,
        stride: int = 1,
        pad: int | None = None,
        *,
        bias: bool = False,
        norm: bool = True,
        ceil: bool = False,
    ) -> Image:
        """A square convolution, with two parameters a channel of batch norm unless told otherwise."""
        after = self.pool(x, kernel, stride, kernel // 2 if pad is None else pad, ceil=ceil)
        weights = kernel * kernel * x[0] * channels
        params = weights + channels * (bias + 2 * norm)
        halo = kernel // 2 * x[0] * x[2]
        flops = 2.0 * weights * after[1] * after[2]
        self.layers.append(Layer(name, params, flops, self.split, rows=after[1], halo=halo, norm=norm))
        return channels, after[1], after[2]

    def pool(self, x: Image, kernel: int, stride: int, pad: int = 0, *, ceil: bool = False) -> Image:
        """The shape after pooling."""
        more = stride - 1 if ceil else 0
        rows, cols = ((size + 2 * pad - kernel + more) // stride + 1 for size in x[1:])
        return x[0], rows, cols

    def dense(
        self,
        name: str,
        inputs: int,
        outputs: int,
        *,
        times: float = 1,
        bias: bool = True,
        split: Split = "none",
        reduced: int = 0,
    ) -> int:
        """A dense layer that is used so many times in an example (once a token, say)."""
        weights = inputs * outputs
        self.layers.append(Layer(name, weights + bias * outputs, 2.0 * weights * times, split, reduced=reduced))
        return outputs

    def params(self, name: str, count: int, *, split: Split = "none", summed: bool = True, reduced: int = 0) -> None:
        """Parameters that take no matrix product: tables, norms, biases."""
        self.layers.append(Layer(name, count, split=split, summed=summed, reduced=reduced))

    def products(self, name: str, flops: float, *, split: Split = "none") -> None:
        """Products of activations with each other, without parameters: scores of attention."""
        self.layers.append(Layer(name, 0, flops, split))
