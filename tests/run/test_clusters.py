"""The printed texts are run: by bash, with programs that only note how they were called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from meshmend.base.status import ABANDONED, HALTED
from meshmend.errors import JobError
from meshmend.run.clusters import CLUSTERS, SCHEDULERS, current, text_for
from meshmend.run.clusters.base import Cluster, JobRequest
from meshmend.run.clusters.hosts import HERE, Host
from meshmend.run.clusters.jobset import JobSet
from meshmend.run.clusters.kubernetes import Kubernetes
from meshmend.run.clusters.local import Local
from meshmend.run.clusters.slurm import Slurm
from meshmend.run.clusters.ssh import Ssh
from tests.processes import wait_for

DEADLINE = 120.0
SCRIPT = ["train.py", "--data", "my data", "--note", "it's $HOME $$ `x`"]
OPTIONS = ["--spares", "1", "--on-failure", "replace"]


def slurm(script: Sequence[str], workers: int, hosts: int, options: Sequence[str] = ()) -> str:
    return Slurm().text(JobRequest(script, workers, hosts, options))


def k8s(script: Sequence[str], workers: int, hosts: int, options: Sequence[str] = ()) -> str:
    return Kubernetes().text(JobRequest(script, workers, hosts, options))


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a meshmend and a scontrol that write down their words, one call a line, as JSON."""
    note = 'import json, sys; open({0!r}, "a").write(json.dumps(sys.argv[1:]) + chr(10))'
    hosts = "if sys.argv[1] == 'show': assert sys.argv[3] == 'node[1-2]'; print('node1'); print('node2')"
    wait = "import os, signal; s = int(os.environ.get('STATUS', '0')); signal.signal(15, lambda *_: sys.exit(s))"
    ready = "open('new', 'w').write(str(os.getpid())); os.rename('new', 'ready')"
    also = {
        "scontrol": hosts,
        "meshmend": f"{wait}\nif s: signal.alarm(300); {ready}; signal.pause()",
    }
    for name, code in also.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{note.format(str(tmp_path / f'{name}.calls'))}\n{code}\n")
        path.chmod(0o755)
    return tmp_path


def calls(folder: Path, name: str) -> list[list[str]]:
    path = folder / f"{name}.calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def start(folder: Path, text: str, **environment: str) -> subprocess.Popen[str]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    told = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", **environment, "PATH": path}
    return subprocess.Popen(["bash", "-c", text], cwd=folder, env=told, stderr=subprocess.PIPE, text=True)


def run(folder: Path, text: str, **environment: str) -> list[str]:
    job = start(folder, text, **environment)
    _, wrong = job.communicate(timeout=DEADLINE)
    assert (job.returncode, wrong) == (0, "")
    return calls(folder, "meshmend")[-1]


def command(text: str) -> str:
    """What the launcher's pod gives to bash: the block of its args, with $$ for $, as Kubernetes hands it over."""
    block = text.split("args:\n                - |\n")[1].split("              volumeMounts:")[0]
    return textwrap.dedent(block).replace("$$", "$")


def test_slurm_is_a_script_without_srun() -> None:
    text = slurm(SCRIPT, 8, 2, OPTIONS)
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    head = text.split("\n\n")[0].splitlines()
    assert head[0] == "#!/bin/bash"
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", "#SBATCH --requeue"} <= set(head)
    assert {"#SBATCH --job-name=meshmend-train", "#SBATCH --signal=B:TERM@120"} <= set(head)
    assert "#SBATCH --no-kill" in head  # or the whole job ends with its first node
    assert not [line for line in text.splitlines() if line.startswith(("srun", "mpirun"))]


def test_slurm_calls_meshmend_with_the_hosts_and_every_word_whole(programs: Path) -> None:
    said = run(programs, slurm(SCRIPT, 8, 2, OPTIONS))
    assert said == ["run", "--hosts", "node1:4,node2:4", "--name", "slurm-7", *OPTIONS, *SCRIPT]
    assert [one[0] for one in calls(programs, "scontrol")] == ["show"]


