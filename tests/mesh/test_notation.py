"""The notation: every form is read, every mesh is written and read back, and every mistake is named with its place."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshmend.errors import MeshError
from meshmend.mesh import PRESETS, Mesh
from meshmend.mesh.grid import Chip, Link


def block(row: int, col: int, height: int, width: int) -> frozenset[Chip]:
    return frozenset((row + i, col + j) for i in range(height) for j in range(width))


FORMS = [
    ("16x32", Mesh(16, 32)),
    ("  2x3\t\n", Mesh(2, 3)),
    ("128x32 wrap=y", Mesh(128, 32, (False, True))),
    ("16x16 wrap=x", Mesh(16, 16, (True, False))),
    ("16x16 wrap=xy", Mesh(16, 16, (True, True))),
    ("tpu-v3-512", Mesh(16, 32)),
    ("tpu-v3-1024", Mesh(32, 32)),
    ("tpu-v3-pod", Mesh(32, 32, (True, True))),
    ("tpu-v3-multipod", Mesh(128, 32, (False, True))),
    ("tpu-v3-512 wrap=xy -chip@0,0", Mesh(16, 32, (True, True), block(0, 0, 1, 1))),
    ("16x32 -4x2@6,12", Mesh(16, 32, dead_chips=block(6, 12, 4, 2))),
    ("4x4 -chip@3,2", Mesh(4, 4, dead_chips=block(3, 2, 1, 1))),
    ("4x5 -link@3,4:3,3", Mesh(4, 5, dead_links=frozenset({((3, 3), (3, 4))}))),
    ("4x5 wrap=y -link@3,4:3,0", Mesh(4, 5, (False, True), dead_links=frozenset({((3, 0), (3, 4))}))),
    ("8x8 -board@2,4", Mesh(8, 8, dead_chips=block(2, 4, 2, 2))),
    ("8x8 -board@3,5", Mesh(8, 8, dead_chips=block(2, 4, 2, 2))),
    ("8x8 -host@7,7", Mesh(8, 8, dead_chips=block(4, 6, 4, 2))),
    ("8x8 -host@4,6", Mesh(8, 8, dead_chips=block(4, 6, 4, 2))),
    ("5x5 -board@4,4", Mesh(5, 5, dead_chips=block(4, 4, 1, 1))),
    ("5x5 -board@0,4", Mesh(5, 5, dead_chips=block(0, 4, 2, 1))),
    ("6x5 -host@5,4", Mesh(6, 5, dead_chips=block(4, 4, 2, 1))),
    ("4x4 -2x2@0,0 wrap=x -2x2@1,1", Mesh(4, 4, (True, False), block(0, 0, 2, 2) | block(1, 1, 2, 2))),
]


@pytest.mark.parametrize(("text", "mesh"), FORMS)
def test_every_form_is_read(text: str, mesh: Mesh) -> None:
    assert Mesh.parse(text) == mesh


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_it_stands_for(name: str) -> None:
    assert Mesh.parse(name) == Mesh.parse(PRESETS[name])
    mesh = Mesh.parse(PRESETS[name])
    host, block = {2: ("3,1", "4x2@0,0"), 3: ("3,1,2", "2x2x1@2,0,2")}[len(mesh.dims)]
    assert Mesh.parse(f"{name} -host@{host}") == mesh.fail(f"-{block}")
    assert Mesh.parse(str(mesh)) == mesh


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (Mesh(16, 32).fail("-host@6,12", "-host@4,14"), "16x32 -4x4@4,12"),
        (Mesh(4, 4, (True, True)), "4x4 wrap=xy"),
        (Mesh(4, 4).fail((3, 3), (0, 0), (0, 1)), "4x4 -1x2@0,0 -chip@3,3"),
        (Mesh(4, 4).fail(((1, 1), (1, 0)), (3, 3)), "4x4 -chip@3,3 -link@1,0:1,1"),
    ],
)
def test_dead_chips_are_written_as_blocks(mesh: Mesh, text: str) -> None:
    assert str(mesh) == text
    assert repr(mesh) == f"Mesh.parse({text!r})"


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, int, int, tuple[bool, bool], set[Chip], set[Link]]:
    """A mesh in words, with what each word should mean."""
    rows, cols = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    wrap = (rows > 2 and draw(st.booleans()), cols > 2 and draw(st.booleans()))
    words = ["wrap=" + "x" * wrap[0] + "y" * wrap[1]] if any(wrap) else []
    chips: set[Chip] = set()
    links: set[Link] = set()
    for kind in draw(st.lists(st.sampled_from(["block", "chip", "board", "host", "link"]), max_size=6)):
        r, c = draw(st.integers(0, rows - 1)), draw(st.integers(0, cols - 1))
        if kind == "block":
            height, width = draw(st.integers(1, rows - r)), draw(st.integers(1, cols - c))
            words.append(f"-{height}x{width}@{r},{c}")
            chips |= block(r, c, height, width)
        elif kind == "link":
            ends = [(r + 1, c)] * (r + 1 < rows) + [(r, c + 1)] * (c + 1 < cols)
            ends += [(0, c)] * (wrap[0] and r == rows - 1) + [(r, 0)] * (wrap[1] and c == cols - 1)
            if ends:
                there = draw(st.sampled_from(ends))
                words.append(f"-link@{r},{c}:{there[0]},{there[1]}")
                links.add(((r, c), there))
        else:
            height, width = {"chip": (1, 1), "board": (2, 2), "host": (4, 2)}[kind]
            words.append(f"-{kind}@{r},{c}")
            held = block(r - r % height, c - c % width, height, width)
            chips |= {chip for chip in held if chip[0] < rows and chip[1] < cols}
    return " ".join([f"{rows}x{cols}", *draw(st.permutations(words))]), rows, cols, wrap, chips, links


@given(spelled())
def test_any_mesh_is_read_and_written_back(
    case: tuple[str, int, int, tuple[bool, bool], set[Chip], set[Link]],
) -> None:
    text, rows, cols, wrap, chips, links = case
    if len(chips) == rows * cols:
        with pytest.raises(MeshError, match=f"all {rows * cols} chips of {rows}x{cols} are dead"):
            Mesh.parse(text)
        return
    mesh = Mesh.parse(text)
    assert mesh == Mesh(rows, cols, wrap, frozenset(chips), frozenset(links))
    assert Mesh.parse(str(mesh)) == mesh
    assert str(Mesh.parse(str(mesh))) == str(mesh)


BEGINS = "begins with ROWSxCOLS such as 16x32, or a preset (tpu-v3-512, tpu-v3-1024, tpu-v3-pod, tpu-v3-multipod, "
EXPECTED = "expected ROWSxCOLS or a preset, then wrap="
HOLE = "a hole is -ROWSxCOLS@ROW,COL, -chip@R,C, -link@R,C:R,C, -board@R,C or -host@R,C"
NEIGHBOURS = "a link joins two neighbouring chips"

MISTAKES = [
    # text, the word at fault, its place counted from 1, what is allowed instead
    ("16", "16", 0, BEGINS),
    ("16x", "16x", 0, BEGINS),
    ("x16", "x16", 0, BEGINS),
    ("4X4", "4X4", 0, BEGINS),
    ("4*4 -chip@0,0", "4*4", 1, BEGINS),
    (" 4×4", "4×4", 2, BEGINS),
    ("-2x2@0,0 4x4", "-2x2@0,0", 1, BEGINS),
    ("tpu-v3-513 -chip@0,0", "tpu-v3-513", 1, BEGINS),
    ("9" * 5000 + "x4 wrap=x", "9" * 5000 + "x4", 1, BEGINS),
    ("4x4 hello", "hello", 5, EXPECTED),
    ("4x4 -chip@1,1 6x6", "6x6", 15, EXPECTED),
    ("4x4 chip@1,1", "chip@1,1", 5, EXPECTED),
    ("4x4  wrap=z", "wrap=z", 6, "wrap takes x (join the ends of the columns), y (of the rows) or xy, once"),
    ("4x4 wrap=x wrap=y", "wrap=y", 12, "once"),
    ("4x4 wrap=", "wrap=", 5, "wrap takes x"),
    ("4x4 wrap=yx", "wrap=yx", 5, "wrap takes x"),
    ("4x4 wrap=XY", "wrap=XY", 5, "wrap takes x"),
    ("4x4 -foo", "-foo", 5, HOLE),
    ("4x4 -2x2", "-2x2", 5, HOLE),
    ("4x4 -chip@1,1 -chip@1", "-chip@1", 15, HOLE),
    ("4x4 -chip@1,1,1", "-chip@1,1,1", 5, HOLE),
    ("4x4 -link@1,1", "-link@1,1", 5, HOLE),
    ("4x4 -host@a,b", "-host@a,b", 5, HOLE),
    ("4x4 -chip@1.5,1", "-chip@1.5,1", 5, HOLE),
    ("4x4 -2x2@3,3", "-2x2@3,3", 5, "rows 3 to 4 and cols 3 to 4, outside the 4x4 mesh (rows 0 to 3, cols 0 to 3)"),
    ("4x4 -1x1@0,4", "-1x1@0,4", 5, "outside the 4x4 mesh (rows 0 to 3, cols 0 to 3)"),
    ("4x4 -1x1@-1,0", "-1x1@-1,0", 5, "outside the 4x4 mesh (rows 0 to 3, cols 0 to 3)"),
    ("4x4 -0x2@1,1", "-0x2@1,1", 5, "at least 1 row and 1 col, not 0x2"),
    ("4x4 -2x-1@1,1", "-2x-1@1,1", 5, "at least 1 row and 1 col, not 2x-1"),
    ("4x6 -chip@4,0", "-chip@4,0", 5, "outside the 4x6 mesh: rows go from 0 to 3 and cols from 0 to 5"),
    ("4x6 -board@0,6", "-board@0,6", 5, "rows go from 0 to 3 and cols from 0 to 5"),
    ("4x6 -host@-1,0", "-host@-1,0", 5, "rows go from 0 to 3 and cols from 0 to 5"),
    ("4x4 -link@0,0:1,1", "-link@0,0:1,1", 5, NEIGHBOURS),
    ("4x4 -link@0,0:0,0", "-link@0,0:0,0", 5, NEIGHBOURS),
    ("4x4 wrap=x -link@0,0:0,3", "-link@0,0:0,3", 12, NEIGHBOURS),
    ("4x4 -link@3,3:3,4", "-link@3,3:3,4", 5, "rows go from 0 to 3 and cols from 0 to 3"),
    ("4x4 -chip@" + "9" * 5000 + ",0", "-chip@" + "9" * 5000 + ",0", 5, HOLE),
]


@pytest.mark.parametrize(("text", "word", "at", "allowed"), MISTAKES)
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(text: str, word: str, at: int, allowed: str) -> None:
    with pytest.raises(MeshError) as caught:
        Mesh.parse(text)
    message = str(caught.value)
    assert message.startswith(f"cannot read {word!r}" + (f" at character {at} of {text!r}: " if at else ": "))
    assert allowed in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("0x4", "at least 1 row, not 0"),
        ("4x0 -chip@0,0", "at least 1 col, not 0"),
        ("-1x4", "at least 1 row, not -1"),
        ("4x-4", "at least 1 col, not -4"),
        ("2x4 wrap=x", "wrap=x joins the ends of a side of 2, .* a wrapped side needs at least 3 rows"),
        ("4x2 wrap=xy", "wrap=y joins the ends of a side of 2, .* a wrapped side needs at least 3 cols"),
        ("4x1 wrap=y", "wrap=y .* a side of 1, .* at least 3 cols"),
        ("1x1 -chip@0,0", "at least one must be alive"),
        ("4x4 -2x4@0,0 -2x4@2,0", "all 16 chips of 4x4 are dead: at least one must be alive"),
        ("100000x100000", "chips"),
    ],
)
def test_a_mesh_that_cannot_be_is_named(text: str, allowed: str) -> None:
    with pytest.raises(MeshError, match=allowed) as caught:
        Mesh.parse(text)
    assert str(caught.value).startswith(f"cannot build {text!r}: ")


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_no_text_is_no_mesh(text: str) -> None:
    with pytest.raises(MeshError, match="the mesh is empty: expected ROWSxCOLS or a preset"):
        Mesh.parse(text)


WORDS = ["4x4", "3x1", "0x2", "tpu-v3-512", " ", "  ", "wrap=", "x", "y", "-", "--", "chip", "link", "board", "host"]
WORDS += ["@", ",", ":", "0", "1", "3", "7", "0,0", "0,1", "-1", "@1,2", "é", "½", "٣", "\x00", "x" * 40]


@given(
    st.one_of(
        st.text("0123489x@,:-= wrapychilnkbosdtu\t", max_size=30),
        st.lists(st.sampled_from(WORDS), max_size=14).map("".join),
        st.lists(st.sampled_from(WORDS), max_size=10).map("".join).map("4x4 ".__add__),
    )
)
@example("4x4 -²x2@0,0")
@example("٣x٣")
@example("4x4 -link@0,0:0,1:0,2")
def test_no_text_raises_anything_but_a_mesh_error(text: str) -> None:
    try:
        mesh = Mesh.parse(text)
    except MeshError as error:
        assert str(error)
        return
    assert Mesh.parse(str(mesh)) == mesh
