"""Exports, run by interpreters of their formats: results, deadlocks, races and the executors' limits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from meshmend import Mesh, PlanError, plan
from meshmend.mesh.exports import EXPORTS, export
from meshmend.mesh.exports.msccl import msccl_xml
from meshmend.mesh.exports.mscclpp import mscclpp_json
from meshmend.mesh.planners import ALGORITHMS, Plan
from tests.mesh.exports.interpreters import run_msccl, run_mscclpp


def random_plans() -> list[Plan]:
    """A hundred meshes of two and three dimensions with holes, and one of the plans that exist on each."""
    random, found = np.random.default_rng(5), []
    while len(found) < 100:
        dims = random.integers(1, 4, 2 + len(found) % 2)
        wrap = tuple(bool(side > 2 and random.integers(2)) for side in dims)
        mesh = Mesh(int(dims[0]), int(dims[1]), wrap, layers=int((*dims, 1)[2]))
        if mesh.size < 2:
            continue
        chips, links = (int(random.integers(0, 1 + n // 6)) for n in (mesh.size, len(mesh.links)))
        mesh = mesh.fail_random(int(random.integers(99)), chips=chips, links=links).largest()
        name = list(ALGORITHMS)[int(random.integers(len(ALGORITHMS)))]
        try:
            made = (
                plan(mesh, algorithm=name) if name != "trees" else ALGORITHMS["trees"](mesh, flows=1 + len(found) % 9)
            )
        except PlanError:
            continue
        found.append(made)
    return found


def test_a_hundred_random_meshes_give_the_sum_in_any_order() -> None:
    for number, made in enumerate(random_plans()):
        text = msccl_xml(made)
        chunks = int(re.findall(r'nchunksperloop="(\d+)"', text)[0])
        parts = np.random.default_rng(number).integers(-99, 99, (len(made.mesh.live), chunks))
        assert (run_msccl(text, parts, number) == parts.sum(0)).all()
        if len(made) > 32:
            continue
        text = mscclpp_json(made)
        chunks = json.loads(text)["gpus"][0]["input_chunks"]
        parts = np.random.default_rng(number).integers(-99, 99, (len(made.mesh.live), chunks))
        assert (run_mscclpp(text, parts, number) == parts.sum(0)).all()


def test_calls_may_follow_each_other_at_once() -> None:
    made = ALGORITHMS["trees"](Mesh.parse("3x3 -chip@0,0"), flows=5)
    text = mscclpp_json(made)
    parts = np.arange(8 * json.loads(text)["gpus"][0]["input_chunks"]).reshape(8, -1)
    for seed in range(5):
        assert (run_mscclpp(text, parts, seed, calls=3) == 64 * parts.sum(0)).all()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            '(?<=type="s" srcbuf="i" srcoff="." dstbuf="i" dstoff="." cnt="1" )depid="[0-9]+" deps="[0-9]+"',
            'depid="-1" deps="-1"',
            "race",
        ),
        ('type="s"', 'type="rrc"', "deadlock|race|wrong"),
        ('type="rrc"', 'type="r"', "race|wrong"),
    ],
)
def test_the_interpreter_finds_what_is_wrong(before: str, after: str, words: str) -> None:
    text = msccl_xml(ALGORITHMS["trees"](Mesh(3, 3), flows=3))
    found = list(re.finditer(before, text))
    assert len(found) > 10
    for match in found:
        broken = text[: match.start()] + after + text[match.end() :]
        chunks = int(re.findall(r'nchunksperloop="(\d+)"', text)[0])
        parts = np.random.default_rng(1).integers(1, 99, (9, chunks))
        with pytest.raises((AssertionError, IndexError), match=words):
            assert (run_msccl(broken, parts, 1) == parts.sum(0)).all(), "wrong"


def test_a_plan_that_does_not_fit_says_the_limit_and_what_would() -> None:
    with pytest.raises(
        PlanError, match=r"at most 32, but this plan has \d+ flows: plan with fewer, such as --flows 32"
    ):
        mscclpp_json(plan("8x8 -2x2@2,2", algorithm="trees"))
    with pytest.raises(PlanError, match=r"64 steps per threadblock in 8 channels.*such as --flows 32"):
        msccl_xml(plan("16x18", algorithm="ring"))
    assert msccl_xml(plan("8x8 -2x2@2,2", algorithm="trees"))


def test_files(tmp_path: Path) -> None:
    made = ALGORITHMS["trees"](Mesh(2, 2), flows=2)
    assert export(made, str(tmp_path / "a.xml")) == "msccl" and export(made, str(tmp_path / "a.json")) == "mscclpp"
    assert list(EXPORTS) == ["mscclpp", "msccl", "chakra"]
    assert export(made, str(tmp_path / "a.et")) == "chakra"
    assert sorted(path.name for path in tmp_path.glob("*.et")) == [f"a.{rank}.et" for rank in range(4)]
    for path, words in (("a.txt", "ends in .json"), ("none/a.xml", "a folder that exists")):
        with pytest.raises(PlanError, match=words):
            export(made, str(tmp_path / path))
