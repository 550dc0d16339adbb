"""Trees as states, for tests of what is done with states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.base import Framework
from meshmend.job.state import codec, safetensors


def held(tree: Any) -> Framework:
    return tree if isinstance(tree, Framework) else TreeState(tree)


def digest_of(tree: Any) -> int:
    return held(tree).digest()


def through(tree: Any, like: Any, **about: Any) -> tuple[Any, dict[str, Any]]:
    """To another worker, which has a state like this."""
    data = np.frombuffer(b"".join(bytes(piece) for piece in codec.encode(held(tree).leaves(), **about)), np.uint8)
    state = held(like)
    leaves, told = codec.decode(data, state.template())
    state.adopt(leaves)
    return state.shared, told


def save(folder: Path, tree: Any, *, step: int, about: dict[str, Any]) -> Path:
    return safetensors.save(folder, held(tree).leaves(), step=step, about=about)


def load(path: Path, like: Any) -> tuple[Any, int, dict[str, Any]]:
    state = held(like)
    leaves, step, about = safetensors.load(path, state.template())
    state.adopt(leaves)
    return state.shared, step, about
