"""What workers of a new host take from the first ones: how many hold a slice, and on how many hosts tables may be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import meshmend as mm
from meshmend.base.env import Settings
from meshmend.job.config import JobConfig
from meshmend.job.embeddings.replica import TableReplica
from meshmend.job.embeddings.spreading import spread
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.weights import Weights
from meshmend.job.session.session import WorkerSession
from meshmend.job.shm import create_as_agent, leave
from meshmend.job.slices.answers import SliceSide, shard
from meshmend.job.slices.replica import Sharded
from meshmend.telemetry import FORMAT

RUN = f"test-founders-{os.getpid()}"


def settings(folder: Path, rank: int, hosts: list[str], added: list[str]) -> Settings:
    """Of a worker of a run that has begun with one worker, and now wants three."""
    described = [[{"name": name, "slots": 2} for name in names] for names in (hosts, added)]
    about = {"format": FORMAT, "workers": 1, "spares": 0, "mesh": "", "hosts": described[0], "added": described[1]}
    (folder / "run.json").write_text(json.dumps(about))
    agent = create_as_agent(RUN, rank).agent
    agent.founders, agent.wanted, agent.ranks = 1, 3, 9
    return Settings(run=RUN, rank=rank, folder=folder)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    leave(RUN)


def config() -> JobConfig:
    return JobConfig.checked(
        np.arange(8), batch=4, lanes=4, seed=0, reduction="exact", wire="float32", nonfinite=None
    )  # fmt: skip


def tables(given: Settings, buddies: int | None = None) -> TableReplica:
    session = WorkerSession(given, 4)
    one = mm.EmbeddingTables([300], 2, mm.row_sgd(0.1), buddies=buddies)
    tree = TreeState(np.zeros(1, np.float32))
    return spread(one, tree, config(), session, given, cast(Any, None), lambda: None)[0]


@pytest.mark.parametrize("rank", [0, 2])
def test_all_workers_have_the_founders_number_of_buddies(tmp_path: Path, rank: int) -> None:
    """One worker has begun, without a buddy: newcomers must place slices as it does, though they are three by now."""
    given = settings(tmp_path, rank, ["a"], [])
    session = WorkerSession(given, 4)
    optimizer = mm.optimizer(lambda _: {}, lambda weights, *_: (weights, {}))
    sharded, weights = Sharded(optimizer, None), Weights(np.zeros(64, np.float32))
    shard(weights, sharded, config(), session, given, lambda *_: cast(Any, SimpleNamespace(halted=lambda: True)))
    assert cast(SliceSide, session._hooks)._buddies == 0


def test_so_it_is_with_tables(tmp_path: Path) -> None:
    given = settings(tmp_path, 0, ["a"], [])
    assert tables(given).holder.placement.buddies == 0
    with pytest.raises(mm.JobError, match="buddies=1 needs at least 2 workers"):
        tables(given, buddies=1)


def test_tables_refuse_workers_of_a_host_that_was_added_and_no_others(tmp_path: Path) -> None:
    """A worker that is replaced on the first host later takes part as before."""
    with pytest.raises(mm.JobError, match="cannot be spread over a host that was added"):
        tables(settings(tmp_path, 1, ["a"], ["c"]))
    tables(settings(tmp_path, 0, ["a"], ["c"]))
