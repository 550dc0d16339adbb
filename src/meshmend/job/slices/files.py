"""Checkpoints of a sharded job: one file per slice, written by its owner, and an index once all files are there.

    folder/slices-00000120/0000-5f1c….safetensors    its weights, and what the optimizer remembers of them
                           0001-77a0….safetensors
                           …
           step-00000120.safetensors                 the index, written last: the grid, and the digests of all slices

Slices without an index are no checkpoint. A slice's file is named after its digests, so the names of all files follow
from the index: what another attempt has left in the folder is never taken for a part of this one, and whoever finds all
files there may write the index, as everybody would write the same. What a slice is does not depend on who holds it, so
a run resumes with any number of workers: each reads the weights of all slices, and the rest of those that it holds.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from meshmend.base.schema import Count, Rule, checked
from meshmend.errors import FormatError, JobError
from meshmend.job.reduction.base import Levels
from meshmend.job.slices.holder import Digests, Holder, State, digest_of
from meshmend.job.state.safetensors import about_of, load, malformed, path_of, save
from meshmend.job.state.tree import Leaves

WEIGHTS = "weights"
MEMORY = "optimizer."
"""What the names of the optimizer's arrays begin with."""
SHARDED = "sharded"
"""What an index says of its slices, among what it says of its job."""
Table = npt.NDArray[np.uint64]
Snapshot = dict[int, tuple[Digests, Leaves]]
"""Copies of slices, with their digests."""
FOLDER = re.compile(r"slices-\d{8,15}", re.ASCII)


@dataclass(frozen=True)
class Index:
    """What an index says of its slices."""

    folder: Annotated[str, Rule("the name of a folder of slices", FOLDER.fullmatch)]
    slices: Count
    leaves: list[Count]
    weights: list[tuple[str, list[Count]]]
    """The name and the shape of each tensor."""


def folder_of(checkpoints: Path, step: int) -> Path:
    """Return the folder of a step's slices."""
    return checkpoints / f"slices-{step:08}"


def snapshot(holder: Holder, slices: Collection[int]) -> Snapshot:
    """Copies of these slices, to be written while training continues."""
    return {
        number: (
            holder.digests(number),
            [(name, np.array(value)) for name, value in _leaves(holder, number, holder.copies[number].state)],
        )
        for number in sorted(slices)
    }


def write_slices(checkpoints: Path, step: int, found: Snapshot) -> int:
    """Write slices of the state before `step`, those that are not there; how many bytes they have."""
    folder, nbytes = folder_of(checkpoints, step), 0
    for number, (digests, leaves) in found.items():
        name = _name(number, digests)
        path = path_of(folder, 0, name)
        if not path.exists():
            save(folder, leaves, step=step, about={}, name=name, sweep=False)
        nbytes += path.stat().st_size
    return nbytes


def count(checkpoints: Path, step: int) -> int:
    """How many files there are of a step."""
    try:
        return sum(1 for _ in folder_of(checkpoints, step).iterdir())
    except OSError:
        return 0


def are_there(checkpoints: Path, step: int, digests: Table) -> bool:
    """Whether all slices with these digests have been written."""
    folder = folder_of(checkpoints, step)
    try:
        found = {path.name for path in folder.iterdir()}
    except OSError:
        return False
    return all(path_of(folder, 0, name).name in found for name in _names(digests))


def write_index(
    checkpoints: Path,
    step: int,
    holder: Holder,
    digests: Table,
    grid: Levels,
    about: Mapping[str, Any],
    name: str = "",
    extras: Leaves | None = None,
) -> Path:
    """Make it a checkpoint: all slices have been written, and have these digests."""
    if not are_there(checkpoints, step, digests):
        raise JobError(
            f"not all slices of step {step} have been written: the index can be written only once all of them exist"
        )
    leaves: Leaves = [("digests", digests), ("grid", grid), *(extras or [])]
    where = {**_about(holder), "folder": folder_of(checkpoints, step).name}
    more = {**about, SHARDED: {**about.get(SHARDED, {}), **where}}
    return save(checkpoints, leaves, step=step, about=more, name=name, sweep=False)


def drop_unnamed(checkpoints: Path, before: int) -> None:
    """Remove slices of earlier steps that no index names."""
    named = set()
    for index in checkpoints.glob("*.safetensors"):
        with suppress(FormatError, JobError):
            sharded = about_of(index).get(SHARDED)
            named.add(str(sharded.get("folder")) if isinstance(sharded, dict) else "")
    for folder in checkpoints.glob("slices-*"):
        number = folder.name.removeprefix("slices-")
        if folder.name not in named and number.isdecimal() and int(number) < before:
            shutil.rmtree(folder, ignore_errors=True)


