"""ResNet: He et al., "Deep Residual Learning" (arXiv 1512.03385), and its trunks as the detectors use them.

ResNet-50 is version 1.5, the one of MLPerf: the stride of a bottleneck is in its 3x3 convolution.
"""

from __future__ import annotations

from meshmend.simulator.step.models.layers import Image, Model, Trace

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
