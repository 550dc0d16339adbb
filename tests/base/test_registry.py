"""Names are found, unknown ones are refused with the choices, and capabilities select members."""

from __future__ import annotations

import pytest

from meshmend.base.registry import Registry
from meshmend.errors import SimulateError

SIZES = Registry("model", SimulateError, {"resnet50": 25, "bert": 336, "alexnet": 61})


def test_a_registry_is_a_mapping_in_order() -> None:
    assert list(SIZES) == ["resnet50", "bert", "alexnet"] and len(SIZES) == 3
    assert SIZES["bert"] == SIZES.find("bert") == 336
    assert "bert" in SIZES and "gpt" not in SIZES and SIZES.get("gpt") is None
    with pytest.raises(KeyError):
        SIZES["gpt"]
    assert SIZES.where(lambda size: size < 100) == ("resnet50", "alexnet")


def test_an_unknown_name_is_refused_with_the_choices_and_what_was_meant() -> None:
    with pytest.raises(SimulateError) as caught:
        SIZES.find("ResNet-50", also=("auto",), instead="a Model")
    for part in ("model 'ResNet-50'", "auto, resnet50, bert, alexnet", "or give a Model", "did you mean resnet50?"):
        assert part in str(caught.value)
    with pytest.raises(SimulateError) as caught:
        SIZES.find("zzz")
    assert "did you mean" not in str(caught.value)


def test_a_name_is_registered_once() -> None:
    sizes = Registry("model", SimulateError, SIZES)
    assert sizes.register("dlrm", 1) == 1 and list(sizes)[-1] == "dlrm"
    with pytest.raises(ValueError, match="'bert'"):
        sizes.register("bert", 2)
