"""Plans in formats that other runtimes read.

A format is one file with a function from a schedule or a plan to text, and a line in `EXPORTS`. Each refuses what its
runtime could not load, with the limit and what would fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshmend.base.registry import Registry
from meshmend.errors import PlanError
from meshmend.mesh.exports.msccl import msccl_xml
from meshmend.mesh.exports.mscclpp import mscclpp_json
from meshmend.mesh.planners.plan import Plan


@dataclass(frozen=True)
class Export:
    """One format."""

    ending: str
    """How its files end."""
    write: Callable[[Plan], str]
    """The text for a plan, or a `PlanError` if it does not fit."""


EXPORTS: Registry[Export] = Registry(
    "export",
    PlanError,
    {"mscclpp": Export(".json", mscclpp_json), "msccl": Export(".xml", msccl_xml)},
)
"""MSCCL++ execution plans and MSCCL algorithms."""


def export(plan: Plan, path: str) -> str:
    """Write a plan in the format that the path's ending names; returns that format's name."""
    found = next((name for name, export in EXPORTS.items() if str(path).lower().endswith(export.ending)), None)
    if found is None:
        endings = " or ".join(f"{export.ending} ({name})" for name, export in EXPORTS.items())
        raise PlanError(f"cannot export to {str(path)!r}: give a path that ends in {endings}")
    text = EXPORTS[found].write(plan)
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise PlanError(
            f"cannot export to {str(path)!r} ({error.strerror}): give a path in a folder that exists"
        ) from None
    return found
