"""What a run has saved, read by others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.cli import main
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.base import OBJECTS
from meshmend.job.loading import export
from meshmend.job.state.safetensors import latest, load, save
from tests.strategies import damaged, misshapen, modest

TREE: dict[str, Any] = {
    "layers": [{"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"w": np.ones(2, np.int32)}],
    "step": np.int64(3),
}


class Pair(NamedTuple):
    a: Any
    b: Any


def made(tmp_path: Path, state: Any, step: int = 7, name: str = "") -> Path:
    folder = tmp_path / "runs" / "mine" / "checkpoints"
    return save(folder, state.leaves(), step=step, about={}, name=name)


def read_plain(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A safetensors file, by the book: the length of the header, the header, the arrays."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    assert length % 8 == 0 and max(one["data_offsets"][1] for k, one in head.items() if k[0] != "_") == len(body)
    return head, {k: body[slice(*one["data_offsets"])] for k, one in head.items() if k != "__metadata__"}


def test_a_tree_comes_back_as_dicts_and_lists_or_like_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path, TreeState(TREE))
    found = mm.load_checkpoint("mine")
    np.testing.assert_array_equal(found["layers"][0]["w"], TREE["layers"][0]["w"])
    assert found["step"] == 3 and isinstance(found["layers"], list)
    assert mm.load_checkpoint(tmp_path / "runs" / "mine")["step"] == 3
    made(tmp_path, TreeState(Pair(np.zeros(2), [np.ones(1)])), 8)
    found = mm.load_checkpoint("mine", like=Pair(np.empty(2), [np.empty(1)]))
    assert isinstance(found, Pair) and found.b[0] == 1
    with pytest.raises(mm.JobError, match="not in both"):
        mm.load_checkpoint("mine", like={"c": 1})


def test_the_last_one_or_the_one_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for step, name in ((5, "best"), (9, ""), (7, "")):
        made(tmp_path, TreeState(np.array(step)), step, name)
    assert mm.load_checkpoint("mine") == 9 and mm.load_checkpoint("mine", "best") == 5
    assert mm.load_checkpoint(tmp_path / "runs/mine/checkpoints/best.safetensors") == 5
    for words in (("other",), ("mine", "worst")):
        with pytest.raises(mm.JobError, match=words[-1]):
            mm.load_checkpoint(*words)


def test_state_dicts_load_what_was_saved_and_export_writes_the_model(tmp_path: Path, capsys: Any) -> None:
    from meshmend.job.frameworks.torch import TorchState

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    path = made(tmp_path, TorchState((model, optimizer)))
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    found = mm.load_checkpoint(path)
    other.load_state_dict(found["model"])
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True))
    assert found["optimizer"]["param_groups"][0]["lr"] == 0.25
    out = tmp_path / "weights.safetensors"
    assert main(["export", str(path), str(out)]) == 0 and str(out) in capsys.readouterr().out
    head, arrays = read_plain(out)
    assert arrays.keys() == model.state_dict().keys() and head["__metadata__"] == {"format": "pt"}
    assert head["0.weight"]["dtype"] == "BF16" and head["0.weight"]["shape"] == [2, 3]
    assert arrays["0.weight"] == model[0].weight.detach().view(torch.uint16).numpy().tobytes()
    assert main(["export", str(path), str(out), "--every"]) == 0
    assert len(read_plain(out)[1]) > len(arrays)


def test_every_type_of_a_tree_is_exported(tmp_path: Path) -> None:
    tree = {"bf16": np.ones(3, ml_dtypes.bfloat16), "bool": np.array([True]), "c": np.zeros(1, np.complex64), **TREE}
    path = made(tmp_path, TreeState(tree))
    out = tmp_path / "weights.safetensors"
    assert main(["export", str(path), str(out)]) == 0
    assert read_plain(out)[1] == {name: array.tobytes() for name, array in TreeState(tree).leaves()}


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    path = made(tmp_path, TreeState(TREE))
    for run, out in (("none such", "x"), (str(path), str(tmp_path / "none" / "such"))):
        assert main(["export", run, out]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def judge(path: Path) -> None:
    """Everything that reads a state gives a sentence, or an answer."""
    for use in (
        lambda: mm.load_checkpoint(path),
        lambda: export(path, path.with_name("out")),
        lambda: export(path, path.with_name("out"), every=True),
    ):
        try:
            with modest():
                use()
        except mm.MeshmendError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000


def torch_state() -> Any:
    from meshmend.job.frameworks.torch import TorchState

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return TorchState((model, optimizer))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_state_that_is_not_as_it_says_is_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of PyTorch objects, where what they are is described in the state, and of a tree; its checksum is right."""
    state = data.draw(st.sampled_from([torch_state(), TreeState(TREE)]))
    leaves = [(name, np.asarray(value)) for name, value in state.leaves()]
    if OBJECTS in dict(leaves) and data.draw(st.booleans()):
        text = json.dumps(data.draw(damaged(json.loads(bytes(dict(leaves)[OBJECTS]))))).encode()
        leaves = [(name, np.frombuffer(text, np.uint8) if name == OBJECTS else value) for name, value in leaves]
    else:
        leaves = data.draw(misshapen(leaves))
    path = save(tmp_path_factory.mktemp("run"), leaves, step=7, about={})
    judge(path)
    try:
        state.adopt(load(path, state.template())[0])
    except mm.MeshmendError as error:
        assert "\n" not in str(error)


def test_a_state_beside_embedding_tables_is_loaded_without_them(tmp_path: Path) -> None:
    about = {"sharded": {"folder": "slices-00000007"}}  # what an index of tables says of its slices
    path = save(tmp_path, TreeState(TREE).leaves(), step=7, about=about)
    assert mm.load_checkpoint(path)["step"] == 3
    assert main(["export", str(path), str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_is_passed_over_and_nobody_waits_for_it(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = save(tmp_path, TreeState(TREE).leaves(), step=7, about={})
    make(tmp_path / "step-00000008.safetensors")
    told: list[mm.FormatError] = []
    assert latest(tmp_path, told.append) == path and "is not a file" in str(told[0])


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    monkeypatch.chdir(tmp_path)
    return lambda: tmp_path / "checkpoints" / "best.safetensors"


def test_a_job_saves_what_was_committed_last_under_a_name(alone: Callable[[], Path]) -> None:
    with mm.Job(np.ones(8, np.float32), batch=8, lanes=4) as job:
        state = job.share(np.zeros((), np.float32))
        for step in job.steps(3):
            state = state + job.sum(lambda lane: lane.sum())
            job.commit(state)
            if step == 1:
                job.save("best")
        for name in ("", "step-00000001", "../up", "a/b"):
            with pytest.raises(mm.JobError, match="letters"):
                job.save(name)
    assert mm.load_checkpoint(alone()) == 16 and mm.load_checkpoint(".", "best") == 16


def test_a_checkpoint_keeps_the_numbers_it_was_saved_with(alone: Callable[[], Path]) -> None:
    for _ in range(2):
        with mm.Job(np.ones(8, np.float32), batch=8, lanes=4) as job:
            job.share(np.zeros((), np.float32))
            assert job.saved("best") == {}  # what the first job has saved is not this one's
            job.save("best", loss=np.float32(0.5), right=7)
            assert job.saved("best") == {"loss": 0.5, "right": 7.0}
            with pytest.raises(mm.JobError):
                job.save("best", loss="low")
    alone().write_bytes(b"damaged")
    assert job.saved("best") == {}
