"""The one command line application; each verb's file adds itself to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from cyclopts import App

app = App(
    name="meshmend",
    help="Keeps training running when chips and workers die.",
    version_flags=["--version"],
    result_action="return_value",
)


def one_of(names: Iterable[str]) -> Any:
    """Return the type of an option that takes one of these names, usually those of a registry."""
    return Literal[tuple(names)]
