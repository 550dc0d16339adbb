"""Every command and example in README and docs runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from meshmend.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, language, text) for page in PAGES for language, text in BLOCK.findall(page.read_text())]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for _, _, text in BLOCKS for line in text.splitlines() if line.startswith("meshmend ")]
    assert len(commands) >= 4
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0, command
    assert "1.889 B" in capsys.readouterr().out


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [(page, text) for page, language, text in BLOCKS if language == "python"]
    assert examples
    for page, text in examples:
        exec(compile(text, str(page), "exec"), {})
    assert "1.889 B of at most 1.897 B (99.6 %)" in capsys.readouterr().out
    assert (tmp_path / "plan.svg").exists()


def test_make_targets_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
