"""What is said in several places is made in one: plurals, durations, lists of workers, constants, extras."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshmend

SOURCE = Path(meshmend.__file__).parent
ROOT = Path(__file__).parents[1]
FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
ENDINGS = {"s", "es", "ies", "y"}
TIME = re.compile(r"^ (s|ms|min|minutes|seconds|hours)\b")


def _is_ending(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ENDINGS


def home_made_plurals(tree: ast.AST) -> Iterator[int]:
    """Lines in which an s is added to a word by hand; `plural` and `agree` of base/units.py do that."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for before, part in zip([None, *node.values], node.values, strict=False):
            if not isinstance(part, ast.FormattedValue):
                continue
            adds = [one for one in ast.walk(part.value) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult)]
            chooses = isinstance(part.value, ast.IfExp) and {"", "s"} == {
                getattr(part.value.body, "value", None), getattr(part.value.orelse, "value", None),
            }  # fmt: skip
            if chooses or any(_is_ending(one.left) or _is_ending(one.right) for one in adds):
                yield part.value.lineno
            word = isinstance(before, ast.Constant) and str(before.value)[-1:].isalpha()
            if (
                word
                and isinstance(part.value, ast.IfExp)
                and (_is_ending(part.value.body) or _is_ending(part.value.orelse))
            ):
                yield part.value.lineno


def home_made_durations(tree: ast.AST) -> Iterator[int]:
    """Lines that print a measured time with digits and a unit of their own; `duration_text` does that."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for part, after in zip(node.values, node.values[1:], strict=False):
                if isinstance(part, ast.FormattedValue) and part.format_spec is not None:
                    text = after.value if isinstance(after, ast.Constant) else ""
                    if TIME.match(str(text)):
                        yield node.lineno


def home_made_workers(tree: ast.AST) -> Iterator[int]:
    """Lines that list workers by hand; `workers` of base/units.py does that."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for part, after in zip(node.values, node.values[1:], strict=False):
                text = str(part.value) if isinstance(part, ast.Constant) else ""
                if re.search(r"\bworkers? $", text) and "join(" in ast.unparse(after):
                    yield node.lineno


OWN_DURATIONS = {
    "base/units.py": "the printer itself",
    "base/terminal.py": "whole seconds, which do not jump about in a line that is redrawn",
    "simulator/papers/charts.py": "labels of bars, all in one unit",
    "simulator/papers/multipod.py": "constants of a model, all in one unit",
    "simulator/fleet/fleet.py": "a value that was given in hours",
}


@pytest.mark.parametrize("name", FILES)
def test_one_plural_one_duration_one_list_of_workers(name: str) -> None:
    tree = ast.parse(FILES[name].read_text())
    if name != "base/units.py":
        assert not list(home_made_plurals(tree)), "use plural or agree of base/units.py"
        assert not list(home_made_workers(tree)), "use workers of base/units.py"
    assert not list(home_made_durations(tree)) or name in OWN_DURATIONS, "use duration_text of base/units.py"


def test_the_test_sees_what_is_made_by_hand() -> None:
    for code in (
        "f\"{n} link{'s' * (n > 1)}\"", "f\"{n} link{'' if n == 1 else 's'}\"", "f\"process{'es' * (n > 1)}\"",
        "f\"entr{'y' if n == 1 else 'ies'}\"",
    ):  # fmt: skip
        assert list(home_made_plurals(ast.parse(code))), code
    assert not list(home_made_plurals(ast.parse("f\"{'-' * n}{plural(n, 'link')} {'is' if n == 1 else 'are'}\"")))
    assert list(home_made_durations(ast.parse('f"in {time:.2f} s"')))
    assert list(home_made_workers(ast.parse("f\"workers {', '.join(map(str, ranks))}\"")))


def test_a_constant_with_a_meaning_is_written_once() -> None:
    found = defaultdict(list)
    for name, path in FILES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    found[ast.unparse(target), node.value.value].append(name)
                if node.value.value in (70, 75) and type(node.value.value) is int:
                    assert name == "base/status.py", f"{name} has its own exit status"
    assert len(found["MOST_LANES", 4096]) == 1, found["MOST_LANES", 4096]


MODULES = {
    "scikit-learn": "sklearn", "cuda-bindings": "cuda", "prometheus-client": "prometheus_client",
    "opencv-python-headless": "cv2", "pyyaml": "yaml", "pillow": "PIL", "opentelemetry-proto": "opentelemetry",
}  # fmt: skip
"""Libraries whose modules have other names."""


def module_of(library: str) -> str:
    """The module of a library that `pyproject.toml` names, such as `jax>=0.10`."""
    name = re.split(r"[\[<>=!~; ]", library)[0].lower()
    return MODULES.get(name, name.replace("-", "_"))


def test_every_library_of_an_extra_is_used() -> None:
    tools = re.compile(r"pytest-|types-|.*-stubs|mkdocs|ruff|mypy|coverage|hatchling")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    used = set()
    for folder in ("src", "tests", "benchmarks", "docs", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= set(re.findall(r"^\s*(?:from|import) (\w+)|import_module\(\"(\w+)", path.read_text(), re.M))
            used |= set(re.findall(r"importorskip\(\"(\w+)()", path.read_text()))
    names = {name for pair in used for name in pair if name}
    for extra, libraries in extras.items():
        for library in libraries:
            name = re.split(r"[\[<>=!~; ]", library)[0]
            if name != "meshmend" and not tools.match(name):
                assert module_of(library) in names, f"extra {extra} has {name}, which nothing imports"


def test_a_library_that_dev_installs_is_imported_and_its_tests_are_never_skipped() -> None:
    """`tests/gpu` is for machines of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {module_of(one) for one in [*project["dependencies"], *project["optional-dependencies"]["dev"]]}
    assert {"torch", "jax", "optax", "mpi4py", "yaml"} <= installed
    for path in (ROOT / "tests").rglob("*.py"):
        if "gpu" not in path.relative_to(ROOT).parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("importorskip"):
                    library = ast.literal_eval(node.args[0])
                    assert library.split(".")[0] not in installed, f"{path}:{node.lineno} skips without {library}"
