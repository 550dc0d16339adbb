"""Networks that classify images.

* AlexNet: Krizhevsky (arXiv 1404.5997), the variant on one device without groups, as in torchvision.
* GoogLeNet: Szegedy et al., "Going Deeper with Convolutions" (arXiv 1409.4842): biases, no batch norm. It is trained
  with its two auxiliary heads, which hold half of its parameters; `heads=False` leaves them out.
* ResNet: He et al., "Deep Residual Learning" (arXiv 1512.03385), and its trunks as the detectors use them. ResNet-50 is
  version 1.5, the one of MLPerf: the stride of a bottleneck is in its 3x3 convolution.
"""

from __future__ import annotations

from meshmend.simulator.step.models.layers import Image, Model, Trace


def alexnet() -> Model:
    """61,100,840 parameters, of which 58.6 M are in three dense layers."""
    trace = Trace()
    x = trace.conv("conv1", (3, 224, 224), 64, 11, 4, 2, bias=True, norm=False)
    x = trace.conv("conv2", trace.pool(x, 3, 2), 192, 5, bias=True, norm=False)
    x = trace.pool(x, 3, 2)
    for number, channels in ((3, 384), (4, 256), (5, 256)):
        x = trace.conv(f"conv{number}", x, channels, 3, bias=True, norm=False)
    channels, rows, cols = trace.pool(x, 3, 2)
    trace.dense("fc6", channels * rows * cols, 4096)
    trace.dense("fc7", 4096, 4096)
    trace.dense("fc8", 4096, 1000)
    return Model(
        "alexnet",
        "AlexNet",
        "one device, no groups; an example is an image of 224x224",
        tuple(trace.layers),
        optimizer="momentum",
        input_bytes=3 * 224 * 224,
    )


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


IMAGE = (3, 224, 224)


def resnet50() -> Model:
    """25,557,032 parameters, 4.09 G multiply-adds at 224x224."""
    trace = Trace()
    trunk50(trace, IMAGE)
    trace.dense("fc", 2048, 1000)
    return Model(
        "resnet50",
        "ResNet-50",
        "version 1.5; an example is an image of 224x224",
        tuple(trace.layers),
        optimizer="lars",
        input_bytes=3 * 224 * 224,
    )


def trunk50(trace: Trace, x: Image, *, norm: bool = True) -> list[Image]:
    """Bottlenecks of 3, 4, 6 and 3; returns the shape after each stage. Frozen norms have no parameters."""
    x = stem(trace, x, norm=norm)
    stages = []
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            name = f"layer{stage + 1}.{block}"
            inside = trace.conv(f"{name}.conv1", x, width, 1, norm=norm)
            inside = trace.conv(f"{name}.conv2", inside, width, 3, stride, norm=norm)
            after = trace.conv(f"{name}.conv3", inside, 4 * width, 1, norm=norm)
            if not block:
                trace.conv(f"{name}.downsample", x, 4 * width, 1, stride, norm=norm)
            x = after
        stages.append(x)
    return stages


def trunk34(trace: Trace, x: Image, stages: tuple[tuple[int, int, int], ...]) -> Image:
    """Basic blocks: for each stage the blocks, their width and the stride of the first."""
    x = stem(trace, x)
    for stage, (blocks, width, first) in enumerate(stages):
        for block in range(blocks):
            stride = 1 if block else first
            name = f"layer{stage + 1}.{block}"
            inside = trace.conv(f"{name}.conv1", x, width, 3, stride)
            after = trace.conv(f"{name}.conv2", inside, width, 3)
            if x != after:
                trace.conv(f"{name}.downsample", x, width, 1, stride)
            x = after
    return x


def stem(trace: Trace, x: Image, *, norm: bool = True) -> Image:
    """A 7x7 convolution and a pooling, each of stride 2."""
    return trace.pool(trace.conv("conv1", x, 64, 7, 2, norm=norm), 3, 2, 1)
