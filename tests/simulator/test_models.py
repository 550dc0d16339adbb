"""Parameters and FLOPs follow from the shapes: counts are those that the frameworks' own models have."""

from __future__ import annotations

import pytest

from meshmend import SimulateError
from meshmend.simulator.step.models import MODELS, model
from meshmend.simulator.step.models.convnets import googlenet
from meshmend.simulator.step.models.layers import Trace

COUNTS = {
    "resnet50": 25_557_032,
    "bert": 336_226_108,
    "transformer": 210_804_736,
    "ssd": 19_972_534,
    "maskrcnn": 44_401_393,
    "dlrm": 2_368_897 + 128 * 187_767_399,
    "alexnet": 61_100_840,
    "googlenet": 13_378_280,
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters(name: str) -> None:
    assert model(name).params == COUNTS[name]


def test_parts_of_models() -> None:
    assert googlenet(heads=False).params == 6_998_552
    assert model("dlrm").summed == 2_368_897
    by_name = {layer.name: layer.params for layer in model("bert").layers}
    heads = sum(count for name, count in by_name.items() if name.startswith(("guess", "next")))
    assert model("bert").params - heads == 335_141_888
    assert model("bert").params - heads - by_name["pooler"] == 334_092_288, "the 334 M of the facts: the body alone"
    assert 0.95 * COUNTS["alexnet"] < sum(layer.params for layer in model("alexnet").layers[-3:])


@pytest.mark.parametrize(
    ("name", "macs", "within"),
    [("resnet50", 4.089e9, 1e-3), ("alexnet", 0.7142e9, 1e-3), ("googlenet", 1.59e9, 0.01), ("dlrm", 2.4e6, 0.01)],
)
def test_flops(name: str, macs: float, within: float) -> None:
    assert model(name).forward == pytest.approx(2 * macs, rel=within)


@pytest.mark.parametrize(("name", "tokens"), [("bert", 512), ("transformer", 256)])
def test_flops_of_text_are_at_least_two_a_parameter_and_token(name: str, tokens: int) -> None:
    kernels = [
        layer for layer in model(name).layers if layer.name.endswith((".query", ".key", ".value", ".out", ".in"))
    ]
    weights = sum(layer.params for layer in kernels)
    assert 2 * weights * tokens < model(name).forward < 3 * weights * tokens


@pytest.mark.parametrize("name", MODELS)
def test_what_holds_for_every_model(name: str) -> None:
    made = model(name)
    assert made.gradient_bytes("float32") == 2 * made.gradient_bytes("bf16") == 4 * made.summed
    assert len({layer.name for layer in made.layers}) == len(made.layers)
    assert made.flops == 3 * made.forward
    assert made.work(1) == pytest.approx(made.flops)
    cores = [2**power for power in range(5) if 2**power <= made.most_cores]
    works = [made.work(k) for k in cores]
    assert works == sorted(works, reverse=True)
    assert all(work >= made.flops / k * 0.999 for work, k in zip(works, cores, strict=True))


def test_rows_divide_only_as_far_as_there_are_rows() -> None:
    trace = Trace()
    trace.conv("wide", (64, 38, 38), 64, 3)
    trace.conv("one", (64, 1, 1), 64, 1)
    wide, one = trace.layers
    assert (wide.part(4), wide.part(8), one.part(8)) == (10 / 38, 5 / 38, 1.0)
    assert (wide.halo, one.halo) == (64 * 38, 0)


@pytest.mark.parametrize(
    ("name", "meant"), [("resnet", "resnet50"), ("BERT-large", "bert"), ("Mask R-CNN", "maskrcnn")]
)
def test_unknown_model(name: str, meant: str) -> None:
    with pytest.raises(SimulateError, match=rf"resnet50, .*{meant}\?"):
        model(name)


def test_unknown_wire() -> None:
    with pytest.raises(SimulateError, match=r"'int8'.*bf16, float32"):
        model("bert").gradient_bytes("int8")