def resume(index: Path, holder: Holder) -> tuple[int, dict[str, Any], Table, Levels, Leaves]:
    """Have a holder begin with a checkpoint: its step, what it says of its job, digests of all slices, grid, extras."""
    arrays, step, about = load(index, None)
    _check(about.get(SHARDED), holder, index)
    where, digests = _checked(about[SHARDED], arrays, index)
    grid, folder = dict(arrays)["grid"], index.parent / where.folder
    names = _names(digests)
    weights = np.empty_like(holder.weights)
    for number, name in enumerate(names):
        read = _read(folder, holder, number, name)[WEIGHTS]
        _require_named(read, number, digests, folder)
        weights[holder.slicing.numbers(number)] = read

    def first(number: int) -> State:
        read = _read(folder, holder, number, names[number])
        return {name.removeprefix(MEMORY): array for name, array in read.items() if name != WEIGHTS}

    holder.resume(weights, first)
    return step, about, digests, grid, _extras(arrays)


def weights_in(index: Path) -> Leaves | None:
    """The weights of a checkpoint, by name; None where its slices, if it has any, are not of weights."""
    arrays, _, about = load(index, None)
    sharded = about.get(SHARDED)
    if not isinstance(sharded, dict) or "weights" not in sharded:
        return None
    where, digests = _checked(sharded, arrays, index)
    folder = index.parent / where.folder
    slices = [_weights(folder, number, name) for number, name in enumerate(_names(digests))]
    for number, read in enumerate(slices):
        _require_named(read, number, digests, folder)
    flat = np.concatenate(slices)
    sizes = [math.prod(shape) for _, shape in where.weights]
    if sum(sizes) != len(flat):
        raise malformed(index, f"its tensors have {sum(sizes)} numbers, and its slices {len(flat)}")
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [
        *((name, part.reshape(shape)) for (name, shape), part in zip(where.weights, parts, strict=True)),
        *_extras(arrays),
    ]


def _checked(sharded: dict[str, Any], arrays: Leaves, index: Path) -> tuple[Index, Table]:
    """What an index says of its slices, and the digests of all of them."""
    found = dict(arrays)
    try:
        where = checked(Index, sharded)
    except FormatError as error:
        raise malformed(index, error) from None
    kinds = {name: (found[name].dtype.name, found[name].ndim) for name in ("digests", "grid") if name in found}
    if kinds != {"digests": ("uint64", 2), "grid": ("int16", 1)} or found["digests"].shape != (where.slices, 2):
        raise malformed(index, f"it does not hold the grid and the digests of {where.slices} slices")
    if not where.slices or not where.weights:
        raise malformed(index, "it has no slices or no weights")
    return where, found["digests"]


def _weights(folder: Path, number: int, name: str) -> npt.NDArray[np.float32]:
    """The weights of a slice, whatever else it holds."""
    path = _path(folder, number, name)
    read = dict(load(path, None)[0]).get(WEIGHTS)
    if read is None or read.dtype != np.float32 or read.ndim != 1:
        raise malformed(path, "it does not hold the weights of a slice")
    return read


def _require_named(weights: npt.NDArray[np.float32], number: int, digests: Table, folder: Path) -> None:
    if digest_of(weights) != int(digests[number, 0]):
        raise FormatError(f"slice {number} of {folder} is not the one named in its index: use another checkpoint")


def _extras(arrays: Leaves) -> Leaves:
    """What an index holds besides the digests and the grid."""
    return [(name, array) for name, array in arrays if name not in ("digests", "grid")]


def _path(folder: Path, number: int, name: str) -> Path:
    path = path_of(folder, 0, name)
    if not path.exists():
        raise FormatError(
            f"slice {number} is missing from {folder}, although the index is there: use another checkpoint"
        )
    return path


def _read(folder: Path, holder: Holder, number: int, name: str) -> dict[str, Any]:
    arrays, _, _ = load(_path(folder, number, name), _leaves(holder, number, holder.initial(number)))
    return dict(arrays)


def _leaves(holder: Holder, number: int, state: State) -> Leaves:
    return [(WEIGHTS, holder.of(number)), *((f"{MEMORY}{name}", array) for name, array in sorted(state.items()))]


def _names(digests: Table) -> list[str]:
    return [_name(number, (one, two)) for number, (one, two) in enumerate(digests.tolist())]


def _name(number: int, digests: Digests) -> str:
    return f"{number:04}-{digests[0]:016x}{digests[1]:016x}"


def _about(holder: Holder) -> dict[str, Any]:
    return {"slices": holder.slicing.count, "leaves": list(holder.sizes)}


def _check(about: Any, holder: Holder, path: Path) -> None:
    if not isinstance(about, dict) or "folder" not in about:
        raise JobError(
            f"{path} was written by a job without optimizer= in job.share: resume with the script that wrote it"
        )
    mine = _about(holder)
    if {name: about.get(name) for name in mine} != mine:
        leaves = about.get("leaves")
        theirs = f"{about.get('slices')!r} slices of {len(leaves) if isinstance(leaves, list) else 0} leaves"
        raise JobError(
            f"{path} holds a state of {theirs}, but this job's has {mine['slices']} slices of {len(mine['leaves'])} "
            "leaves, or other sizes; resume with the script that wrote it"
        )
