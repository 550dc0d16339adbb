"""Every kind of thing comes back bit for bit from either form, and what is damaged is refused in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import FormatError, Mesh, MeshmendError, VerifyError, load, plan, save, tile, verify
from meshmend.cli import main
from meshmend.mesh.files import binary, files
from meshmend.mesh.files.binary import MAGIC, from_bytes, to_bytes
from meshmend.mesh.files.forms import KINDS, Form, Thing, from_form, to_form
from meshmend.mesh.files.text import to_json
from meshmend.mesh.staged import staged
from tests.strategies import damaged_bytes, modest

HOLED = "5x6 wrap=y -2x2@1,2 -link@4,0:4,1 ~0.5@0,0:0,1"
MADE: dict[str, Callable[[], Thing]] = {
    "mesh": lambda: Mesh.parse(HOLED),
    "plan": lambda: plan(HOLED, algorithm="trees"),
    "flat plan": lambda: plan("4x5", algorithm="rowcol"),
    "schedule": lambda: plan(HOLED, algorithm="trees").schedule(300),
    "slow schedule": lambda: plan("3x3", 1e4).schedule(nbytes=1e4),
    "groups": lambda: plan("4x6 -chip@3,3", groups=tile(2, 1)),
    "groups' schedule": lambda: plan("4x6 -chip@3,3", groups=tile(2, 1)).schedule(),
    **{
        name: lambda name=name: plan("3x4 -chip@1,1", collective=name)  # type: ignore[misc]
        for name in ("reduce_scatter", "all_gather", "broadcast", "all_to_all")
    },
    "all_to_all schedule": lambda: plan("3x3 -chip@1,1", collective="all_to_all").schedule(),
    "staged plan": lambda: staged(Mesh.parse("4x3x5 wrap=xz"), (2, 1, 2)),
    "staged schedule": lambda: staged(Mesh.parse("4x3 wrap=x"), (2, 1)).schedule(nbytes=3e4),
    "single chip": lambda: plan("1x1", collective="all_gather"),
}


def assert_same(one: Thing, other: Thing) -> None:
    assert type(one) is type(other)
    ours, theirs = to_form(one), to_form(other)
    assert ours.fields == theirs.fields
    for name, column in ours.columns.items():
        assert column.dtype == theirs.columns[name].dtype, name
        assert column.tobytes() == theirs.columns[name].tobytes(), name
    if not isinstance(one, Mesh) and not isinstance(other, Mesh):
        assert one.digest == other.digest


@pytest.mark.parametrize("ending", ["json", "mm"])
@pytest.mark.parametrize("name", MADE)
def test_everything_comes_back_bit_for_bit(tmp_path: Path, name: str, ending: str) -> None:
    made, path = MADE[name](), str(tmp_path / f"ü.{ending}")
    save(made, path)
    again = load(path)
    assert_same(made, again)
    if not isinstance(again, Mesh):
        verify(again)


def test_the_binary_form_is_small(tmp_path: Path) -> None:
    made = plan("16x16 -2x2@4,4", algorithm="trees")
    for thing, most in ((made, 0.5), (made.schedule(512), 0.35)):
        sizes = []
        for ending in ("json", "mm"):
            path = tmp_path / f"thing.{ending}"
            save(thing, str(path))
            sizes.append(path.stat().st_size)
        assert sizes[1] < most * sizes[0], sizes


FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("plan", {"overlap": "no"}, "overlap is 'no', expected true or false"),
    ("plan", {"overlap": 1}, "overlap is '1', expected true or false"),
    ("plan", {"algorithm": 7}, "algorithm is '7', expected text"),
    ("plan", {"mesh": "5x5"}, "on a mesh of 25 chips"),
    ("plan", {"mesh": "nonsense"}, "nonsense"),
    ("schedule", {"chunks": 1.5}, "chunks is '1.5', expected a whole number"),
    ("schedule", {"hop": True}, "hop is 'True', expected a whole number"),
    ("schedule", {"pace": -1}, "pace is -1, expected 0 to"),
    ("schedule", {"hop": 10**30}, "expected 0 to"),
    ("groups", {"cut": None}, "cut is 'None', expected a whole number"),
    ("groups", {"bound": "1/0"}, "damaged"),
    ("groups", {"bound": "much"}, "damaged"),
]


@pytest.mark.parametrize(("name", "changes", "says"), FIELDS)
def test_fields_are_checked_by_type(name: str, changes: dict[str, Any], says: str) -> None:
    form = to_form(MADE[name]())
    with pytest.raises(MeshmendError, match=says) as caught:
        from_form(from_bytes(to_bytes(Form(form.kind, {**form.fields, **changes}, form.columns))))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["schedule", "groups", "groups' schedule", "staged plan", "staged schedule"])
def test_every_field_and_column_must_be_there_and_of_its_type(tmp_path: Path, name: str) -> None:
    form = to_form(MADE[name]())
    good = to_json(form)
    path = tmp_path / "changed.json"
    for key in (*form.fields, *form.columns):
        for wrong in (None, {}, [True, 0], ["x"], [0.5, "x"], 1.5):
            path.write_text(json.dumps({**good, key: wrong}))
            with pytest.raises(FormatError, match="create the file again") as caught:
                load(str(path))
            assert "\n" not in str(caught.value)
        path.write_text(json.dumps({other: value for other, value in good.items() if other != key}))
        with pytest.raises(FormatError):
            load(str(path))
    path.write_text(json.dumps({**good, "format": 2}))
    with pytest.raises(FormatError, match="has format 2, but this version reads format 1"):
        load(str(path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:40], "cut off or changed"),
        (lambda data: data[:-1], "does not have"),
        (lambda data: data + b"more", "4 bytes too many"),
        (lambda data: data.replace(MAGIC + b"1", MAGIC + b"2"), "has format '2', but this version reads format 1"),
        (lambda data: data.replace(b'"hop"', b'"hob"'), "cut off or changed"),
        (lambda _: MAGIC, "has format ''"),
    ],
)
def test_a_damaged_binary_file_is_said(tmp_path: Path, change: Callable[[bytes], bytes], says: str) -> None:
    path = tmp_path / "damaged.mm"
    path.write_bytes(change(to_bytes(to_form(MADE["schedule"]()))))
    with pytest.raises(FormatError, match=says) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"cannot read {str(path)!r}: ") and "\n" not in str(caught.value)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_damage_is_a_sentence_or_a_thing_that_can_be_judged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    form = to_form(
        MADE[data.draw(st.sampled_from(["plan", "slow schedule", "groups", "staged plan", "staged schedule"]))]()
    )
    path = tmp_path_factory.mktemp("files") / "thing.mm"
    path.write_bytes(data.draw(damaged_bytes(to_bytes(form))))
    try:
        with modest():
            found = load(str(path))
    except FormatError as error:
        assert "\n" not in str(error)
        return
    if not isinstance(found, Mesh):
        with contextlib.suppress(VerifyError):
            verify(found)


def test_a_wrong_schedule_is_read_and_then_refused_by_verify(tmp_path: Path) -> None:
    form = to_form(MADE["schedule"]())
    slot = form.columns["slot"].copy()
    slot[-1] = 0
    path = str(tmp_path / "wrong.mm")
    Path(path).write_bytes(to_bytes(Form(form.kind, form.fields, {**form.columns, "slot": np.sort(slot)})))
    with pytest.raises(VerifyError):
        verify(load(path))


@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        ("layer_flow", lambda column: column[::-1], "not in order"),
        ("layer_flow", lambda column: column + 1, "not in order"),
        ("layer_stage", lambda column: np.where(column == 1, 2, column), "lacks a stage"),
        ("share", lambda column: column[1:], "do not go together"),
        ("roots", lambda column: column + 10**6, "out of bounds"),
    ],
)
def test_layers_that_make_no_plan_are_refused(column: str, change: Callable[[Any], Any], says: str) -> None:
    form = to_form(MADE["staged plan"]())
    with pytest.raises(FormatError, match=f"the staged plan is damaged.*{says}"):
        from_form(Form(form.kind, form.fields, {**form.columns, column: change(form.columns[column])}))


def test_stages_lie_on_a_grid() -> None:
    form = to_form(MADE["staged schedule"]())
    with pytest.raises(FormatError, match=r"the staged schedule is damaged.*is no grid"):
        from_form(Form(form.kind, {**form.fields, "mesh": "-".join(map(str, range(12)))}, form.columns))


def test_other_things_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"save takes plans .* not str"):
        save("plan", str(tmp_path / "x.mm"))  # type: ignore[arg-type]
    assert list(KINDS) == [
        "plan", "schedule", "collective plan", "collective schedule", "staged plan", "staged schedule", "mesh",
    ]  # fmt: skip


def test_the_command_line_writes_and_proves_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, table = str(tmp_path / "p.mm"), str(tmp_path / "s.mm")
    for words in (["4x4", "-chip@1,1"], ["4x4", "--collective", "all_gather"], ["4x4", "--groups", "2x1"]):
        assert main(["plan", *words, "--json", path]) == 0
        assert f"wrote  {path}" in capsys.readouterr().out
        assert main(["verify", path]) == 0
        assert "schedule  correct" in capsys.readouterr().out
    save(MADE["staged plan"](), path)
    assert main(["verify", path]) == 0
    assert "staged" in capsys.readouterr().out
    for name in ("staged schedule", "schedule"):
        save(MADE[name](), table)
        assert main(["verify", table]) == 0
        assert "schedule  correct" in capsys.readouterr().out
    assert main(["verify", table, "--chunks", "3"]) != 0
    assert "leave out --chunks" in capsys.readouterr().err


@pytest.mark.parametrize("bound", ["1e999999999", "0", "-1", "1/0", "٣"])
def test_a_bound_that_is_none_is_refused_at_once(tmp_path: Path, bound: str) -> None:
    path = tmp_path / "plan.json"
    save(plan("4x4", collective="broadcast"), str(path))
    path.write_text(json.dumps({**json.loads(path.read_text()), "bound": bound}))
    with pytest.raises(FormatError):
        load(str(path))


def packed(kind: str, fields: dict[str, Any], columns: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A binary file that says whatever one likes, with the right checksum."""
    listed = [
        {"name": name, "type": dtype, "shape": shape, "bytes": len(block)}
        for name, (dtype, shape, block) in columns.items()
    ]
    head = json.dumps({"kind": kind, "fields": fields, "columns": listed}).encode()
    sizes = len(head).to_bytes(4, "little") + zlib.crc32(head).to_bytes(4, "little")
    return b"".join([MAGIC, b"1\n", sizes, head, *(block for *_, block in columns.values())])


