"""Files: what was saved comes back bit for bit, and what is damaged is refused in one sentence."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import (
    ALGORITHMS,
    FormatError,
    Mesh,
    MeshmendError,
    Plan,
    PlanError,
    VerifyError,
    load,
    plan,
    save,
    verify,
)
from meshmend.mesh.planners.files import from_json, to_json
from tests.strategies import damaged, damaged_bytes, meshes, modest

HOLED = "5x6 wrap=y -2x2@1,2 -link@4,0:4,1"
SAMPLE = to_json(plan(HOLED))


def assert_same(one: Plan, other: Plan) -> None:
    assert one.mesh == other.mesh
    for name in ("share", "root", "up", "down"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes(), name
    assert (one.algorithm, one.overlap, one.why) == (other.algorithm, other.overlap, other.why)


@settings(max_examples=40)
@given(meshes(7), st.sampled_from(["auto", *ALGORITHMS]))
def test_a_plan_comes_back_bit_for_bit(mesh: Mesh, algorithm: str) -> None:
    try:
        made = plan(mesh, 1e6, algorithm)
    except PlanError:
        return
    again = from_json(json.loads(json.dumps(to_json(made))))
    assert isinstance(again, Plan)
    assert_same(made, again)
    assert again.algbw == made.algbw
    assert again.bound.value == made.bound.value


@pytest.mark.parametrize("algorithm", ["trees", "rowcol"])
def test_a_plan_survives_a_file(tmp_path: Path, algorithm: str) -> None:
    path = str(tmp_path / "plan ü.json")
    made = replace(plan("4x5", algorithm=algorithm), why='say "ü→\n"')
    made.save(path)
    again = load(path)
    assert isinstance(again, Plan)
    assert_same(made, again)
    assert again.overlap == (algorithm == "trees")


def test_down_trees_of_their_own_survive() -> None:
    made = plan("4x4", algorithm="rowcol")
    twisted = replace(made, share=np.array([1 / 3, 2 / 3]), root=made.root[:2], up=made.up[:2], down=made.down[[0, 16]])
    assert not np.array_equal(twisted.up, twisted.down)
    again = from_json(to_json(twisted))
    assert isinstance(again, Plan)
    assert_same(twisted, again)


@settings(max_examples=40)
@given(meshes(9))
def test_a_mesh_comes_back(mesh: Mesh) -> None:
    assert from_json(json.loads(json.dumps(to_json(mesh)))) == mesh


def test_a_mesh_survives_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "mesh.json")
    save(Mesh.parse(HOLED), path)
    assert load(path) == Mesh.parse(HOLED)


def test_the_file_says_what_it_is() -> None:
    data = to_json(plan("2x2 -chip@1,1", algorithm="trees"))
    assert data == {
        "meshmend": "plan",
        "format": 1,
        "mesh": "2x2 -chip@1,1",
        "algorithm": "trees",
        "overlap": True,
        "why": "asked for by name",
        "flows": [{"share": 1.0, "root": [0, 0], "up": ".WN.", "down": ".WN."}],
    }


def changed(**values: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SAMPLE), **values}


def flow_changed(**values: Any) -> dict[str, Any]:
    data = copy.deepcopy(SAMPLE)
    data["flows"][1].update(values)
    return data


def without(*path: Any) -> dict[str, Any]:
    data: Any = copy.deepcopy(SAMPLE)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return data


DAMAGED: list[tuple[Any, str]] = [
    (None, "neither a plan nor a mesh"),
    ([], "neither a plan nor a mesh"),
    ("plan", "neither a plan nor a mesh"),
    ({}, "neither a plan nor a mesh"),
    (changed(meshmend="timetable"), "neither a plan nor a mesh"),
    (changed(meshmend="schedule"), "the schedule is damaged (slot is not a list of whole numbers)"),
    (changed(meshmend=["plan"]), "neither a plan nor a mesh"),
    (changed(format=2), "has format 2, but this version reads format 1"),
    (changed(format="1"), "has format '1'"),
    (without("format"), "has format None"),
    (without("mesh"), "'mesh'"),
    (without("flows"), "'flows'"),
    (without("algorithm"), "'algorithm'"),
    (without("overlap"), "'overlap'"),
    (without("flows", 0, "up"), "'up'"),
    (without("flows", 0, "share"), "'share'"),
    (without("flows", 0, "root"), "'root'"),
    (changed(mesh=7), "damaged"),
    (changed(mesh="5x"), "cannot read '5x'"),
    (changed(mesh="5x7"), "30 letters for 35 chips"),
    (changed(flows=[]), "damaged"),
    (changed(flows=7), "damaged"),
    (changed(flows={"up": "N"}), "damaged"),
    (flow_changed(up=SAMPLE["flows"][1]["up"][:-1]), "29 letters for 30 chips"),
    (flow_changed(down=SAMPLE["flows"][1]["down"] + "N"), "31 letters for 30 chips"),
    (flow_changed(up="Q" + SAMPLE["flows"][1]["up"][1:]), "holds 'Q', not one of NESW."),
    (flow_changed(up="é" + SAMPLE["flows"][1]["up"][2:]), "holds 'é', not one of NESW."),
    (flow_changed(up="\ud800" * 30), "damaged"),
    (flow_changed(up=7), "damaged"),
    (flow_changed(up=["N"] * 30), "damaged"),
    (flow_changed(root=[5, 0]), "chip 5,0 is outside"),
    (flow_changed(root=[0, -1]), "chip 0,-1 is outside"),
    (flow_changed(root=[0]), "1 coordinates"),
    (flow_changed(root=[]), "0 coordinates"),
    (flow_changed(root=[0, 0, 0]), "3 coordinates"),
    (changed(overlap="no"), 'overlap is "no", expected true or false'),
    (changed(overlap=1), "overlap is 1, expected true or false"),
    (changed(algorithm=7), "algorithm is 7, expected text"),
    (changed(why=None), "why is null, expected text"),
    (flow_changed(share=True), "share is true, expected a number"),
    (flow_changed(share="0.5"), 'share is "0.5", expected a number'),
    (flow_changed(root=[0.5, 0]), "damaged"),
    (flow_changed(root="00"), "damaged"),
    (flow_changed(root=None), "damaged"),
    (flow_changed(share="much"), "damaged"),
    (flow_changed(share=None), "damaged"),
    (flow_changed(share=[0.5]), "damaged"),
    (flow_changed(share=10**400), "damaged"),
]


@pytest.mark.parametrize(("data", "says"), DAMAGED)
def test_damage_is_said_in_one_sentence(tmp_path: Path, data: Any, says: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError, match=re.escape(says)) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"cannot read {str(path)!r}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0, -1, float("nan"), float("inf"), 1e308])
def test_shares_that_cannot_be_are_left_to_verify(share: float) -> None:
    data = changed(flows=[{**flow, "share": share} for flow in SAMPLE["flows"]])
    made = from_json(json.loads(json.dumps(data)))
    assert isinstance(made, Plan)
    with pytest.raises(VerifyError, match="share"):
        verify(made)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"not json", "is not JSON"),
        (b'{"meshmend": "plan"', "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"<svg/>", "is not JSON .*make it with meshmend plan MESH --json"),
    ],
)
def test_what_is_not_json_is_said(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=says) as caught:
        load(str(path))
    assert repr(str(path)) in str(caught.value)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda folder: load(folder + "/none.json"), "cannot read .*none.json' .No such file"),
        (lambda folder: load(folder), "cannot read .* .Is a directory"),
        (lambda folder: save(Mesh(2, 2), folder + "/no/such/folder.json"), "cannot write .* a folder that exists"),
        (lambda folder: plan("2x2").save(folder), "cannot write .* .Is a directory"),
    ],
)
def test_paths_that_do_not_work_are_named(tmp_path: Path, act: Callable[[str], object], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        act(str(tmp_path))


JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["", "N" * 30, "." * 30, "5x6", "1x1", "30x1 wrap=x", "trees", -1, 0, 1e308, 1e-320, 10**400]),
    st.lists(st.integers(-2, 7), max_size=3),
    st.dictionaries(st.sampled_from(["up", "down", "share", "root"]), st.integers(), max_size=2),
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in nested lists and dictionaries."""
    keys: list[Any] = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    return [(data, key) for key in keys] + [place for key in keys for place in places(data[key])]


