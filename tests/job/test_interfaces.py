"""No file outside reduction/ and session/ asks which kind of reduction or session it has: both say what they can do."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshmend.job
from meshmend.job.reduction.registry import KINDS
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Passing, Solo

JOB = Path(inspect.getfile(meshmend.job)).parent
REDUCTIONS = {kind.__name__ for kind in KINDS}
SESSIONS = {one.__name__ for one in (WorkerSession, Solo, Passing)}
WORDS = {word for kind in KINDS for word in (kind.reduction, kind.wire)}
FILES = [path for path in sorted(JOB.rglob("*.py")) if path.parent.name not in ("reduction", "session")]


def questions(tree: ast.AST) -> Iterator[int]:
    """Lines that compare a kind's name, or test for a class of reductions or sessions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            if {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)} & (REDUCTIONS | SESSIONS):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {one.id for side in sides for one in ast.walk(side) if isinstance(one, ast.Name)}
            asked = {side.attr for side in sides if isinstance(side, ast.Attribute)} & {"wire", "reduction"}
            said = {side.value for side in sides if isinstance(side, ast.Constant)} & WORDS
            if names & REDUCTIONS or (asked and said):
                yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(JOB)))
def test_nobody_asks_for_a_kind(path: Path) -> None:
    assert not list(questions(ast.parse(path.read_text()))), "ask the reduction or the session what it can do"


def test_the_test_sees_such_questions() -> None:
    for code in (
        "isinstance(one.reduction, ExactSum)", 'self.reduction.reduction == "exact"', 'reduction.wire == "bf16"',
        "kind not in (ExactSum, Float32)", "kind is Float32", "issubclass(kind, Bf16)", "isinstance(s, WorkerSession)",
    ):  # fmt: skip
        assert list(questions(ast.parse(code))), code


def test_alone_and_in_a_run_a_session_has_the_same_methods() -> None:
    """What the rest of job/ calls on a session without asking which one it is."""
    for name in ("hook", "record", "obey", "end", "exit_unneeded", "share", "round", "exchange", "digested", "leave"):
        assert callable(getattr(Solo, name)) and callable(getattr(WorkerSession, name))
    assert Solo.alone and Passing.alone and not WorkerSession.alone
    alone, written = Solo(4), list[int]()
    alone.record(lambda _, round: written.append(round))
    assert alone.founders == 1 and not written


def test_capabilities_of_reductions() -> None:
    able = {(kind.reduction, kind.wire): (kind.checks_itself, kind.sliceable, kind.packing) for kind in KINDS}
    assert able == {
        ("float", "float32"): (False, True, ""),
        ("float", "bf16"): (False, False, "bf16"),
        ("exact", "float32"): (True, True, ""),
    }
