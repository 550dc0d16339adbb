"""What a run has saved, for inference and for other programs: its state as a tree or as state_dicts, and its weights.

model.load_state_dict(mm.load_checkpoint("mine")["model"])       PyTorch: the state_dict of every shared object
params = mm.load_checkpoint("mine", like=init())                 numpy, JAX: a tree like the one that was shared
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt

from meshmend.base.schema import loads
from meshmend.errors import JobError, MissingLibrary
from meshmend.job.checkpoints.folders import folder_of, jobs_of
from meshmend.job.frameworks.arrays import adopted, leaves_of
from meshmend.job.frameworks.base import OBJECTS
from meshmend.job.slices.files import weights_in
from meshmend.job.state.safetensors import KINDS, SIZES, latest, load, malformed, path_of
from meshmend.job.state.tree import Leaves


def load_checkpoint(run: str | os.PathLike[str], name: str = "", *, job: int | None = None, like: Any = None) -> Any:
    """Load the last state that a run has saved, or the state that `job.save(name)` has saved.

    `run` is the name of a run in `runs/`, its folder, or a file. If the script has several jobs, one after another, the
    state is that of the last job that saved it, or of `job` (1, 2, …). A job of PyTorch objects returns a dict of their
    state_dicts ("model", "optimizer", …). Other jobs return nested dicts and lists of arrays or, with `like`, a tree of
    that shape.
    """
    path = checkpoint_of(run, name, job)
    return _as_tree(path, _leaves(path), like)


def checkpoint_of(run: str | os.PathLike[str], name: str = "", job: int | None = None) -> Path:
    """The file of a run's last checkpoint, or of the one with this name; of its last job, or of this one."""
    given = Path(run)
    if given.is_file():
        return given
    folders = given, Path("runs") / given
    places = [folder_of(folder, one) for folder in folders for one in (jobs_of(folder) if job is None else [job])]
    for place in [*places, given]:
        found = path_of(place, 0, name) if name else latest(place)
        if found is not None and found.is_file():
            return found
    what = f"checkpoint {name!r}" if name else "whole checkpoint"
    raise JobError(
        f"there is no {what} of {str(run)!r} in {places[-1]} or {places[0]}; give a run, its folder or a file"
    )


def export(
    run: str | os.PathLike[str], out: Path, name: str = "", *, every: bool = False, job: int | None = None
) -> tuple[int, int]:
    """Write weights as a plain safetensors file: how many arrays, and how many bytes.

    Of PyTorch objects it is the models' state_dicts, or with `every` all arrays; of a tree it is always all.
    """
    path = checkpoint_of(run, name, job)
    leaves = _leaves(path)
    rest = _objects(leaves)
    if rest is None or every:
        found = {key: (KINDS[array.dtype.name], array) for key, array in leaves if key != OBJECTS}
    else:
        with _sound(path):
            found = _models(rest, dict(leaves))
    size = _write(out, found, "pt" if rest is not None else "np")
    return len(found), size


def _models(rest: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """The tensors of the models among PyTorch objects, with the names that safetensors has for their types."""
    found = {}
    models = [key for key in rest if key.rstrip("0123456789") == "model"]
    for model in models:
        for key, leaf, dtype in _tensors(rest[model]):
            kind, array = KINDS[dtype], arrays[leaf]
            if SIZES[kind] != array.itemsize:
                raise ValueError(f"{leaf} is no {dtype}")
            found[key if len(models) == 1 else f"{model}.{key}"] = kind, array
    return found


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Refuse a checkpoint that does not hold what it describes; its checksum is right."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise malformed(path, f"its arrays do not fit their description: {why}") from None


def _write(out: Path, found: dict[str, tuple[str, npt.NDArray[Any]]], kind: str) -> int:
    """Write a safetensors file, whole or not at all: the bytes of its arrays."""
    head: dict[str, Any] = {"__metadata__": {"format": kind}}
    end = 0
    for key, (dtype, array) in found.items():
        begin, end = end, end + array.nbytes
        head[key] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, array in found.values():
                file.write(array.tobytes())
        os.replace(temporary, out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise JobError(f"cannot write {out} ({error.strerror}); give another file") from None
    return end


def _leaves(path: Path) -> Leaves:
    with suppress(ImportError):
        import ml_dtypes as ml_dtypes  # numpy knows bfloat16 once it is loaded
    return weights_in(path) or load(path, None)[0]


def _objects(leaves: Leaves) -> dict[str, Any] | None:
    """Return what a job of PyTorch objects has recorded about them."""
    found = dict(leaves).get(OBJECTS)
    rest = loads(bytes(found)) if found is not None and found.dtype.name == "uint8" else None
    return rest if isinstance(rest, dict) else None


def _tensors(described: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(key, leaf, type) of every tensor in the state_dict of a model."""
    kind, *rest = described if isinstance(described, list) else (None,)
    if kind == "tensor":
        yield path, rest[0], rest[1]
    elif kind == "dict":
        for key, one in rest:
            yield from _tensors(one, f"{path}.{key}" if path else str(key))


def _as_tree(path: Path, leaves: Leaves, like: Any) -> Any:
    if like is not None:
        arrays = dict(leaves)
        names = [name for name, _ in leaves_of(like)]
        if sorted(names) != sorted(arrays):
            odd = sorted(set(names) ^ arrays.keys())[0]
            raise JobError(
                f"leaf {odd!r} is in the checkpoint or in like=, but not in both; give a tree like the shared one"
            )
        return adopted(like, [arrays[name] for name in names])
    rest = _objects(leaves)
    if rest is not None:
        try:
            from meshmend.job.frameworks.torch.state_dict import restored
        except ModuleNotFoundError:
            raise MissingLibrary(
                "this is a state of PyTorch objects, and PyTorch is not installed; run pip install 'meshmend[torch]', "
                "or read the file that `meshmend export` writes"
            ) from None
        arrays = dict(leaves)
        with _sound(path):
            return {name: restored(described, arrays) for name, described in rest.items()}
    tree: dict[str, Any] = {}
    with _sound(path):
        for name, array in leaves:
            *where, last = name.split(".")
            place = tree
            for word in where:
                place = place.setdefault(word, {})
            place[last] = array
        return _lists(tree) if list(tree) != ["value"] else tree["value"]


def _lists(tree: dict[str, Any] | npt.NDArray[Any]) -> Any:
    """A tree of dicts in which those with the keys 0, 1, 2, … are lists."""
    if not isinstance(tree, dict):
        return tree
    made = {key: _lists(value) for key, value in tree.items()}
    numbers = [str(number) for number in range(len(made))]
    return [made[key] for key in numbers] if made and sorted(made) == sorted(numbers) else made
