"""Every command and example in README and docs runs."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.cli import main
from meshmend.testbed import why_not

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, language, text) for page in PAGES for language, text in BLOCK.findall(page.read_text())]


COMMANDS = [line for _, _, text in BLOCKS for line in text.splitlines() if line.startswith("meshmend ")]
OF_RUNS = ("run", "audit", "chaos", "doctor", "demo", "testbed", "watch", "report")
JOBS = [line for line in COMMANDS if line.split()[1] in OF_RUNS]
EXAMPLES = [(page, text) for page, language, text in BLOCKS if language == "python"]
TORCH = [(page, text) for page, text in EXAMPLES if "import torch" in text]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for line in COMMANDS if line not in JOBS]
    assert len(commands) >= 4
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0, command
    assert "1.889 B" in capsys.readouterr().out


@pytest.mark.jobs
def test_commands_of_jobs_run(tmp_path: Path) -> None:
    """In their order, in one folder; chaos beside a run that lasts long enough, and the demo by its own test."""
    script = (ROOT / "tests" / "jobs" / "regression.py").read_text()
    (tmp_path / "package").mkdir()
    for path in (tmp_path / "train.py", tmp_path / "package" / "train.py"):
        path.write_text(script.replace("sys.argv[1:]", "[]"))
    done: set[str] = set()
    for command in JOBS:
        words = [sys.executable, "-m", "meshmend", *shlex.split(command, comments=True)[1:]]
        if command in done or "demo" in words:
            continue
        done.add(command)
        if "other" in words:
            line = [sys.executable, "-m", "meshmend", "run", "--name", "other", "train.py"]
            subprocess.run(line, cwd=tmp_path, check=True, timeout=60)
        if "chaos" in words or ("--hosts" in words and "--print" not in words):
            continue  # test_chaos.py and test_hosts.py have runs for it
        if "watch" in words and "--export" not in words:
            continue  # it serves until it is interrupted; test_watch.py
        if "testbed" in words and why_not():
            continue
        ran = subprocess.run(words, cwd=tmp_path, timeout=100, capture_output=True, text=True)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text((ROOT / "tests" / "jobs" / "regression.py").read_text())
    assert EXAMPLES
    for page, text in EXAMPLES:
        if (page, text) not in TORCH:
            exec(compile(text.replace("10_000", "50"), str(page), "exec"), {})  # a quick start lasts a minute
    assert "1.889 B of at most 1.897 B (99.6 %)" in capsys.readouterr().out
    assert (tmp_path / "plan.svg").exists()


def test_examples_of_pytorch_run() -> None:
    import torch

    assert len(TORCH) >= 5
    before = torch.get_num_threads()
    for page, text in TORCH:
        exec(compile(text, str(page), "exec"), {})
    torch.set_num_threads(before)


def test_make_targets_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_reference_is_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    made = importlib.import_module("api_page")
    page = (ROOT / "docs" / "api.md").read_text()
    assert page == made.page(), "docs/api.md is not what the docstrings say: make pictures"
    assert all(f"`mm.{name}" in page for name in made.public_names())
