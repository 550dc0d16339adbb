"""What docs/extending.md and the glossary say of the code is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from meshmend.mesh import WAYS
from meshmend.mesh.numbering import B, F
from meshmend.run.supervisor.policies import Shrink

ROOT = Path(__file__).parents[1]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()


def test_the_table_of_policies_has_every_member() -> None:
    section = EXTENDING.split("## A policy")[1].split("\n## ")[0]
    rows = re.findall(r"^ +\| `(\w+)(?:\(([^)]*)\))?`", section, re.MULTILINE)
    expected = {}
    for name in {name for name in [*vars(Shrink), *Shrink.__annotations__] if not name.startswith("_")} - {"name"}:
        found = getattr(Shrink, name)
        expected[name] = ", ".join([*inspect.signature(found).parameters][1:]) if callable(found) else ""
    assert dict(rows) == expected


def test_presets_are_where_it_says() -> None:
    (place,) = re.findall(r"\| a mesh preset \| `([\w/.]+)` \|", EXTENDING)
    assert "PRESETS = {" in (ROOT / "src" / "meshmend" / place).read_text()


def test_the_glossary_knows_every_way() -> None:
    (row,) = re.findall(r"\| \*\*way\*\* \|.*", (ROOT / "docs" / "glossary.md").read_text())
    names = {"N": "north", "E": "east", "S": "south", "W": "west", WAYS[F]: "front", WAYS[B]: "back"}
    assert all(names[way] in row for way in WAYS)
