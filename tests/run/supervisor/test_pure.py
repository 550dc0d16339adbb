"""The supervisor does nothing and knows no clock: what it imports is proof of that."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import pytest

import meshmend
from meshmend.run.supervisor import decide
from meshmend.run.supervisor.observations import Observations
from tests.run.supervisor.story import training

FOLDER = Path(meshmend.__file__).parent / "run" / "supervisor"
LAUNCHER = FOLDER.parent / "launcher.py"
LIBRARY = {"__future__", "collections", "dataclasses", "enum", "typing"}
"""What it may use of the standard library: nothing that can read a clock, a file or a process."""
OURS = {"meshmend.base.clocks", "meshmend.base.status", "meshmend.job.protocol", "meshmend.run.supervisor",
        "meshmend.telemetry.epoch"}  # fmt: skip


def modules(path: Path) -> list[str]:
    """The modules that a file imports, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.append(node.module or "")
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_the_supervisor_imports_only_what_is_pure(path: Path) -> None:
    for module in modules(path):
        if module.startswith("meshmend"):
            assert any(module == ours or module.startswith(f"{ours}.") for ours in OURS), module
        else:
            assert module.split(".")[0] in LIBRARY, module


def test_the_launcher_writes_nothing_into_the_state_that_it_is_given_decisions_from() -> None:
    """But for what a run begins with; `decide` learns everything else from observations."""
    (launcher,) = (one for one in ast.parse(LAUNCHER.read_text()).body if isinstance(one, ast.ClassDef))
    written = []
    for method in launcher.body:
        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
            stores = (node for node in ast.walk(method) if isinstance(node, ast.Attribute | ast.Subscript))
            names = (ast.unparse(node) for node in stores if isinstance(node.ctx, ast.Store | ast.Del))
            written += [f"{method.name}: {name}" for name in names if "state" in name.split(".")]
    assert not written


def test_the_same_state_and_observations_give_the_same_decisions() -> None:
    """A state can be copied, and what is decided on the copy is decided on the original."""
    run = training("a a b")
    run.dies(2)
    copied = copy.deepcopy(run.state)
    seen = Observations(ranks=dict(run.seen), reachable=frozenset({"a", "b"}))
    assert decide(copied, seen, run.now) == decide(run.state, seen, run.now)
    assert copied == run.state
