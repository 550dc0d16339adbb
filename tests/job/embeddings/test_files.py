"""A run is resumed, and a worker joins before its first update: it has the rows of the checkpoint, like all others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.base.env import Settings
from meshmend.errors import FormatError, MeshmendError
from meshmend.job.config import JobConfig
from meshmend.job.embeddings.files import SliceFiles
from meshmend.job.embeddings.holder import TableHolder
from meshmend.job.embeddings.placement import Placement
from meshmend.job.embeddings.replica import TableReplica
from meshmend.job.embeddings.saving import TableCheckpoints
from meshmend.job.embeddings.shape import Shape
from meshmend.job.embeddings.shelf import Shelf
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.ledger import StepLedger
from meshmend.job.slices.files import folder_of
from meshmend.job.state.safetensors import load, save
from tests.strategies import damaged, misshapen, modest

SHAPE = Shape((50, 7, 300), 3, memory=1, seed=5)
EVERY = np.arange(357)
SESSION = cast(Any, SimpleNamespace(room=SimpleNamespace(format=lambda: [1, 2], adopt=lambda *_: None)))


def replica() -> TableReplica:
    holder = TableHolder(SHAPE, mm.row_adagrad(0.1), Placement(SHAPE.slices, 0), Shelf(4))
    kind = JobConfig.checked(EVERY, batch=4, lanes=2, seed=0, reduction="exact", wire="float32", nonfinite=None)
    return TableReplica(TreeState(np.zeros(1, np.float32)), kind, holder, SESSION, StepLedger(None), compared=False)


def join(member: TableReplica, step: int) -> TableReplica:
    """A worker that has taken another one's state."""
    made = replica()
    received = b"".join(bytes(part) for part in member.export(SESSION, step, None, on_device=False))
    assert made.adopt(np.frombuffer(received, np.uint8), SESSION) == (step, None)
    return made


def update(holder: TableHolder, step: int) -> None:
    random = np.random.default_rng(step)
    holder.update(step, [0], random.integers(0, 357, 90), random.normal(size=(90, 3)).astype(np.float32))


@pytest.fixture
def written(tmp_path: Path) -> tuple[TableHolder, SliceFiles]:
    """Tables after three steps, and their files."""
    holder = replica().holder
    for step in (1, 2, 3):
        update(holder, step)
    saver = TableCheckpoints(Settings(run="mine", rank=0, folder=tmp_path), cast(Any, None), 1, holder)
    names = saver.write(3, frozenset(range(SHAPE.slices)))
    folder = folder_of(saver._folder, 3)
    return holder, SliceFiles(folder, [names[number] for number in range(SHAPE.slices)], SHAPE)


def test_a_worker_that_joins_before_the_first_update_has_the_rows_of_the_checkpoint(
    written: tuple[TableHolder, SliceFiles],
) -> None:
    true, files = written
    member = replica()
    member.holder.resume(3, files)
    new = join(member, 3)
    newer = join(new, 3)  # it can be asked as well
    for step in (4, 5):
        rows = {one.rows(EVERY).tobytes() for one in (true, member.holder, new.holder, newer.holder)}
        assert len(rows) == 1
        for one in (true, member.holder, new.holder, newer.holder):
            update(one, step)
    kept = {b"".join(one.slice(n).tobytes() for n in range(SHAPE.slices)) for one in (true, new.holder, newer.holder)}
    assert len(kept) == 1  # with what the optimizer remembers


def test_rows_come_from_the_seed_where_there_is_no_checkpoint_and_from_others_after_an_update(
    written: tuple[TableHolder, SliceFiles],
) -> None:
    member = replica()
    assert join(member, 0).holder.rows(EVERY).tobytes() == SHAPE.first(EVERY)[:, :3].tobytes()
    member.holder.resume(3, written[1])
    assert member.holder.files() is not None
    update(member.holder, 4)
    assert member.holder.files() is None and join(member, 4).holder.placement == member.holder.placement


def test_a_file_that_is_missing_or_another_one_is_told(written: tuple[TableHolder, SliceFiles]) -> None:
    facts = written[1].facts()
    names = facts["names"]
    swapped = SliceFiles.known({**facts, "names": [f"0000-{'0' * 16}", *names[1:]]}, SHAPE)
    with pytest.raises(FormatError, match="slice 0 is missing"):
        swapped(EVERY[:2])
    (first,) = Path(facts["folder"]).glob(f"{names[0]}*")
    (second,) = Path(facts["folder"]).glob(f"{names[1]}*")
    first.write_bytes(second.read_bytes())
    with pytest.raises(FormatError, match="slice 0 of"):
        written[1](EVERY[:2])


@given(data=st.data(), of_index=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_checkpoint_that_is_wrong_is_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, of_index: bool
) -> None:
    """Its checksums are right."""
    made, settings = replica(), Settings(run="mine", rank=0, folder=tmp_path_factory.mktemp("run"))
    saver, ledger = TableCheckpoints, StepLedger(None)
    first = saver(settings, ledger, 1, made.holder)
    first.names = first.write(3, frozenset(range(SHAPE.slices)))
    identity = {"size": 357, "batch": 4}
    assert first.now(made.framework, 3, {**identity, "grid": []})
    index = first.last()
    assert index is not None
    path = index if of_index else data.draw(st.sampled_from(sorted(folder_of(index.parent, 3).iterdir())))
    leaves, step, about = load(path, None)
    if of_index and data.draw(st.booleans()):
        about = data.draw(damaged(about))
    else:
        leaves = data.draw(misshapen(leaves))
    save(path.parent, leaves, step=step, about=about, name=path.stem, sweep=False)
    member = replica()
    try:
        with modest():
            saver(settings, ledger, 1, member.holder).load(index, member.framework, identity)
            assert member.holder.rows(EVERY).shape == (357, 3)
    except MeshmendError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
