"""AlexNet: Krizhevsky (arXiv 1404.5997), the variant on one device without groups, as in torchvision."""

from __future__ import annotations

from meshmend.simulator.step.models.layers import Model, Trace


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