def test_slurm_resumes_when_it_was_requeued(programs: Path) -> None:
    said = run(programs, slurm(SCRIPT, 5, 2, ["--name=mine", *OPTIONS]), SLURM_RESTART_COUNT="2")
    assert said == ["run", "--hosts", "node1:3,node2:2", "--resume", "mine", *OPTIONS, *SCRIPT]


@pytest.mark.parametrize(("status", "requeued"), [(HALTED, True), (1, False)])
def test_slurm_passes_the_signal_on_and_requeues_after_a_checkpoint(
    programs: Path, status: int, requeued: bool
) -> None:
    job = start(programs, slurm(SCRIPT, 8, 2), STATUS=str(status))
    wait_for(lambda: (programs / "ready").exists() or job.poll() is not None)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=DEADLINE)
    assert (job.returncode, errors) == (status, "")
    assert (["requeue", "7"] in calls(programs, "scontrol")) == requeued


@pytest.mark.parametrize(("end", "status"), [(signal.SIGTERM, ABANDONED), (signal.SIGKILL, 128 + signal.SIGKILL)])
def test_slurm_attaches_to_the_workers_of_a_launcher_that_failed_or_was_killed(
    programs: Path, end: int, status: int
) -> None:
    """By SIGKILL where memory was short; not without end: all four launchers fail here."""
    job = start(programs, slurm(SCRIPT, 8, 2), STATUS=str(ABANDONED))
    for _ in range(4):
        wait_for(lambda: (programs / "ready").exists() or job.poll() is not None)
        launcher = int((programs / "ready").read_text())
        (programs / "ready").unlink()
        os.kill(launcher, end)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == status
    first, *others = calls(programs, "meshmend")
    assert first[:2] == ["run", "--hosts"] and others == [["run", "--attach", "slurm-7"]] * 3


@pytest.mark.parametrize("where", ["run=$!", 'while kill -0 "$run"'])
def test_a_signal_at_any_time_reaches_the_run_once(programs: Path, where: str) -> None:
    """The run is there before bash knows its number, and before bash waits for it."""
    text = slurm(SCRIPT, 8, 2)
    assert where in text
    text = text.replace(where, f"until [ -e ready ]; do sleep 0.01; done; kill -TERM $$; {where}", 1)
    job = start(programs, text, STATUS=str(HALTED))
    _, errors = job.communicate(timeout=DEADLINE)
    assert (job.returncode, errors) == (HALTED, "")
    assert ["requeue", "7"] in calls(programs, "scontrol")


def test_slurm_without_an_allocation_starts_nothing(programs: Path) -> None:
    job = start(programs, slurm(SCRIPT, 8, 2), SLURM_JOB_NODELIST="elsewhere")
    job.communicate(timeout=DEADLINE)
    assert job.returncode != 0 and not calls(programs, "meshmend")


def test_k8s_calls_meshmend_with_the_hosts_of_the_operator_and_resumes_when_started_again(programs: Path) -> None:
    hostfile = programs / "hostfile"
    hostfile.write_text("j-worker-0.j.here.svc slots=3\nj-worker-1.j.here.svc slots=3\n")
    text = command(k8s(SCRIPT, 5, 2, OPTIONS)).replace("/etc/mpi/hostfile", str(hostfile))
    hosts = ["run", "--hosts", "j-worker-0.j.here.svc:3,j-worker-1.j.here.svc:2"]
    assert run(programs, text) == [*hosts, "--name", "meshmend-train", *OPTIONS, *SCRIPT]
    assert run(programs, text) == [*hosts, "--resume", "meshmend-train", *OPTIONS, *SCRIPT]


def test_k8s_has_the_shape_of_an_mpijob() -> None:
    text = k8s(SCRIPT, 8, 2, ["--name", "Digits_1"])
    assert "\t" not in text and text.count("restartPolicy: OnFailure") == 2
    assert text.count("image: YOUR-IMAGE-WITH-MESHMEND-AND-SSHD\n") == 2
    assert text.count("- {name: memory, mountPath: /dev/shm}\n") == text.count("emptyDir: {medium: Memory}\n") == 2
    lines = text.splitlines()
    top = ["apiVersion: kubeflow.org/v2beta1", "kind: MPIJob", "  name: meshmend-digits-1", "  slotsPerWorker: 4"]
    roles = ["    Launcher:", "    Worker:", "      replicas: 2", "              command: [/usr/sbin/sshd, -De]"]
    assert all(line in lines for line in top + roles)


