"""Checkpoints of a sharded job: one file per slice, written by its owner, and an index once all files are there.

    folder/step-00000120/slice-0000.safetensors    its weights, and what the optimizer remembers of them
                         slice-0001.safetensors
                         …
                         index.safetensors         written last: the grid, and the digests of all slices

A folder without an index is not a checkpoint. A slice is the same on every holder, so a run resumes with any number of
workers: each reads the weights of all slices, and the optimizer's state of the slices that it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshmend.errors import FormatError, JobError
from meshmend.job.holder import Digests, Holder, State, digest_of
from meshmend.job.state.safetensors import load, path_of, save
from meshmend.job.state.tree import Leaves

INDEX = "index"
WEIGHTS = "weights"
MEMORY = "optimizer."
"""What the names of the optimizer's arrays begin with."""


def folder_of(checkpoints: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return checkpoints / f"step-{step:08}"


def write_slices(checkpoints: Path, step: int, holder: Holder, slices: Collection[int]) -> dict[int, Digests]:
    """Write these slices of the state before `step`; their digests, for the index."""
    for number in sorted(slices):
        save(folder_of(checkpoints, step), _leaves(holder, number, holder.copies[number].state), step=step,
             about=_about(holder), name=_name(number))  # fmt: skip
    return {number: holder.digests(number) for number in slices}


def write_index(checkpoints: Path, step: int, holder: Holder, digests: Mapping[int, Digests]) -> Path:
    """Make it a checkpoint: all slices have been written, and have these digests."""
    missing = set(range(holder.slicing.count)) - digests.keys()
    if missing:
        raise JobError(f"slice {min(missing)} of step {step} has not been written: an index needs all slices")
    table = np.array([digests[number] for number in range(holder.slicing.count)], np.uint64).reshape(-1, 2)
    leaves: Leaves = [("digests", table), ("grid", holder.exact.state())]
    return save(folder_of(checkpoints, step), leaves, step=step, about=_about(holder), name=INDEX)


def resume(folder: Path, holder: Holder) -> int:
    """Have a holder begin with a checkpoint; its step."""
    index = path_of(folder, 0, INDEX)
    arrays, step, about = load(index, None)
    _check(about, holder, index)
    found = dict(arrays)
    if found.keys() != {"digests", "grid"} or found["digests"].shape != (holder.slicing.count, 2):
        raise FormatError(f"{index} does not hold the grid and the digests of {holder.slicing.count} slices")
    digests: list[list[int]] = found["digests"].tolist()
    weights = np.empty_like(holder.weights)
    for number in range(holder.slicing.count):
        read = _read(folder, holder, number)[WEIGHTS]
        if digest_of(read) != digests[number][0]:
            raise FormatError(
                f"slice {number} of {folder} is not the one that its index names: take another checkpoint"
            )
        weights[holder.slicing.numbers(number)] = read

    def first(number: int) -> State:
        read = _read(folder, holder, number)
        return {name.removeprefix(MEMORY): array for name, array in read.items() if name != WEIGHTS}

    holder.resume(weights, found["grid"], first)
    return step


def _read(folder: Path, holder: Holder, number: int) -> dict[str, Any]:
    path = path_of(folder, 0, _name(number))
    if not path.exists():
        raise FormatError(f"{folder} has an index, but slice {number} is missing: take another checkpoint")
    arrays, _, about = load(path, _leaves(holder, number, holder.initial(number)))
    _check(about, holder, path)
    return dict(arrays)


def _leaves(holder: Holder, number: int, state: State) -> Leaves:
    return [(WEIGHTS, holder.of(number)), *((f"{MEMORY}{name}", array) for name, array in sorted(state.items()))]


def _name(number: int) -> str:
    return f"slice-{number:04}"


def _about(holder: Holder) -> dict[str, Any]:
    return {"slices": holder.slicing.count, "leaves": list(holder.exact.leaves)}


def _check(about: Mapping[str, Any], holder: Holder, path: Path) -> None:
    mine = _about(holder)
    if about != mine:
        theirs = f"{about.get('slices')} slices of {len(about.get('leaves') or ())} leaves"
        raise JobError(
            f"{path} is of a state of {theirs}, but this job's has {mine['slices']} slices of {len(mine['leaves'])} "
            "leaves, or other sizes; resume with the script that wrote it"
        )
