"""Eight networks by their shapes, without weights: parameters a layer and FLOPs an example."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from meshmend.errors import SimulateError
from meshmend.simulator.step.models.alexnet import alexnet
from meshmend.simulator.step.models.bert import bert
from meshmend.simulator.step.models.dlrm import dlrm
from meshmend.simulator.step.models.googlenet import googlenet
from meshmend.simulator.step.models.layers import WIRES as WIRES
from meshmend.simulator.step.models.layers import Layer as Layer
from meshmend.simulator.step.models.layers import Model as Model
from meshmend.simulator.step.models.maskrcnn import maskrcnn
from meshmend.simulator.step.models.resnet import resnet50
from meshmend.simulator.step.models.ssd import ssd
from meshmend.simulator.step.models.transformer import transformer

MODELS: dict[str, Callable[[], Model]] = {
    "resnet50": resnet50,
    "bert": bert,
    "transformer": transformer,
    "ssd": ssd,
    "maskrcnn": maskrcnn,
    "dlrm": dlrm,
    "alexnet": alexnet,
    "googlenet": googlenet,
}


@cache
def model(name: str) -> Model:
    """A model by name."""
    if name not in MODELS:
        raise SimulateError(f"no model is called {name!r}: choose from {', '.join(MODELS)}{_meant(name)}")
    return MODELS[name]()


def _meant(name: str) -> str:
    from difflib import get_close_matches

    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    close = get_close_matches(plain, MODELS, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""
