"""Other users of the same host: what they can reach of a run, and what they cannot."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmend.base.private_network import private_network
from meshmend.base.status import DONE, MISUSED
from meshmend.run.spec import RunSpec
from tests.jobs.jobs import DEADLINE, SCRIPT, Job, processes, wait_for

LISTENING = "0A"
"""In the kernel's tables of sockets."""


def ports(process: int) -> set[int]:
    """The TCP ports that a process listens on, in whatever network it is."""
    files = {os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENING and f"socket:[{words[9]}]" in files:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


@pytest.mark.parametrize("attached", [False, True])
def test_nobody_else_on_this_host_can_connect_to_a_run(job: Job, attached: bool) -> None:
    """Open MPI takes everybody's word for who they are: whoever could connect could run programs as this user."""
    if private_network() is None:
        pytest.skip("this system lets this user have no network namespace: ports of a run are open to its other users")
    job.start("-n", "2", script=(SCRIPT, "gate=5")).until("step 5")
    if attached:
        assert job.process is not None
        job.process.kill()
        job.finish()
        job.start("--attach", job.name, script=(), name=False).until("world")
    everybody = processes(job.name)
    wait_for(lambda: sum(map(len, map(ports, everybody))) >= 3)  # mpirun's and its couriers'
    ours = os.readlink("/proc/self/ns/net")  # where everybody else is, too
    assert [one for one in everybody if ports(one) and os.readlink(f"/proc/{one}/ns/net") == ours] == []
    job.open_gate()
    job.finish()
    assert job.status == DONE, job.output
    job.assert_clean()


NOBODY = 65534
PLANT = f"""
import os
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); os.umask(0)
os.makedirs("runs/mine/output")
for name in ("launcher.json", "run.json.new", "output/launcher.log", "output/worker-0.log"):
    os.symlink("../../../precious" if "/" in name else "../../precious", f"runs/mine/{{name}}")
"""


@pytest.mark.parametrize("words", [["--name", "mine"], ["--resume", "mine"], ["--attach", "mine"]])
def test_a_folder_that_another_user_has_made_for_runs_is_not_used(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a place like /tmp: what it holds would have decided which files a run writes to, and what is resumed."""
    if os.geteuid():
        pytest.skip("needs root, to act as another user")
    (tmp_path / "precious").write_text("as it was")
    tmp_path.chmod(0o1777)
    subprocess.run([sys.executable, "-c", PLANT], cwd=tmp_path, check=True, timeout=DEADLINE)
    script = [str(SCRIPT)] if "--name" in words else []
    if not script:
        monkeypatch.setenv("MESHMEND_RUNS", str(tmp_path / "made"))
        RunSpec(run="mine", script=(str(SCRIPT),), workers=1).save()
        (tmp_path / "made" / "mine" / "run.json").rename(tmp_path / "runs" / "mine" / "run.json")
        monkeypatch.delenv("MESHMEND_RUNS")
    line = [sys.executable, "-m", "meshmend", "run", *words, *script]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == MISUSED and f"{tmp_path / 'runs'} belongs to another user" in done.stderr, done
    assert (tmp_path / "precious").read_text() == "as it was"


THEIRS = """
import sys
with open({mark!r}, "a") as file:
    print(*sys.orig_argv, file=file)
"""


def test_no_process_of_a_run_takes_modules_from_where_it_was_started(job: Job) -> None:
    """Not the workers, nor the couriers: in a folder that everybody may write to, they are another user's."""
    shared, mark = job.folder / "shared", job.folder / "taken"
    shared.mkdir()
    shared.chmod(0o1777)
    for name in ("xxhash", "mpi4py", "meshmend", "numpy", "sitecustomize"):
        (shared / f"{name}.py").write_text(THEIRS.format(mark=str(mark)))
    job.on = lambda python, *words: ["env", "-C", str(shared), python, "-P", *words]  # as the `meshmend` script does
    job.run("-n", "2")
    assert job.status == DONE and not mark.exists(), job.output


REACHABLE = """
mount --bind "$3" "$1"
mount -t tmpfs -o mode=755 tmpfs "$2"
mkdir -p "$3"
mount --bind "$1" "$3"
shift 3
exec "$@"
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_another_user_can_have_a_run_of_the_same_name_and_harm_none(job: Job, open_folder: Path) -> None:
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv, to act as another user")
    (open_folder / "theirs").mkdir()
    os.chown(open_folder / "theirs", NOBODY, NOBODY)
    (open_folder / "python").mkdir()
    base, user = Path(sys.base_prefix), [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    become = ["setpriv", *user, sys.executable]
    top = Path(*base.parts[:2])
    if not top.stat().st_mode & stat.S_IXOTH:  # root's own Python, which others cannot reach: show them that alone
        words = [str(open_folder / "python"), str(top), str(base)]
        become = ["unshare", "-m", "sh", "-ec", REACHABLE, "sh", *words, *become]

    def as_nobody(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HOME": str(open_folder / "theirs"), **more}
        return subprocess.run([*become, *words], cwd=open_folder / "theirs", env=environment, capture_output=True,
                              text=True, timeout=DEADLINE)  # fmt: skip

    nested = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import meshmend, mpi4py']))"
    if as_nobody("-c", nested).returncode:
        pytest.skip("another user cannot read this installation of meshmend")
    (open_folder / "t.py").write_text(SCRIPT.read_text())
    job.folder = open_folder
    job.start("-n", "2", script=(open_folder / "t.py", "gate=5")).until("step 5")
    own = as_nobody("-m", "meshmend", "run", "-n", "2", "--name", job.name, str(open_folder / "t.py"))
    assert own.returncode == DONE and "done: 20 steps" in own.stderr, own
    for words in (["run", "--attach", job.name], ["run", "--resume", job.name], ["chaos", job.name, "--every", "1"]):
        refused = as_nobody("-m", "meshmend", *words, MESHMEND_RUNS=str(job.path.parent))
        assert refused.returncode not in (DONE, 75) and refused.stderr.startswith("meshmend: "), refused
        assert "Traceback" not in refused.stderr and refused.stderr.count("\n") == 1, refused
    job.open_gate()
    job.finish()
    assert job.status == DONE and job.output.count("world") == 1, job.output
    job.assert_clean()
