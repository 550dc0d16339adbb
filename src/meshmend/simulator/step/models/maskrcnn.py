"""Mask R-CNN: He et al. (arXiv 1703.06870) with ResNet-50 and a feature pyramid, 91 classes, as in torchvision.

The trunk's norms are frozen, so they have no parameters here. The trunk, the pyramid and the proposals see one image
of 800x1344; the heads see 512 sampled regions for boxes and 128 of them for masks, the usual numbers in training.
Model parallelism divides the image by rows, and the heads by regions.
"""

from __future__ import annotations

from dataclasses import replace

from meshmend.simulator.step.models.convnets import trunk50
from meshmend.simulator.step.models.layers import Layer, Model, Trace

IMAGE = (3, 800, 1344)
CLASSES, WIDTH, ANCHORS = 91, 256, 3
BOXES, MASKS = 512, 128


def maskrcnn() -> Model:
    """44,401,393 parameters."""
    trace = Trace()
    stages = trunk50(trace, IMAGE, norm=False)
    levels = []
    for number, shape in enumerate(stages):
        inner = trace.conv(f"pyramid.inner{number}", shape, WIDTH, 1, bias=True, norm=False)
        levels.append(trace.conv(f"pyramid.outer{number}", inner, WIDTH, 3, bias=True, norm=False))
    levels.append(trace.pool(levels[-1], 1, 2))
    _proposals(trace, levels)
    heads = Trace()
    heads.dense("box.fc6", WIDTH * 7 * 7, 1024, times=BOXES)
    heads.dense("box.fc7", 1024, 1024, times=BOXES)
    heads.dense("box.classes", 1024, CLASSES, times=BOXES)
    heads.dense("box.corners", 1024, 4 * CLASSES, times=BOXES)
    for number in range(4):
        heads.dense(f"mask.conv{number}", WIDTH * 9, WIDTH, times=MASKS * 14 * 14)
    up = WIDTH * WIDTH * 4
    heads.layers.append(Layer("mask.up", up + WIDTH, 2.0 * up * MASKS * 14 * 14))
    heads.dense("mask.classes", WIDTH, CLASSES, times=MASKS * 28 * 28)
    divided = (replace(layer, split="rows", rows=BOXES if "box" in layer.name else MASKS) for layer in heads.layers)
    return Model(
        "maskrcnn",
        "Mask R-CNN",
        "ResNet-50 with a feature pyramid; an example is an image of 800x1344",
        (*trace.layers, *divided),
        optimizer="momentum",
        input_bytes=3 * 800 * 1344,
    )


def _proposals(trace: Trace, levels: list[tuple[int, int, int]]) -> None:
    """One head for all levels: its parameters count once, its work at each."""
    for number, shape in enumerate(levels):
        for name, channels, kernel in (("conv", WIDTH, 3), ("objects", ANCHORS, 1), ("corners", 4 * ANCHORS, 1)):
            trace.conv(f"proposals{number}.{name}", shape, channels, kernel, bias=True, norm=False)
            if number:
                again = trace.layers.pop()
                trace.layers.append(Layer(again.name, 0, again.flops, "rows", again.rows, again.halo))
