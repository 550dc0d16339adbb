"""Meshes from Tenstorrent's mesh graph descriptors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.mesh.descriptor import notation_of
from meshmend.mesh.textproto import _TOKEN
from tests.strategies import modest

MESH = """
# a Galaxy
mesh_descriptors {{
  name: "M0" arch: WORMHOLE_B0
  device_topology {{ dims: [ {dims} ] dim_types: [ {kinds} ] }}
  host_topology: {{ dims: 1, dims: 1; }}
  channels {{ count: 4 policy: STRICT }}
  something_new: -1.5e3
}}
"""
ONE = 'top_level_instance { mesh { mesh_descriptor: "M0" mesh_id: 0 } }'


def node(mesh: int, device: int) -> str:
    return f"nodes {{ mesh {{ mesh_descriptor: 'M0' mesh_id: {mesh} device_id: {device} }} }}"


def joined(pairs: list[tuple[int, int, int, int, int]], meshes: int = 2) -> str:
    """Meshes of 2x3 with cables (mesh, device, mesh, device, channels)."""
    instances = "".join(f"instances {{ mesh {{ mesh_descriptor: 'M0' mesh_id: {i} }} }}" for i in range(meshes))
    cables = "".join(
        f"connections {{ {node(a, b)} {node(c, d)} channels {{ count: {n} }} }}" for a, b, c, d, n in pairs
    )
    graph = f"graph_descriptors {{ name: 'G0' type: 'FABRIC' {instances} {cables} }}"
    return (
        MESH.format(dims="2, 3", kinds="")
        + graph
        + "top_level_instance { graph { graph_descriptor: 'G0' graph_id: 0 } }"
    )


@pytest.mark.parametrize(
    ("dims", "kinds", "notation"),
    [
        ("8, 4", "RING, LINE", "8x4 wrap=x"),
        ("8, 4", "RING, RING", "8x4 wrap=xy"),
        ("8, 2", "LINE, RING", "8x2"),
        ("4, 4, 4", "LINE, RING, RING", "4x4x4 wrap=yz"),
        ("2, 4", "", "2x4"),
    ],
)
def test_one_mesh(dims: str, kinds: str, notation: str) -> None:
    assert notation_of(MESH.format(dims=dims, kinds=kinds) + ONE) == notation


def test_meshes_side_by_side_are_one_grid_with_its_real_cables() -> None:
    assert notation_of(joined([(0, 2, 1, 0, 4), (0, 5, 1, 3, 4)])) == "2x6"
    assert notation_of(joined([(0, 3, 1, 0, 4), (0, 4, 1, 1, 4), (0, 5, 1, 2, 4)])) == "4x3"
    assert notation_of(joined([(1, 3, 0, 0, 4), (1, 4, 0, 1, 4), (1, 5, 0, 2, 4)])) == "4x3"
    assert notation_of(joined([(0, 2, 1, 0, 2)])) == "2x6 ~1/2@0,2:0,3 -link@1,2:1,3"
    assert notation_of(joined([(0, 2, 1, 0, 2), (0, 2, 1, 0, 2), (0, 5, 1, 3, 4)])) == "2x6"
    corner = [(0, 2, 1, 0, 4), (0, 5, 1, 3, 4), (0, 3, 2, 0, 4), (0, 4, 2, 1, 4), (0, 5, 2, 2, 4)]
    mesh = mm.Mesh.parse(notation_of(joined(corner, 3)))
    assert str(mesh) == "4x6 -2x3@2,3"


def test_a_file_is_a_mesh_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "machine.textproto"
    path.write_text(joined([(0, 2, 1, 0, 2), (0, 5, 1, 3, 4)]))
    mesh = mm.Mesh.parse(f"{path} -chip@0,0")
    assert str(mesh) == "2x6 -chip@0,0 ~0.5@0,2:0,3" and mm.Mesh.parse(str(mesh)) == mesh
    made = mm.plan(mesh, algorithm="trees")
    mm.verify(made)
    parts = np.arange(11 * 40).reshape(11, 40)
    assert (mm.local.allreduce(made, parts) == parts.sum(0)).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no mesh_descriptors or no top_level_instance"),
        ("just some words", "'some' was found where a colon or a bracket after just was expected"),
        ("a: 1\n%", "line 2 is not textproto, at '%'"),
        ("a { b: 1", "it ends before }"),
        ("a: [1, 2", "it ends before ]"),
        ("a: }", "'}' was found where a value"),
        ('{"mesh": "8x4"}', "'{' was found where the name of a field"),
        (MESH.format(dims="8", kinds="") + ONE, "a mesh has 1 dimension; only 2 or 3"),
        (MESH.format(dims="8, 0", kinds="") + ONE, "dims has '0', expected a whole number, 1 or more"),
        (MESH.format(dims="8, 4", kinds="TREE") + ONE, "RING or LINE, not TREE"),
        (MESH.format(dims="8, 4", kinds="") + ONE.replace("M0", "M1"), "no mesh descriptor 'M1'"),
        (joined([(0, 0, 1, 5, 4)]), "do not fit on a grid"),
        (joined([(0, 2, 1, 0, 4), (0, 5, 1, 0, 4)]), "do not fit on a grid"),
        (joined([(0, 99, 1, 0, 4)]), "names device 99, which its mesh of 6 does not have"),
        (joined([]).replace("instances", "others"), "graph 'G0' has no instances"),
        (joined([(0, 2, 1, 0, 4)]).replace("connections {", "connections: 5 c {"), "connections needs a message"),
        (MESH.format(dims="99999, 99999", kinds="") + ONE, "99999x99999 has 9,999,800,001 chips"),
        (MESH.format(dims="8, { a: 1 }", kinds="") + ONE, "the field dims needs a plain value"),
        (MESH.format(dims="8, 4", kinds="< >") + ONE, "the field dim_types needs a plain value"),
        ("mesh_descriptors { name { a: 1 } }" + ONE, "the field name needs a plain value"),
        ("mesh_descriptors { name: 'M0' device_topology: 5 }" + ONE, "the field device_topology needs a message"),
        ("mesh_descriptors: 5 " + ONE, "the field mesh_descriptors needs a message"),
        (MESH.format(dims="8, 4", kinds="") + "top_level_instance: 3", "top_level_instance needs a message"),
        ("a{" * 5000, "brackets are nested more than 50 deep"),
        ("a:" + "[" * 5000, "brackets are nested more than 50 deep"),
        (joined([]), "1 of its 2 meshes are not connected"),
        (joined([(0, 2, 7, 0, 4)]), "a connection needs two nodes"),
        (joined([]).replace("type: 'FABRIC'", "graph_topology: ALL_TO_ALL"), "does not say which devices are joined"),
    ],
)  # fmt: skip
def test_what_is_no_descriptor_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "machine.textproto"
    path.write_text(text)
    with pytest.raises(mm.MeshError, match="as a mesh graph descriptor") as caught:
        mm.Mesh.parse(str(path))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.textproto").write_bytes(b"\xff\xfe")
    for name, words in (("a.textproto", "not text"), ("none.textproto", "No such file")):
        with pytest.raises(mm.MeshError, match=words):
            mm.Mesh.parse(str(tmp_path / name))


WRONG = [
    "0", "-1", "100000", "999999999", "5" * 5000, "1e9", "nan", "é", "{", "}", "[", "]", ":", "<", ">", "''", "name",
    "RING", "\"M0\"", "\"M1\"", "x: { a: 1 }", "{" * 5000,
]  # fmt: skip
"""What may stand in a descriptor where something else should."""
FILES = [
    joined([(0, 2, 1, 0, 2), (0, 5, 1, 3, 4)]),
    joined([(0, 2, 1, 0, 4), (0, 5, 1, 3, 4), (0, 3, 2, 0, 4), (0, 4, 2, 1, 4), (0, 5, 2, 2, 4)], 3),
    MESH.format(dims="8, 4", kinds="RING, LINE") + ONE,
]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_is_a_sentence_or_a_mesh(data: st.DataObject) -> None:
    words = [match.group() for match in _TOKEN.finditer(data.draw(st.sampled_from(FILES)))]
    for _ in range(data.draw(st.integers(1, 3))):
        at, of = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["change", "change", "change", "remove", "repeat", "cut"])):
            case "change":
                words[at] = data.draw(st.sampled_from(WRONG))
            case "remove" if len(words) > 1:
                del words[at]
            case "repeat":
                words[at:at] = words[of : of + data.draw(st.sampled_from([1, 5, 20]))]
            case _:
                words[at] = words[at][:-1]
    try:
        with modest():
            found = notation_of("".join(words))
    except mm.MeshError as error:
        assert "\n" not in str(error) and len(str(error)) < 6000
    else:
        assert found.split()[0].replace("x", "").isdecimal()


def test_a_mesh_of_many_chips_takes_no_memory_to_read() -> None:
    with modest(1 << 20):
        assert notation_of(MESH.format(dims="1000, 1000", kinds="") + ONE) == "1000x1000"
