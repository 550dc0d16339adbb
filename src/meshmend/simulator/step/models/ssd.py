"""SSD with ResNet-34: Liu et al. (arXiv 1512.02325) with the trunk of MLPerf training, images of 300x300.

The trunk ends after the third stage, whose stride is taken out, so that it gives 38x38; five more blocks give 19, 10,
5, 3 and 1. Each of the six maps has two 3x3 heads: four numbers and 81 classes for each of its anchors. That makes
20.0 M parameters; the 36 M that are often quoted do not follow from these shapes.
"""

from __future__ import annotations

from meshmend.simulator.step.models.convnets import trunk34
from meshmend.simulator.step.models.layers import Model, Trace

CLASSES = 81
ANCHORS = (4, 6, 6, 6, 4, 4)
BLOCKS = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
"""Channels of the 1x1 and of the 3x3 convolution, and the latter's stride and padding."""


def ssd() -> Model:
    """19,972,534 parameters."""
    trace = Trace()
    x = trunk34(trace, (3, 300, 300), ((3, 64, 1), (4, 128, 2), (6, 256, 1)))
    maps = [x]
    for number, (narrow, wide, stride, pad) in enumerate(BLOCKS):
        x = trace.conv(f"more{number}.conv1", x, narrow, 1, bias=True, norm=False)
        x = trace.conv(f"more{number}.conv2", x, wide, 3, stride, pad, bias=True, norm=False)
        maps.append(x)
    for number, (shape, anchors) in enumerate(zip(maps, ANCHORS, strict=True)):
        trace.conv(f"boxes{number}", shape, 4 * anchors, 3, bias=True, norm=False)
        trace.conv(f"classes{number}", shape, CLASSES * anchors, 3, bias=True, norm=False)
    return Model(
        "ssd",
        "SSD-ResNet34",
        "as MLPerf trains it; an example is an image of 300x300",
        tuple(trace.layers),
        optimizer="momentum",
        input_bytes=3 * 300 * 300,
    )
