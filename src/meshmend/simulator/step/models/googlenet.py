"""GoogLeNet: Szegedy et al., "Going Deeper with Convolutions" (arXiv 1409.4842): biases, no batch norm.

It is trained with its two auxiliary heads, which hold half of its parameters; `heads=False` leaves them out.
"""

from __future__ import annotations

from meshmend.simulator.step.models.layers import Image, Model, Trace

INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Channels of the 1x1; of the 3x3 and what goes before; of the 5x5 and what goes before; after the pooling."""


def googlenet(*, heads: bool = True) -> Model:
    """13,378,280 parameters with the auxiliary heads, 6,998,552 without."""
    trace = Trace()
    x = _conv(trace, "conv1", (3, 224, 224), 64, 7, 2)
    x = _conv(trace, "conv2.reduce", trace.pool(x, 3, 2, ceil=True), 64, 1)
    x = trace.pool(_conv(trace, "conv2", x, 192, 3), 3, 2, ceil=True)
    for name, channels in INCEPTIONS.items():
        x = _inception(trace, name, x, channels)
        if heads and name in ("4a", "4d"):
            _head(trace, f"head{name}", x)
        if name in ("3b", "4e"):
            x = trace.pool(x, 3, 2, ceil=True)
    trace.dense("fc", x[0], 1000)
    return Model(
        "googlenet",
        "GoogLeNet",
        f"of 2014, {'with' if heads else 'without'} its auxiliary heads; an example is an image of 224x224",
        tuple(trace.layers),
        optimizer="momentum",
        input_bytes=3 * 224 * 224,
    )


def _conv(trace: Trace, name: str, x: Image, channels: int, kernel: int, stride: int = 1) -> Image:
    return trace.conv(name, x, channels, kernel, stride, bias=True, norm=False)


def _inception(trace: Trace, name: str, x: Image, channels: tuple[int, ...]) -> Image:
    """Four branches side by side."""
    one, before3, three, before5, five, pooled = channels
    _conv(trace, f"{name}.1x1", x, one, 1)
    _conv(trace, f"{name}.3x3", _conv(trace, f"{name}.3x3reduce", x, before3, 1), three, 3)
    _conv(trace, f"{name}.5x5", _conv(trace, f"{name}.5x5reduce", x, before5, 1), five, 5)
    _conv(trace, f"{name}.pool", x, pooled, 1)
    return one + three + five + pooled, x[1], x[2]


def _head(trace: Trace, name: str, x: Image) -> None:
    channels, rows, cols = _conv(trace, f"{name}.conv", trace.pool(x, 5, 3, ceil=True), 128, 1)
    trace.dense(f"{name}.fc1", channels * rows * cols, 1024)
    trace.dense(f"{name}.fc2", 1024, 1000)
