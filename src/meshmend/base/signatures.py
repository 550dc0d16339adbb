"""How many arguments a function of the user takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function needs this many arguments by position; those with a default are its own affair."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds and one.default is one.empty for one in found) == count
