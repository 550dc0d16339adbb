"""What counts as a figure in a page, and which section it stands in: for `test_figures.py`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = ROOT / "docs" / "figures.md"
OTHERS = ("api.md", "figures.md")
"""The reference, which is made from docstrings, and the list itself."""
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in OTHERS),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
UNITS = r"(?:%|ms|µs|s|GB/s|MB/s|GB|MB|kB|seconds|minutes|hours|points)"
FIGURE = re.compile(rf"(?<![\w.@#-])\d[\d,]*(?:\.\d+)?(?:[–-]\d[\d,.]*)? ?{UNITS}(?![\w/])|(?<![\w.])\d+\.\d+(?![\w.])")
"""A number with a unit, or one with a decimal point. Counts of whole things are not meant."""
NAMES = re.compile(r"\b\d{4}\.\d{5}\b|\b(?:Linux|Ubuntu|CUDA|Python|MLPerf|sm_\d+ of)(?: [a-z]+)* \d+\.\d+\b|`[^`\n]*`")
"""Papers, versions, and what stands in backticks: no figures, though they look like some."""
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def sections(page: Path) -> dict[str, list[str]]:
    """The figures of each section that has some, by its heading; code does not count."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in NAMES.sub("", BLOCK.sub("", page.read_text())).splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        elif figures := FIGURE.findall(line):
            found.setdefault(heading, []).extend(figures)
    return found
