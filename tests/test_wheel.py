"""The wheel that users install: it holds everything that a run, a page and a report need."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.jobs.jobs import SCRIPT, Job

ROOT = Path(__file__).parent.parent
DEADLINE = 600


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=DEADLINE)
    (made,) = folder.glob("*.whl")
    return made


def test_it_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "meshmend").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == source
    assert {f"meshmend/report/page/static/page.{kind}" for kind in ("html", "css", "js")} <= names


@pytest.mark.jobs
def test_a_run_a_page_and_a_report_from_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """The libraries are those of this environment; meshmend itself is only what the wheel holds."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True, timeout=DEADLINE)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True, timeout=DEADLINE,
    )  # fmt: skip
    (own,) = (tmp_path / "env").glob("lib/python*/site-packages")
    places = [path for path in sys.path if "site-packages" in path] or [sysconfig.get_path("purelib")]
    (own / "libraries.pth").write_text("\n".join(places) + "\n")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PATH"] = f"{tmp_path / 'env' / 'bin'}:{Path(sys.executable).parent}:{env['PATH']}"  # mpirun is a library's
    name = f"wheel-{os.getpid()}"

    def meshmend(*words: str) -> str:
        done = subprocess.run(
            [str(tmp_path / "env" / "bin" / "meshmend"), *words], cwd=tmp_path, env=env, capture_output=True, text=True,
            timeout=DEADLINE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = subprocess.run([str(python), "-c", "import meshmend; print(meshmend.__file__)"], cwd=tmp_path, env=env,
                           capture_output=True, text=True, check=True, timeout=300)  # fmt: skip
    assert where.stdout.strip().startswith(str(own))
    try:
        assert "weights" in meshmend("run", "-n", "2", "--name", name, str(SCRIPT))
        assert "clean" in meshmend("audit", name)
        assert "page.html" in meshmend("watch", name, "--export", "page.html")
        assert "Nothing failed." in meshmend("report", name)
    finally:
        Job(tmp_path, name).clean_up()
    assert (tmp_path / "page.html").stat().st_size > 40_000
