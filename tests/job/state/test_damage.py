"""Checkpoints with the right checksum and wrong contents, and states that were damaged on their way."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.errors import FormatError, JobError, MeshmendError
from meshmend.job.state.codec import decode, encode
from meshmend.job.state.safetensors import BLANK, OPENING, latest, load, save
from meshmend.job.state.tree import Leaves
from tests.strategies import damaged, damaged_bytes, modest

LEAVES: Leaves = [("w", np.arange(6, dtype=np.float32).reshape(2, 3)), ("n", np.array(3, np.int64))]
ABOUT = {"size": 40, "batch": 8, "lanes": 4, "seed": 0, "grid": [1, 2]}


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def sealed(text: bytes, body: bytes, length: int | None = None) -> bytes:
    """A file with this header and the checksum that belongs to it."""
    assert text.startswith(OPENING)
    start, end = len(OPENING), len(OPENING) + len(BLANK)
    size = (len(text) if length is None else length).to_bytes(8, "little")
    digest = hashlib.sha256(size + text[:start] + BLANK + text[end:] + body).hexdigest().encode()
    return size + text[:start] + digest + text[end:] + body


def texts(head: dict[str, Any]) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode()


def judge(path: Path, template: Leaves | None) -> None:
    try:
        with modest():
            leaves, step, about = load(path, template)
    except MeshmendError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
    else:
        assert step >= 0 and isinstance(about, dict)
        assert sum(value.nbytes for _, value in leaves) <= path.stat().st_size


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_header_that_is_wrong_is_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = save(folder, LEAVES, step=7, about=ABOUT)
    head, body = header_of(path)
    notes = head.pop("__metadata__")
    if data.draw(st.booleans()):
        rest = data.draw(damaged(head))
        head = rest if isinstance(rest, dict) else head
    else:
        kept = notes["sha256"]
        found = data.draw(damaged({**notes, "about": ABOUT}))
        if isinstance(found, dict):
            notes = {**found, "about": json.dumps(found["about"])} if "about" in found else found
        notes = {"sha256": kept, **{name: value for name, value in notes.items() if name != "sha256"}}
    path.write_bytes(sealed(texts({"__metadata__": notes, **head}), body))
    for template in (None, LEAVES):
        judge(path, template)


def spec(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}


WRONG: dict[str, dict[str, Any]] = {
    "931 GiB": {"w": spec(shape=[250_000_000_000], data_offsets=[0, 1_000_000_000_000])},
    "more than there is": {"w": spec(shape=[2, 4], data_offsets=[0, 32])},
    "less than there is": {"w": spec(shape=[2, 2], data_offsets=[0, 16])},
    "a gap": {"w": spec(shape=[5], data_offsets=[4, 24])},
    "the same bytes many times": {str(name): spec() for name in range(1000)},
    "a negative shape": {"w": spec(shape=[-2, -3])},
    "a shape of huge numbers": {"w": spec(shape=[1 << 62, 1 << 62])},
    "offsets of another size": {"w": spec(data_offsets=[0, 20])},
    "offsets backwards": {"w": spec(data_offsets=[24, 0])},
    "three offsets": {"w": spec(data_offsets=[0, 12, 24])},
    "text": {"w": spec(shape="23")},
    "an unknown type": {"w": spec(dtype="F31")},
    "a type of objects": {"w": spec(dtype="O")},
    "no shape": {"w": {"dtype": "F32", "data_offsets": [0, 24]}},
    "a leaf that is a list": {"w": []},
    "too many dimensions": {"w": spec(shape=[1] * 64 + [6])},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_leaf_that_does_not_fit_its_file_is_refused(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, [("w", LEAVES[0][1])], step=7, about=ABOUT)
    head, body = header_of(path)
    path.write_bytes(sealed(texts({"__metadata__": head["__metadata__"], **WRONG[name]}), body))
    for template in (None, [("w", LEAVES[0][1])]):
        with pytest.raises(FormatError), modest():
            load(path, template)
    told: list[FormatError] = []
    assert latest(tmp_path, told.append) is None and len(told) == 1, "the one before it would be taken"


@pytest.mark.parametrize("length", [0, 1, 90, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_header_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    path = save(tmp_path, LEAVES, step=7, about=ABOUT)
    head, body = header_of(path)
    path.write_bytes(sealed(texts(head), body, length))
    with pytest.raises(FormatError), modest():
        load(path, None)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_damage_without_the_checksum_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = save(tmp_path_factory.mktemp("run"), LEAVES, step=7, about=ABOUT)
    good = path.read_bytes()
    bad = data.draw(damaged_bytes(good))
    path.write_bytes(bad)
    if bad != good:
        with pytest.raises(FormatError), modest():
            load(path, None)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_state_that_was_damaged_on_its_way_is_a_sentence(data: st.DataObject) -> None:
    pieces = encode(LEAVES, step=7, grid=[1], pending=None)
    head, body = json.loads(pieces[1]), b"".join(bytes(piece) for piece in pieces[2:])
    if data.draw(st.booleans()):
        text = json.dumps(data.draw(damaged(head))).encode()
        whole = struct.pack("<q", len(text)) + text + body
    else:
        whole = data.draw(damaged_bytes(b"".join(bytes(piece) for piece in pieces)))
    for template in (None, LEAVES):
        try:
            with modest():
                decode(np.frombuffer(whole, np.uint8), template)
        except (FormatError, JobError) as error:
            assert "\n" not in str(error)