@st.composite
def mutants(draw: st.DrawFn) -> Any:
    """A good plan's JSON in which things are gone or something else."""
    data = changed(flows=copy.deepcopy(SAMPLE["flows"][: draw(st.integers(1, 3))]))
    for _ in range(draw(st.integers(1, 3))):
        inside, key = draw(st.sampled_from(places(data)))
        if draw(st.booleans()):
            del inside[key]
        else:
            inside[key] = draw(JUNK)
    return data


@settings(max_examples=400)
@given(mutants())
def test_a_mutant_is_refused_or_has_the_shape_of_a_plan(data: Any) -> None:
    try:
        made = from_json(data)
    except MeshmendError as error:
        assert str(error)
        return
    if isinstance(made, Plan):
        flows, size = len(data["flows"]), made.mesh.size
        assert made.share.shape == made.root.shape == (flows,)
        assert made.up.shape == made.down.shape == (flows, size)
        assert ((made.up >= -1) & (made.up <= 3) & (made.down >= -1) & (made.down <= 3)).all()
        assert ((made.root >= 0) & (made.root < size)).all()
        assert isinstance(made.why, str) and isinstance(made.algorithm, str) and isinstance(made.overlap, bool)
    else:
        assert made == Mesh.parse(data["mesh"])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_damage_is_a_sentence_or_a_plan_that_can_be_judged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    good = json.dumps(SAMPLE)
    if data.draw(st.booleans()):
        path.write_text(json.dumps(data.draw(damaged(SAMPLE))))
    else:
        path.write_bytes(data.draw(damaged_bytes(good.encode())))
    try:
        with modest():
            found = load(str(path))
    except FormatError as error:
        assert "\n" not in str(error)
        return
    if isinstance(found, Plan):
        with contextlib.suppress(VerifyError):
            verify(found)
