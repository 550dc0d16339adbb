"""Writes docs/api.md from the docstrings: `make pictures`. A test keeps the page equal to the code."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import meshmend as mm

PAGE = Path(__file__).parent / "api.md"
HEAD = """# API reference

Every public name of `import meshmend as mm`, made from the docstrings by `docs/api_page.py`. The [guide](guide.md)
shows how they are used together; `meshmend COMMAND --help` describes the command line.
"""
SECTIONS = {
    "Training": [
        "Job", "optimizer", "clipped", "lars", "lamb", "WarmupDecay", "EmbeddingTables", "row_adagrad", "row_sgd",
        "RowOptimizer", "data", "on_first", "load_checkpoint", "torch", "testing",
    ],
    "Plans": [
        "Mesh", "Graph", "Fabric", "plan", "spread_roots", "Plan", "Flow", "bound", "Bound", "tile", "Tile",
        "CollectivePlan", "CollectiveSchedule", "CutBound", "COLLECTIVES", "verify", "Proof", "Schedule", "simulate",
        "LinkSpeed", "load", "save", "local", "jax", "ALGORITHMS", "LINKS", "PRESETS",
    ],
}  # fmt: skip

OWN_USE = (
    "TorchState", "is_dataset", "read", "settle", "left_of", "inside", "link", "way", "index", "chip",
)  # fmt: skip
"""Names in public modules and classes that only meshmend itself uses."""


def public_names() -> list[str]:
    """What a user may use."""
    errors = [name for name in vars(mm) if _is_error(getattr(mm, name))]
    return sorted([*errors, *mm._MODULES, *(name for names in mm._NAMES.values() for name in names)])


def page() -> str:
    """The page."""
    errors = [name for name in public_names() if _is_error(getattr(mm, name))]
    parts = [HEAD]
    for title, names in {**SECTIONS, "Errors": errors}.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += _entry(f"mm.{name}", getattr(mm, name))
    return "\n".join(parts)


def _entry(name: str, value: Any) -> list[str]:
    if isinstance(value, ModuleType):
        rows = [row for n in _own(value) for row in _entry(f"{name}.{n}", getattr(value, n))]
        return [f"### `{name}`\n", f"{_first(value)}\n", *rows]
    if _is_error(value):
        return [f"### `{name}`\n", f"{_first(value)}\n"]
    if inspect.isclass(value):
        members = [member for member in vars(value) if member[0] != "_" and member not in OWN_USE]
        rows = [row for member in members if (row := _member(member, value))]
        return [f"### `{_call(name, value)}`\n", f"{_text(value)}\n", *([*rows, ""] if rows else [])]
    if callable(value):
        return [f"### `{_call(name, value)}`\n", f"{_text(value)}\n"]
    return [f"### `{name}`\n", f"One of {', '.join(f'`{one}`' for one in value)}.\n"]


def _member(name: str, owner: type) -> str:
    value = inspect.getattr_static(owner, name)
    value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    if isinstance(value, property):
        return f"* `.{name}`: {_paragraphs(value.fget)}"
    return f"* `.{_call(name, value)}`: {_paragraphs(value)}" if inspect.isfunction(value) else ""


def _call(name: str, value: Any) -> str:
    found = inspect.signature(value)
    own = [p.replace(annotation=p.empty) for n, p in found.parameters.items() if n not in ("self", "cls")]
    return f"{name}{found.replace(parameters=own, return_annotation=found.empty)}"


def _own(module: ModuleType) -> list[str]:
    """What a module adds; `testing` only passes on."""
    place = "meshmend" if module is mm.testing else module.__name__
    found = [n for n, v in vars(module).items() if n[0] != "_" and getattr(v, "__module__", "").startswith(place)]
    return [name for name in found if name not in OWN_USE]


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""


def _first(value: Any) -> str:
    return " ".join(_text(value).split("\n\n")[0].split())


def _paragraphs(value: Any) -> str:
    """All of a docstring, as one item of a list."""
    return "\n\n  ".join(" ".join(part.split()) for part in _text(value).split("\n\n"))


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


if __name__ == "__main__":
    PAGE.write_text(page())
    print("wrote docs/api.md")
