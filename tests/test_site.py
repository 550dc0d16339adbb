"""The documentation as a site: all pages are in it, all links lead somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def pages(nav: object) -> list[str]:
    """The files that a `nav` names."""
    if isinstance(nav, str):
        return [nav]
    return [one for part in (nav.values() if isinstance(nav, dict) else nav) for one in pages(part)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_site() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    others = {"CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md", "reference.md"}
    named = pages(config["nav"])
    assert sorted(named) == sorted(docs | others)


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=600)


@pytest.mark.jobs
def test_the_site_builds_and_a_broken_link_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("docs", "examples", "src"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    made = build(root, tmp_path / "site")
    assert made.returncode == 0, made.stdout + made.stderr
    names = {path.name for path in (tmp_path / "site").rglob("*.html")}
    assert {"README.html", "index.html"} & names and {"operating.html", "reference.html", "CHANGELOG.html"} <= names
    reference = (tmp_path / "site" / "reference.html").read_text()
    assert "A training job over random-access data" in reference and 'id="meshmend.Job.commit"' in reference
    for path in (tmp_path / "site").rglob("*.html"):
        found = re.findall(r'<(?:script|img|iframe)[^>]+src="((?:https?:)?//[^"]+)', path.read_text())
        found += re.findall(r'<link[^>]+href="((?:https?:)?//[^"]+)', path.read_text())
        assert found == [], path
    guide = root / "docs" / "guide.md"
    for broken, why in (("[x](none.md)", "none.md"), ("[x](torch.md#no-such-place)", "no-such-place")):
        text = guide.read_text()
        guide.write_text(f"{text}\n{broken}\n")
        failed = build(root, tmp_path / "broken")
        guide.write_text(text)
        assert failed.returncode != 0 and why in failed.stdout + failed.stderr
