"""Every time constant of base/, job/ and run/ is in base/clocks.py, and what they say of each other is true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmend.base import clocks
from meshmend.run.clusters.ssh import KEEPALIVE

SOURCE = Path(clocks.__file__).parents[1]
FILES = sorted(
    path for part in ("base", "job", "run") for path in (SOURCE / part).rglob("*.py") if path.name != "clocks.py"
)
WAITS = {
    "sleep", "wait", "poll", "select", "settimeout", "communicate", "acquire", "alarm", "Timer", "readable",
    "create_connection", "keep_to",
}  # fmt: skip
"""Functions that are given a time."""
TIMES = re.compile(r"timeout|seconds|pause|patience")
"""In the names of parameters that are times."""


def _numbers(node: ast.expr) -> Iterator[float]:
    """The numbers that an expression may be as they stand: not 0, nor a factor of something that has a name."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float) and value:
            assert isinstance(value, int | float)
            yield value
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            if not any(isinstance(one, ast.Name | ast.Attribute) for one in ast.walk(node)):
                yield from [*_numbers(left), *_numbers(right)]
        case ast.BinOp(left=left, right=right):
            yield from [*_numbers(left), *_numbers(right)]
        case ast.IfExp(body=body, orelse=other):
            yield from [*_numbers(body), *_numbers(other)]
        case ast.Call(func=ast.Name(id="min" | "max"), args=args):
            for one in args:
                yield from _numbers(one)


def _literal_times(tree: ast.AST) -> Iterator[int]:
    """Lines in which a number, not a constant of clocks.py, is a time."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            times = [one.value for one in node.keywords if one.arg and TIMES.search(one.arg)]
            if any(number for time in times + node.args * (name in WAITS) for number in _numbers(time)):
                yield node.lineno
        elif isinstance(node, ast.FunctionDef):
            every = [*node.args.posonlyargs, *node.args.args]
            given = [*zip(every[::-1], node.args.defaults[::-1], strict=False)]
            given += [
                (one, value) for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value
            ]
            if any(number for one, value in given if TIMES.search(one.arg) for number in _numbers(value)):
                yield node.lineno
        elif isinstance(node, ast.BinOp) and "monotonic()" in ast.unparse(node) and [*_numbers(node)]:
            yield node.lineno


def _constants(tree: ast.Module) -> Iterator[tuple[str, float | None, str]]:
    """The constants of a module: their names, their values if those are numbers, and their docstrings."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.Assign):
            doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            yield ast.unparse(node.targets[0]), value if type(value) in (int, float) else None, str(doc)  # type: ignore[misc]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_other_file_has_a_time(path: Path) -> None:
    tree = ast.parse(path.read_text())
    found = [f"line {line}" for line in _literal_times(tree)]
    said = re.compile(r"(?i)^seconds\b|\bseconds? (between|after|within|that|for|until|in which)|how many seconds")
    found += [f"{name}: {doc}" for name, _, doc in _constants(tree) if said.search(doc)]
    assert not found, f"belongs into base/clocks.py: {found}"


def test_each_says_what_it_is_for() -> None:
    constants = list(_constants(ast.parse(Path(clocks.__file__).read_text())))
    assert len({name for name, _, _ in constants}) == len(constants)
    assert all(doc for name, _, doc in constants), [name for name, _, doc in constants if not doc]


def test_the_test_sees_times() -> None:
    for code in (
        "sleep(0.1)", "thing.wait(1)", "run(line, timeout=60)", "line.settimeout(max(left, 0.001))",
        "until = time.monotonic() + 5", "def f(a, seconds=3.0): ...", "def f(*, seconds=3.0): ...", "poll(2 * 1000)",
    ):  # fmt: skip
        assert list(_literal_times(ast.parse(code))), code
    for code in (
        "sleep(POLL / 10)",
        "poll(1000 * seconds)",
        "sleep(0)",
        "', '.join(names[:3])",
        "def f(seconds=POLL): ...",
    ):
        assert not list(_literal_times(ast.parse(code))), code


def test_what_depends_on_what() -> None:
    above = re.compile(r"(Far )?[Aa]bove ([A-Z_]+)(?: and ([A-Z_]+))?|(Far )?[Bb]elow ([A-Z_]+)(?: and ([A-Z_]+))?")
    compared = 0
    for name, value, doc in _constants(ast.parse(Path(clocks.__file__).read_text())):
        for match in above.finditer(doc):
            for other in filter(None, match.group(2, 3, 5, 6)):
                limit = getattr(clocks, other)
                low = min(limit.values()) if isinstance(limit, dict) else limit
                assert value is not None
                times = 10 if match[1] or match[4] else 1
                assert value > low * times if match[2] else value * times < low, f"{name}: {match[0]}"
                compared += 1
    assert compared > 12


def test_mpirun_probes_a_silent_host_as_the_clocks_say() -> None:
    options = dict(zip(KEEPALIVE[1::3], KEEPALIVE[2::3], strict=True))
    prefix = "prte_oob_tcp_keepalive"
    assert options == {
        f"{prefix}_time": str(clocks.KEEPALIVE_AFTER),
        f"{prefix}_intvl": str(clocks.KEEPALIVE_EVERY),
        f"{prefix}_probes": str(clocks.KEEPALIVE_PROBES),
    }
    silence = clocks.KEEPALIVE_AFTER + clocks.KEEPALIVE_PROBES * clocks.KEEPALIVE_EVERY
    assert clocks.HOST_QUIET < silence < clocks.HOST_SILENCE + clocks.HOST_REJOIN
