"""docs/environment.md, the docstring of base/env.py and the code name the same environment variables."""

from __future__ import annotations

import re
from pathlib import Path

from meshmend.base import env

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "meshmend"
ROW = re.compile(r"^\| (MESHMEND_[A-Z]+) \|.*\|$", re.MULTILINE)


def rows(text: str) -> dict[str, str]:
    """The rows of a table of variables, by variable; a variable with two rows is an error."""
    found = [(match[1], match[0]) for match in ROW.finditer(text)]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_the_page_repeats_the_table_of_the_source() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    assert list(rows(page).items()) == list(rows(str(env.__doc__)).items())


def test_the_table_holds_every_variable_that_the_source_names() -> None:
    pattern = re.compile(r"\bMESHMEND_[A-Z]+\b")
    named = {name for path in SOURCE.rglob("*.py") for name in pattern.findall(path.read_text())}
    assert named == rows(str(env.__doc__)).keys()
