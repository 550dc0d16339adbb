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
from meshmend.mesh.exports.chakra import chakra_traces
from meshmend.mesh.exports.msccl import msccl_xml
from meshmend.mesh.exports.mscclpp import mscclpp_json
from meshmend.mesh.planners.plan import Plan


@dataclass(frozen=True)
class Export:
    """One format."""

    ending: str
    """How its files end."""
    write: Callable[[Plan, float], str | list[bytes]]
    """The text for a plan and a payload, or a file per rank; or a `PlanError` if it does not fit."""


EXPORTS: Registry[Export] = Registry(
    "export",
    PlanError,
    {
        "mscclpp": Export(".json", lambda plan, _: mscclpp_json(plan)),
        "msccl": Export(".xml", lambda plan, _: msccl_xml(plan)),
        "chakra": Export(".et", chakra_traces),
    },
)
"""MSCCL++ execution plans, MSCCL algorithms and Chakra execution traces."""
NBYTES = 102e6
"""The payload of formats that hold sizes, if none is given: the gradients of ResNet-50."""


def export(plan: Plan, path: str, nbytes: float = NBYTES) -> str:
    """Write a plan in the format that the path's ending names; returns that format's name.

    Where the format has a file per rank, `traces.et` becomes `traces.0.et`, `traces.1.et` and so on.
    """
    found = next((name for name, export in EXPORTS.items() if str(path).lower().endswith(export.ending)), None)
    if found is None:
        endings = ", ".join(f"{export.ending} ({name})" for name, export in EXPORTS.items())
        raise PlanError(f"cannot export to {str(path)!r}: give a path that ends in {endings}")
    made = EXPORTS[found].write(plan, nbytes)
    ending = EXPORTS[found].ending
    try:
        if isinstance(made, str):
            Path(path).write_text(made, encoding="utf-8", newline="\n")
        else:
            for rank, trace in enumerate(made):
                Path(f"{str(path)[: -len(ending)]}.{rank}{ending}").write_bytes(trace)
    except OSError as error:
        raise PlanError(
            f"cannot export to {str(path)!r} ({error.strerror}): give a path in a folder that exists"
        ) from None
    return found
