"""What a process that waits to become a worker loads, and that it becomes one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.job.warm import assignment, first_imports


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('"""Says what it does."""\nfrom __future__ import annotations\nimport a', ["__future__", "a"]),
        ("import a, b.c as d\nfrom e.f import g", ["a", "b.c", "e.f"]),
        ("import a\nx = 1\nimport b", ["a"]),
        ("import os\nos.environ['X'] = '1'\nimport a", ["os"]),  # what follows may depend on the variable
        ("from . import a", []),
        ("try:\n    import a\nexcept ImportError:\n    pass", []),
        ("", []),
    ],
)  # fmt: skip
def test_a_script_s_first_imports(tmp_path: Path, script: str, found: list[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    assert [name for name, _ in first_imports(path)] == found


LOADED = """
import sys
from pathlib import Path
from meshmend.job.warm import load
load(Path(sys.argv[1]))
print(*(name in sys.modules for name in sys.argv[2:]))
"""


def loaded(script: Path, *names: str) -> list[str]:
    words = [sys.executable, "-P", "-c", LOADED, str(script), *names]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout.split()


def test_installed_modules_are_loaded_and_the_scripts_own_are_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import colorsys\nfrom xml import dom\nimport helper\nimport wave\n")
    (tmp_path / "helper.py").write_text("raise SystemExit('ran')")
    # After its own module, nothing: that may have changed what the next import finds.
    assert loaded(script, "colorsys", "xml.dom", "helper", "wave") == ["True", "True", "False", "False"]


def test_a_module_of_the_script_is_not_taken_for_an_installed_one(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("mine = True")
    script = tmp_path / "train.py"
    script.write_text("import colorsys\n")
    assert loaded(script, "colorsys") == ["False"]


def test_an_import_that_fails_and_a_script_that_is_none_are_left_to_the_worker(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import there_is_no_such_module\nimport colorsys")
    assert loaded(script, "colorsys") == ["False"]
    script.write_text("this is no Python")
    assert loaded(script, "colorsys") == ["False"]
    assert loaded(tmp_path / "nothing.py", "colorsys") == ["False"]


WARM = [sys.executable, "-P", "-m", "meshmend.job.warm"]


def test_without_an_agent_it_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    ended = subprocess.run([*WARM, str(tmp_path / "train.py")], input=b"", capture_output=True, timeout=300)
    assert ended.returncode == 0 and not ended.stdout + ended.stderr


def test_it_takes_over_the_place_and_the_output_of_a_worker(tmp_path: Path) -> None:
    """Outside a run it has no memory to open: what it says then must be where a worker's output goes."""
    (tmp_path / "train.py").write_text("import colorsys")
    run = f"test-warm-{os.getpid()}"
    place = {"MESHMEND_RUN": run, "MESHMEND_RANK": "0", "MESHMEND_FOLDER": str(tmp_path)}
    order = assignment(place, tmp_path / "worker-0.log")
    ended = subprocess.run([*WARM, str(tmp_path / "train.py")], input=order, capture_output=True, timeout=300)
    assert ended.returncode == 1 and not ended.stdout + ended.stderr
    assert run in (tmp_path / "worker-0.log").read_text()
