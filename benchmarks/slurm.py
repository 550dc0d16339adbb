"""The printed Slurm script on a real Slurm: three nodes on this machine, of which some are lost.

    python benchmarks/slurm.py [--keep FOLDER]

Needs root, slurm-wlm, munge and openssh-server. The nodes are network namespaces with a slurmd and an sshd each, in the
room of `benchmarks/chaos`: nothing else on the machine is touched, and nothing is left. Tried are, in one job each:

    lost      a node dies: the job goes on with the others (--no-kill), and its workers
    launcher  SIGKILL of the launcher: the script attaches another one
    term      the signal before a time limit: a checkpoint, a requeue, and the run is resumed
    requeue   `scontrol requeue`: the same, with Slurm's signal to all processes
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "chaos"))
import room
from bed import Namespaces, command

from meshmend import report
from meshmend.base.processes import kill
from meshmend.telemetry import Committed, Started, read
from meshmend.testbed import namespaces

SCRIPT = Path(__file__).parent / "loops" / "torment.py"
WORKERS = 4
STEPS, PAUSE = 1000, 0.02
PATIENCE = 180.0
FOLDERS = ("state", "jobs", "spool-a", "spool-b", "spool-c")
CONFIG = """
ClusterName=torment
SlurmctldHost=a
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdTimeout=15
KillWait=30
ReturnToService=2
MpiDefault=none
NodeName=a,b,c CPUs=2 State=UNKNOWN
PartitionName=all Nodes=a,b,c Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Three nodes, and a controller on the first."""

    def __init__(self, bed: Namespaces) -> None:
        self.bed, self.folder = bed, bed.home / "slurm"
        for path in (self.folder, Path("/run/munge"), *(self.folder / name for name in FOLDERS)):
            path.mkdir()
        (self.folder / "slurm.conf").write_text(CONFIG.format(folder=self.folder))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # which is not used, and so not missed
        os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        key = self.folder / "munge.key"
        subprocess.run(["mungekey", "--create", "--keyfile", key], check=True)
        files = [f"--{what}-file={self.folder}/munge.{what}" for what in ("pid", "log", "seed")]
        munged = [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            "--socket=/run/munge/munge.socket.2",
            *files,
        ]
        with (self.folder / "munged.log").open("wb") as log:
            subprocess.Popen(munged, stdout=log, stderr=log)
        wait_for("munge", Path("/run/munge/munge.socket.2").exists)
        self._ssh()
        self.start("a", "slurmctld", "-D")
        for host in bed.hosts:
            self.start(host, "slurmd", "-D", "-N", host)
        wait_for("nodes", lambda: self.ask("sinfo", "-h", "-o", "%t %D").split() == ["idle", "3"], self.why)

    def _ssh(self) -> None:
        """What `ssh NODE` finds, here: the keys of the room."""
        subprocess.run(["mount", "--bind", self.bed.home / "ssh" / "ssh_config", "/etc/ssh/ssh_config"], check=True)

    def why(self) -> str:
        """What the daemons say."""
        return "\n".join(path.read_text(errors="replace")[-800:] for path in self.folder.glob("*.log"))

    def start(self, host: str, *words: str) -> None:
        """Start a daemon on a node."""
        with (self.folder / f"{words[0]}-{host}.out").open("wb") as log:
            subprocess.Popen(
                namespaces.line(self.bed.home, host, *words), stdout=log, stderr=log, start_new_session=True
            )

    def ask(self, *words: str) -> str:
        """What a command of Slurm answers, on the first node."""
        line = self.bed.line(list(words))
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=self.folder / "jobs")
        return done.stdout.strip() or done.stderr.strip()

    def submit(self, name: str, hosts: str, steps: int = STEPS) -> Run:
        """Print the script for a run, and submit it."""
        words = ["-n", str(WORKERS), "--hosts", hosts, "--name", name, "--checkpoint-every", "5s"]
        script = [str(SCRIPT), str(steps), str(PAUSE)]
        text = subprocess.run(
            [sys.executable, "-m", "meshmend", "run", "--print", "slurm", *words, *script],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        path = self.folder / "jobs" / f"{name}.sh"
        path.write_text(text)
        said = self.ask("sbatch", str(path))
        return Run(self, name, said.split()[-1])


class Run:
    """One job."""

    def __init__(self, slurm: Slurm, name: str, job: str) -> None:
        self.slurm, self.name, self.job = slurm, name, job
        self.folder = slurm.bed.disk / name

    def field(self, name: str) -> str:
        """What Slurm says of it."""
        for word in self.slurm.ask("scontrol", "show", "job", self.job).split():
            key, _, value = word.partition("=")
            if key == name:
                return value
        return ""

    def step(self) -> int:
        """The newest step that is written down."""
        return max((event.step for event in read(self.folder) if isinstance(event, Committed)), default=-1)

    def started(self) -> int:
        """How many workers were."""
        return sum(isinstance(event, Started) for event in read(self.folder))

    def until_step(self, step: int) -> None:
        wait_for(f"{self.name} at step {step}", lambda: self.folder.exists() and self.step() >= step, self.why)

    def until_done(self) -> None:
        wait_for(f"{self.name} ended", lambda: self.field("JobState") in ("COMPLETED", "FAILED", "NODE_FAIL"), self.why)

    def launcher(self) -> int:
        """Its process."""
        found = [one for one in namespaces.processes(namespaces.space_of("a")) if " meshmend run " in _spaced(one)]
        return min(one for one in found if "--print" not in command(one))

    def verdict(self) -> bool:
        """Whether it was done, and how."""
        state, code, again = self.field("JobState"), self.field("ExitCode"), self.field("Restarts")
        account = report.check(read(self.folder))
        print(f"{self.name}: {state}, exit code {code}, {again} restarts, {account.steps} steps", end="; ")
        print("audit clean" if account.clean else f"audit: {account.findings}", end="; ")
        logs = "".join(path.read_text(errors="replace") for path in self.slurm.folder.glob("slurmd-?.log"))
        by_srun = logs.count(f"launch task StepId={self.job}.")
        print(f"{by_srun} steps started by srun", flush=True)
        return state == "COMPLETED" and account.clean and not by_srun

    def why(self) -> str:
        """What it printed."""
        found = [path.read_text(errors="replace") for path in (self.slurm.folder / "jobs").glob("*.out")]
        lines = [line for line in "".join(found).splitlines() if " step " not in line]
        return "\n".join([*lines[-20:], self.slurm.ask("scontrol", "show", "job", self.job)])


def _spaced(process: int) -> str:
    return command(process).replace("/bin/meshmend run", "/bin/ meshmend run")


def wait_for(what: str, is_so: Callable[[], bool], why: Callable[[], str] = str) -> None:
    """Wait, but not for ever."""
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until:
            raise SystemExit(f"waited {PATIENCE:.0f} s for {what}\n{why()}")
        time.sleep(0.2)


def lost(slurm: Slurm) -> bool:
    run = slurm.submit("lost", "a:2,b:2", 3 * STEPS)
    run.until_step(50)
    slurm.bed.cut("b")
    slurm.bed.lose("b")
    before = run.step()
    wait_for("b down", lambda: "down" in slurm.ask("sinfo", "-h", "-n", "b", "-o", "%t"), run.why)
    run.until_step(before + 100)
    print(f"lost: node b is {slurm.ask('sinfo', '-h', '-n', 'b', '-o', '%t')}, the job is {run.field('JobState')}")
    slurm.bed.mend("b")
    slurm.bed.boot("b")
    slurm.start("b", "slurmd", "-D", "-N", "b")
    wait_for("b's workers", lambda: run.started() == 6, run.why)
    run.until_done()
    return run.verdict()


def launcher(slurm: Slurm) -> bool:
    run = slurm.submit("launcher", "a:2,b:2")
    run.until_step(50)
    kill(run.launcher())
    run.until_done()
    return run.verdict()


def term(slurm: Slurm) -> bool:
    run = slurm.submit("term", "a:2,b:2")
    run.until_step(50)
    slurm.ask("scancel", "--batch", "--signal=TERM", run.job)
    run.until_done()
    return run.verdict() and run.field("Restarts") == "1"


def requeue(slurm: Slurm) -> bool:
    run = slurm.submit("requeue", "a:2,b:2")
    run.until_step(50)
    slurm.ask("scontrol", "requeue", run.job)
    run.until_done()
    return run.verdict() and run.field("Restarts") == "1"


CASES = {"lost": lost, "launcher": launcher, "term": term, "requeue": requeue}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--keep", help="a folder that everything is copied to at the end")
    chosen = parser.parse_args()
    if not room.inside():
        return room.enter(WORKERS)
    bed = Namespaces(room.home(), WORKERS, 3)
    try:
        slurm = Slurm(bed)
        well = {name: CASES[name](slurm) for name in chosen.only.split(",")}
        return 0 if all(well.values()) else 1
    finally:
        if chosen.keep:
            shutil.copytree(
                room.home(), chosen.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("memory", "spool-*")
            )
        bed.close()


if __name__ == "__main__":
    sys.exit(main())
