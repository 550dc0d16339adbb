"""No figure stands in README or docs without the command that makes it, and the quick ones still hold."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from meshmend.cli import main
from tests.figures import LIST, PAGES, ROOT, sections

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in LIST.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| page ")
]
QUICK = [
    (ROOT / page, text.strip("`"), command.strip("`"))
    for page, text, command in ROWS
    if command[:9] == "`meshmend" and text[0] == "`"
]
LISTED = {(page.strip("| "), section): made.strip(" |") for page, section, made in ROWS if section[0] != "`"}
KINDS = ("**set**", "**published**", "**follows**", "**once**", "each row names")


def test_no_figure_without_an_entry_and_no_entry_without_figures() -> None:
    standing = {(str(page.relative_to(ROOT)), heading) for page in PAGES for heading in sections(page)}
    for page, heading in sorted(standing - LISTED.keys()):
        pytest.fail(f"{page}, section {heading!r}, has figures: say in docs/figures.md which command makes them")
    gone = sorted(LISTED.keys() - standing)
    assert not gone, f"docs/figures.md lists sections without figures: {gone}"


@pytest.mark.parametrize(("entry", "made"), LISTED.items())
def test_every_command_exists(entry: tuple[str, str], made: str) -> None:
    """Scripts and files are there, make has the target, meshmend the command; else the kind of figure is named."""
    words = re.findall(r"`([^`]+)`", made)
    assert words or made.startswith(KINDS), f"{entry}: no command in {made!r}"
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        first, *rest = word.split()
        if first == "python":
            assert (ROOT / rest[0]).exists(), f"{entry}: {word}"
        elif first == "make":
            assert re.search(rf"^{rest[0]}:", makefile, re.MULTILINE), f"{entry}: {word}"
        elif "/" in first:
            assert (ROOT / first).exists(), f"{entry}: {word}"
        elif first == "meshmend":
            assert rest[0] in ("plan", "simulate", "testbed", "run", "demo"), f"{entry}: {word}"


@pytest.mark.parametrize(("page", "text", "command"), QUICK)
def test_quick_figures_hold(page: Path, text: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in page.read_text(), f"{page.name} no longer says {text!r}"
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    assert text in printed, f"{command} no longer prints {text!r}:\n{printed}"


BLOCKS = [
    (page, found["command"], found["printed"])
    for page in sorted((ROOT / "docs" / "results").glob("*.md"))
    for found in re.finditer(
        r"^```text\n\$ (?P<command>meshmend .*)\n(?P<printed>(?s:.*?))^```$", page.read_text(), re.M
    )
]
QUICK_PAGES = ("one-failure.md",)
"""The others take minutes."""


@pytest.mark.parametrize(
    ("page", "command", "printed"),
    [
        pytest.param(*block, id=block[1], marks=() if block[0].name in QUICK_PAGES else pytest.mark.explore)
        for block in BLOCKS
    ],
)
def test_results_are_what_their_commands_print(
    page: Path,
    command: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Planners change, and pages that nobody built again would show what they planned before."""
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.strip() == printed.strip(), f"build {page.name} again: make paper"


def test_a_figure_is_found(tmp_path: Path) -> None:
    """The test can fail: numbers with units count, and names, versions, code and whole numbers do not."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n3 workers, Linux 5.7, arXiv 2011.03641, `9 ms`\n\n## B\n\n1.5 times, 3 to 4 ms, 7 %\n```\n8 s\n```\n"
    )
    assert sections(page) == {"B": ["1.5", "4 ms", "7 %"]}
    assert len(QUICK) == 12