PLAN = {"mesh": "4x4", "algorithm": "trees", "overlap": True, "why": ""}
CLOCK = {"mesh": "4x4", "chunks": 2**31 - 1, "hop": 1, "pace": 0}
WIDTHS = {"f8": 8, "i4": 4, "i1": 1, "?": 1}
HUGE: dict[str, tuple[str, dict[str, Any], dict[str, tuple[str, list[int]]]]] = {
    "flows": ("plan", PLAN, {"share": ("f8", [5 << 20])}),
    "trees": ("plan", PLAN, {"up": ("i1", [40 << 20, 1])}),
    "trees of another mesh": ("plan", PLAN, {"down": ("i1", [16, 4 << 20])}),
    "transfers": ("schedule", CLOCK, {"slot": ("i4", [11 << 20]), "link": ("i4", [11 << 20])}),
    "chunks": (
        "collective schedule", {**CLOCK, "collective": "broadcast", "cut": 1}, {"owner": ("i4", [10 << 20])}
    ),
    "an unknown column": ("plan", PLAN, {"more": ("i4", [10 << 20])}),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_a_small_file_takes_no_more_memory_than_a_thing_on_its_mesh_can_need(tmp_path: Path, name: str) -> None:
    """Zeros compress a thousandfold: these few KB unpacked to 40 MB before anybody looked at them."""
    kind, fields, columns = HUGE[name]
    blocks = {
        column: (dtype, shape, zlib.compress(bytes(int(np.prod(shape)) * WIDTHS[dtype])))
        for column, (dtype, shape) in columns.items()
    }
    path = tmp_path / "huge.mm"
    path.write_bytes(packed(kind, fields, blocks))
    with pytest.raises(FormatError, match="damaged") as caught, modest(2 << 20):
        load(str(path))
    assert "\n" not in str(caught.value)


def test_what_is_listed_twice_or_longer_than_noise_would_be_is_refused_unread() -> None:
    share = ("f8", [4], zlib.compress(bytes(32)))
    twice = packed("plan", PLAN, {"share": share, "shar3": share}).replace(b"shar3", b"share")
    head = twice[len(MAGIC) + 10 : -2 * len(share[2])]
    twice = twice.replace(twice[len(MAGIC) + 6 : len(MAGIC) + 10], zlib.crc32(head).to_bytes(4, "little"))
    with pytest.raises(FormatError, match="column 'share' is there twice"):
        from_bytes(twice)
    with pytest.raises(FormatError, match="column 'share' has 1000 bytes for 32"):
        from_bytes(packed("plan", PLAN, {"share": ("f8", [4], bytes(1000))}))


def test_noise_fits_its_column() -> None:
    """The most that compressing may add is allowed for."""
    form = to_form(MADE["schedule"]())
    noise = np.random.default_rng(1).integers(0, 2**31 - 1, len(form.columns["slot"]), np.int32)
    again = from_bytes(to_bytes(Form(form.kind, form.fields, {**form.columns, "slot": noise})))
    assert again.columns["slot"].tobytes() == noise.tobytes()


def test_what_could_not_be_read_again_is_not_written() -> None:
    form = to_form(plan("2x2"))
    many = {name: np.repeat(column[:1], 1 << 17, 0) for name, column in form.columns.items()}
    with pytest.raises(FormatError, match=r"the plan has 131,072 rows in share, .* save it as JSON"):
        to_bytes(Form(form.kind, form.fields, many))


@pytest.mark.parametrize(
    ("verb", "name"), [("verify", "p.mm"), ("verify", "p.json"), ("simulate", "p.json"), ("plan", "p.textproto")]
)
def test_nobody_waits_for_a_pipe(tmp_path: Path, verb: str, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    command = [sys.executable, "-P", "-m", "meshmend", verb, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "it is not a file" in done.stderr and done.stderr.count("\n") == 1, done


def test_a_device_without_end_is_not_read() -> None:
    with pytest.raises(FormatError, match=r"^cannot read '/dev/zero' \(it is not a file\)$"):
        load("/dev/zero")


def test_a_file_without_end_is_not_read_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_JSON", 1 << 20)
    monkeypatch.setattr(binary, "MOST_HEAD", 1 << 20)
    path = tmp_path / "sparse"
    for begin, says in ((b"{", "more than 1,048,576 bytes"), (MAGIC + b"1\n" + b"\xff" * 8, "cut off or changed")):
        path.write_bytes(begin)
        os.truncate(path, 1 << 34)
        with pytest.raises(FormatError, match=says), modest(4 << 20):
            load(str(path))
