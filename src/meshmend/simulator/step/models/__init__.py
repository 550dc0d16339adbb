"""Eight networks by their shapes, without weights: parameters per layer and FLOPs per example."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from meshmend.base.registry import Registry
from meshmend.errors import SimulateError
from meshmend.simulator.step.models.bert import bert
from meshmend.simulator.step.models.convnets import alexnet, googlenet, resnet50
from meshmend.simulator.step.models.dlrm import dlrm
from meshmend.simulator.step.models.layers import WIRES as WIRES
from meshmend.simulator.step.models.layers import Layer as Layer
from meshmend.simulator.step.models.layers import Model as Model
from meshmend.simulator.step.models.maskrcnn import maskrcnn
from meshmend.simulator.step.models.ssd import ssd
from meshmend.simulator.step.models.transformer import transformer

MODELS: Registry[Callable[[], Model]] = Registry(
    "model",
    SimulateError,
    {
        "resnet50": resnet50,
        "bert": bert,
        "transformer": transformer,
        "ssd": ssd,
        "maskrcnn": maskrcnn,
        "dlrm": dlrm,
        "alexnet": alexnet,
        "googlenet": googlenet,
    },
)


@cache
def model(name: str) -> Model:
    """A model by name."""
    return MODELS.find(name)()