def test_k8s_is_yaml() -> None:
    import yaml

    job = yaml.safe_load(text := k8s([*SCRIPT, "two\n  lines"], 8, 2))
    specs = job["spec"]["mpiReplicaSpecs"]
    for spec in specs.values():
        pod = spec["template"]["spec"]
        assert {volume["name"] for volume in pod["volumes"]} == {"memory", "work"}
        assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory"}
        assert {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]} == {"/dev/shm", "/job"}
    launcher = specs["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"] == ["/bin/bash", "-c"]
    assert launcher["args"][0].replace("$$", "$") == command(text)
    assert (specs["Worker"]["replicas"], specs["Launcher"]["replicas"]) == (2, 1)


def jobset(script: Sequence[str], workers: int, hosts: int, options: Sequence[str] = ()) -> str:
    return JobSet().text(JobRequest(script, workers, hosts, options))


def parts(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The specs of the pods of workers and launcher."""
    import yaml

    worker, launcher = yaml.safe_load(text)["spec"]["replicatedJobs"]
    return worker["template"]["spec"], launcher["template"]["spec"]


def test_jobset_calls_meshmend_with_the_names_of_its_pods_and_resumes_when_started_again(programs: Path) -> None:
    text = parts(jobset(SCRIPT, 5, 2, OPTIONS))[1]["template"]["spec"]["containers"][0]["args"][0].replace("$$", "$")
    own = "meshmend-train"
    hosts = ["run", "--hosts", f"{own}-worker-0-0.{own}:3,{own}-worker-0-1.{own}:2"]
    assert run(programs, text) == [*hosts, "--name", own, *OPTIONS, *SCRIPT]
    assert run(programs, text) == [*hosts, "--resume", own, *OPTIONS, *SCRIPT]


@pytest.mark.parametrize("script", [SCRIPT, ["-m", "a.b"], [*SCRIPT, "two\n  lines"]])
def test_jobset_fits_its_schema(script: list[str]) -> None:
    """By the models that Kubeflow generates from the schema: what they do not know is lost on the way through them."""
    import yaml
    from kubeflow_trainer_api import models

    job = yaml.safe_load(jobset(script, 8, 3))
    read = models.JobsetV1alpha2JobSet.from_dict(job)
    assert read is not None
    assert read.to_dict() == job
    assert read.spec.replicated_jobs[0].template.spec.completions == 3
    wrong = yaml.safe_load(jobset(script, 8, 3))
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["paralelism"] = 3
    assert models.JobsetV1alpha2JobSet.from_dict(wrong).to_dict() != wrong, "the models would not notice a mistake"


def test_jobset_replaces_one_pod_and_ends_with_its_launcher() -> None:
    import yaml

    spec = yaml.safe_load(jobset(SCRIPT, 8, 2))["spec"]
    worker, launcher = parts(jobset(SCRIPT, 8, 2))
    assert spec["failurePolicy"] == {"maxRestarts": 0} and spec["successPolicy"]["targetReplicatedJobs"] == ["launcher"]
    assert worker["completionMode"] == "Indexed" and worker["backoffLimit"] > 10**6
    assert worker["completions"] == worker["parallelism"] == 2
    for pods in (worker, launcher):
        pod = pods["template"]["spec"]
        assert {volume["name"] for volume in pod["volumes"]} == {"memory", "work", "ssh"}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {"memory", "work", "ssh"}
        assert pod["restartPolicy"] == "OnFailure"


def test_jobset_knows_its_pods_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = parts(jobset(SCRIPT, 8, 2))[1]["template"]["spec"]["containers"]
    assert not JobSet().is_present()
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    assert current() is CLUSTERS["jobset"]
    assert current().hosts() == [Host(f"meshmend-train-worker-0-{at}.meshmend-train", 1) for at in (0, 1)]
    monkeypatch.setenv("JOBSET_PODS", "many")
    with pytest.raises(JobError, match="JOBSET_PODS='many' do not say which pods there are"):
        JobSet().hosts()


@pytest.mark.parametrize(
    ("kind", "script", "workers", "hosts", "options", "says"),
    [
        ("pbs", SCRIPT, 8, 2, [], "'pbs': expected slurm or k8s or jobset"),
        ("slurm", [], 8, 2, [], "no script"),
        ("k8s", SCRIPT, 1, 2, [], "--workers 1 on 2 hosts"),
        ("k8s", SCRIPT, 4, 0, [], "--workers 4 on 0 hosts"),
        ("slurm", SCRIPT, 8, 2, ["--resume=x"], "--resume cannot be printed"),
        ("slurm", SCRIPT, 8, 2, ["--name", "a b"], "'a b' cannot be the name"),
    ],
)
def test_what_cannot_be_printed_is_one_sentence(
    kind: str, script: list[str], workers: int, hosts: int, options: list[str], says: str
) -> None:
    with pytest.raises(JobError) as error:
        text_for(kind, script, workers, hosts, options)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_the_registry_has_every_kind_and_prints_for_those_with_a_scheduler() -> None:
    assert {name: type(cluster) for name, cluster in CLUSTERS.items()} == {
        "slurm": Slurm, "k8s": Kubernetes, "jobset": JobSet, "ssh": Ssh, "local": Local,
    }  # fmt: skip
    assert SCHEDULERS == ["slurm", "k8s", "jobset"]
    assert text_for("slurm", SCRIPT, 4, 2) == slurm(SCRIPT, 4, 2)
    assert text_for("k8s", SCRIPT, 4, 2) == k8s(SCRIPT, 4, 2)
    with pytest.raises(JobError, match="'ssh'"):
        CLUSTERS["ssh"].text(JobRequest(SCRIPT, 4, 2))


def test_the_scheduler_that_started_us_is_known_with_its_hosts(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("meshmend.run.clusters.kubernetes.HOSTFILE", tmp_path / "hostfile")
    assert current() is CLUSTERS["local"] and current().hosts()[0].name == HERE
    (tmp_path / "hostfile").write_text("pod-0.job slots=3\npod-1.job\n")
    assert current() is CLUSTERS["k8s"] and current().hosts() == [Host("pod-0.job", 3), Host("pod-1.job", 1)]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.setenv("PATH", str(programs / "bin"))
    assert current() is CLUSTERS["slurm"] and current().hosts() == [Host("node1", 1), Host("node2", 1)]
    for tasks, slots in {"4(x2)": [4, 4], "4,3": [4, 3]}.items():
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
        assert [host.slots for host in current().hosts()] == slots


def test_hosts_that_cannot_be_known_are_one_sentence(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshmend.run.clusters.kubernetes.HOSTFILE", tmp_path / "hostfile")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    refused: list[Cluster] = [Kubernetes(), Ssh()]
    for cluster in refused:
        with pytest.raises(JobError):
            cluster.hosts()
    (tmp_path / "hostfile").write_text("pod-0 slots=many\n")
    with pytest.raises(JobError, match="hostfile"):
        Kubernetes().hosts()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="scontrol"):
        Slurm().hosts()
    monkeypatch.setenv("PATH", str(programs / "bin"))
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "4(x3)")
    with pytest.raises(JobError, match="SLURM_TASKS_PER_NODE"):
        Slurm().hosts()


def test_commands_run_on_a_host(tmp_path: Path) -> None:
    """Each only if the one before succeeded, and every word whole."""
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    agent.chmod(0o755)
    for cluster in (Local(), Ssh(str(agent))):
        line = cluster.run_on("host", ["cd", str(tmp_path)], ["echo", "it's  one"])
        assert subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE).stdout == "it's  one\n"
        line = cluster.run_on("host", ["cd", str(tmp_path / "nowhere")], ["echo", "never"])
        assert subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE).stdout == ""
    assert Local().mpirun_options(tmp_path) == []
    options = Ssh(str(agent)).mpirun_options(tmp_path)
    assert str(agent) in options
    assert options[options.index("plm") + 1] == "ssh"  # also within a job of Slurm, where it would take srun
