"""`meshmend run` as people type it: every option arrives where it should, and mistakes are one sentence."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from meshmend import cli
from meshmend import run as launch
from meshmend.base.processes import Identity
from meshmend.cli import run as run_verb
from meshmend.errors import JobError
from meshmend.job.state.safetensors import save
from meshmend.run import RunSpec, heartbeat, load_spec
from meshmend.run import entry as start
from meshmend.run.checks import check
from meshmend.run.launcher import Launcher
from meshmend.run.news import DamagedCheckpoint, News, NothingToResume, Resuming
from meshmend.telemetry import FORMAT, Began, Ended, Epoch, Log

PRINTED = {
    "workers": ("2:4", "--min-workers 2"),
    "spares": ("1", "--spares 1"),
    "warm": ("1", "--warm 1"),
    "min_workers": ("3", "--min-workers 3"),
    "on_failure": ("shrink", "--on-failure shrink"),
    "hosts": ("a:2,b:2", '--hosts "$hosts"'),
    "launch_agent": ("ssh -x", "--launch-agent 'ssh -x'"),
    "checkpoint_every": ("5min", "--checkpoint-every 5min"),
    "mesh": ("2x2", "--mesh 2x2"),
    "algorithm": ("ring", "--algorithm ring"),
    "name": ("mine", "mine"),
    "log_every": ("5", "--log-every 5"),
}
"""What is given for each option, and what must then be in the text for a cluster."""
FLAGS = {"quiet": "--log-every never", "verbose": "--verbose"}
NOT_PRINTED = {"add_host", "script", "resume", "attach", "print_"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHMEND_RUNS", raising=False)
    (tmp_path / "train.py").write_text("import meshmend")
    return tmp_path


@pytest.fixture
def specs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RunSpec]]:
    """How runs were started, and with which specs; none really is."""
    del folder
    made: list[tuple[str, RunSpec]] = []

    def note(how: str) -> Callable[[RunSpec], int]:
        def noted(spec: RunSpec) -> int:
            check(spec)  # as the real ones do first
            made.append((how, spec))
            return 0

        return noted

    for how in ("launch", "resume", "attach"):
        monkeypatch.setattr(launch, how, note(how))
    return made


def main(words: str) -> int:
    return cli.main(["run", *shlex.split(words)])


@pytest.mark.parametrize("kind", ["slurm", "k8s", "jobset"])
def test_every_option_is_in_the_text_for_a_cluster(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    options = inspect.signature(run_verb.run).parameters.keys()
    assert options == PRINTED.keys() | FLAGS.keys() | NOT_PRINTED, "say what becomes of the option with --print"
    for option, (value, expected) in PRINTED.items():
        words = f"--{option.replace('_', '-')} {shlex.quote(value)} --print {kind} train.py --epochs 3"
        assert main(words) == 0
        text = capsys.readouterr().out
        assert expected in text and text.count("train.py --epochs 3") == 1, option
    for flag, expected in FLAGS.items():
        assert main(f"--{flag} --print {kind} train.py") == 0
        assert expected in capsys.readouterr().out
    assert main(f"-n 5 --hosts a:3,b:2 --print {kind} train.py") == 0
    assert '":3" : ":2"' in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--resume x", "--attach x", "--add-host c:1"])
def test_what_a_text_for_a_cluster_cannot_hold(words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert main(f"{words} --print slurm train.py") == 2
    assert capsys.readouterr().err.count("\n") == 1


def begun(**values: Any) -> RunSpec:
    spec = RunSpec(**{"run": "mine", "script": ["train.py", "--epochs", "3"], "workers": 4, "least": 2, **values})
    spec.save()
    return spec


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("", {}),
        ("-n 3", {"workers": 3}),
        ("-n 1:3", {"workers": 3, "least": 1}),
        ("--min-workers 1", {"least": 1}),
        ("--hosts a:2,b:1", {"workers": 3, "hosts": launch.parse_hosts("a:2,b:1")}),
        ("--spares 1 --on-failure spare", {"spares": 1, "on_failure": "spare"}),
        ("--checkpoint-every 7 train.py", {"every": "7", "script": ("train.py",)}),
        ("train.py --epochs 9", {"script": ("train.py", "--epochs", "9")}),
    ],
)
def test_a_run_is_resumed_as_it_was_begun_but_for_what_is_given(
    words: str, changed: dict[str, Any], specs: list[tuple[str, RunSpec]]
) -> None:
    begun()
    assert main(f"--resume mine {words}") == 0
    assert specs == [("resume", load_spec("mine", **changed))]


def test_one_that_has_not_begun_begins(specs: list[tuple[str, RunSpec]]) -> None:
    assert main("--resume mine -n 2 train.py") == 0
    assert specs == [("launch", RunSpec(run="mine", script=("train.py",), workers=2))]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--resume other", "there is no run 'other': expected runs/other/run.json"),
        ("--resume mine -n 1", "--min-workers 2 with 1 workers"),
        ("--resume mine --name yours", "a run keeps its name"),
        ("--resume mine nowhere.py", "there is no script 'nowhere.py'"),
        ("--attach mine -n 2", "--attach mine"),
        ("--attach mine train.py", "--attach mine"),
        ("--attach mine --resume mine", "--attach mine"),
    ],
)
def test_what_cannot_be_gone_on_with_is_one_sentence(
    words: str, says: str, specs: list[tuple[str, RunSpec]], capsys: pytest.CaptureFixture[str]
) -> None:
    begun()
    assert main(words) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and specs == []


def test_from_another_folder_it_is_said_where_to_go(
    specs: list[tuple[str, RunSpec]], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun()
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    assert main("--resume ../runs/mine") == 2
    assert "'train.py', which is not in" in capsys.readouterr().err
    Path("train.py").touch()
    assert main("--resume ../runs/mine") == 2
    assert "by its name" in capsys.readouterr().err
    assert specs == []


@pytest.mark.parametrize(
    "damage", ["", "[]", "{}", '{"format": "one"}', f'{{"format": {FORMAT}, "hosts": [], "run": "mine"}}']
)
def test_a_damaged_spec_is_refused(damage: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun()
    (folder / "runs" / "mine" / "run.json").write_text(damage)
    assert main("--resume mine") == 2
    said = capsys.readouterr().err
    assert "mine/run.json" in said and said.count("\n") == 1


class Started:
    """A launcher that only says with what it was started."""

    made: list[Started]
    living: ClassVar[dict[str, list[int]]] = {}
    last_checkpoint: Any = Launcher.last_checkpoint

    def __init__(self, spec: RunSpec, attempt: int = 0) -> None:
        self.spec, self.attempt, self.resume, self.said = spec, attempt, "", list[News]()
        self.console = self.pool = self.state = self
        self.closed = False
        Started.made.append(self)

    def tell(self, message: News) -> None:
        self.said.append(message)

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def run(self) -> int:
        return 7


@pytest.fixture
def started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    del folder
    Started.made = []
    monkeypatch.setattr(start, "Launcher", Started)
    return Started.made


def wrote(*kinds: str) -> None:
    for number, kind in enumerate(kinds):
        event = (
            Began(epoch=Epoch(0), workers=1, spares=0, on_failure="replace", time=float(number))
            if kind == "began"
            else Ended(epoch=Epoch(0), status=int(kind), time=float(number))
        )
        Log(Path("runs/mine"), "launcher").write(event)


@pytest.mark.parametrize(
    ("events", "changes", "done"),
    [
        (["began", "0"], {}, True),
        (["began", "0"], {"workers": 8}, True),
        (["began", "0"], {"script": ["train.py", "--epochs", "9"]}, False),
        (["began", "75"], {}, False),
        (["began"], {}, False),
        (["began", "0", "began"], {}, False),
        (["began", "75", "began", "0"], {}, True),
    ],
)
def test_a_run_that_is_done_is_not_done_again(
    events: list[str], changes: dict[str, Any], done: bool, started: list[Started]
) -> None:
    begun()
    wrote(*events)
    status = start.resume(load_spec("mine", **changes))
    assert (status, NothingToResume("mine") in started[0].said) == ((0, True) if done else (7, False))
    if not done:
        assert load_spec("mine") == load_spec("mine", **changes)  # the next --attach goes on with these


def new() -> RunSpec:
    return RunSpec(run="mine", script=["train.py"], workers=1, hosts=[])


def test_a_run_that_another_launcher_ended_a_moment_ago_is_not_begun_again(
    started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the lock when this one looked whether there is such a run."""
    manage = start.manage

    @contextlib.contextmanager
    def late(run: str, advice: str = "") -> Iterator[None]:
        new().save()
        wrote("began", "0")
        with manage(run, advice):
            yield

    monkeypatch.setattr(start, "manage", late)
    with pytest.raises(JobError, match="already holds a run"):
        start.launch(new())
    assert started == []


def test_of_launchers_on_two_hosts_one_begins_a_run(started: list[Started], monkeypatch: pytest.MonkeyPatch) -> None:
    """They share its folder and no lock; the second one comes while the first still waits for its agents."""
    monkeypatch.setattr(start, "manage", lambda *_: contextlib.nullcontext())
    ended = []

    def open(_: Started) -> None:
        if len(started) == 1:
            ended.append(start.launch(new()))

    monkeypatch.setattr(Started, "open", open)
    with pytest.raises(JobError, match="already holds a run"):
        start.launch(new())
    assert ended == [7] and [one.closed for one in started] == [True, False]
    assert load_spec("mine") == new()


def test_a_launcher_on_another_host_that_still_waits_for_its_agents_is_seen(
    started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT", 0.02)
    far = heartbeat.RunningLauncher(host="far", process=Identity(4711, 5, boot=1, space=1))
    with (
        heartbeat.beating("mine", new().folder, far),
        pytest.raises(JobError, match=r"4711 on host far.*another --name"),
    ):
        start.launch(new())
    assert started == []


def test_of_launchers_that_look_at_once_one_begins_a_run(folder: Path) -> None:
    del folder
    with ThreadPoolExecutor(8) as threads:
        claimed = [*threads.map(lambda _: new().claim(), range(8))]
    assert claimed.count(True) == 1 and load_spec("mine") == new()


def test_without_its_hosts_a_run_is_not_begun(started: list[Started], monkeypatch: pytest.MonkeyPatch) -> None:
    def open(_: Started) -> None:
        raise JobError("no agent could be started on host 'far'")

    with monkeypatch.context() as patch, pytest.raises(JobError, match="no agent"):
        patch.setattr(Started, "open", open)
        start.launch(new())
    assert not start.begun("mine")
    assert start.launch(new()) == 7 and len(started) == 2


def test_damaged_checkpoints_are_passed_over_with_a_word(started: list[Started]) -> None:
    begun()
    wrote("began", "75")
    checkpoints = Path("runs/mine/checkpoints").absolute()
    for step in (10, 20, 30):
        path = save(checkpoints, [("w", np.array(1.0))], step=step, about={})
        if step > 10:
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    start.resume(load_spec("mine"))
    *damaged, last = started[0].said
    why = [message.why for message in damaged if isinstance(message, DamagedCheckpoint)]
    assert [re.findall(r"step-\d+", text)[0] for text in why] == ["step-00000030", "step-00000020"]
    assert last == Resuming("step-00000010.safetensors") and started[0].resume.endswith("10.safetensors")


def test_worker_ledgers_are_not_needed_to_resume(started: list[Started]) -> None:
    begun()
    wrote("began")
    Path("runs/mine/events/worker-0.jsonl").write_text("no event\nat all\n")
    assert start.resume(load_spec("mine")) == 7 and started[0].attempt == 1


def test_an_order_is_read_back_as_it_was(folder: Path) -> None:
    del folder
    spec = begun(hosts=launch.parse_hosts("a:2,b:2"), spares=1, every="5min")
    assert load_spec("mine") == spec
    assert json.loads(Path("runs/mine/run.json").read_text())["workers"] == 4


@pytest.mark.parametrize(
    ("words", "workers", "script"),
    [
        ("-n1 train.py --epochs 3", 1, ["train.py", "--epochs", "3"]),
        ("-n4 --spares=1 train.py -n 2 -m x --name y", 4, ["train.py", "-n", "2", "-m", "x", "--name", "y"]),
        ("-n=2 train.py", 2, ["train.py"]),
        ("--workers=2 -- train.py --help", 2, ["train.py", "--help"]),
        ("train.py -- -h", 1, ["train.py", "--", "-h"]),
        ("--name mine -n 3 train.py -x", 3, ["train.py", "-x"]),
    ],
)
def test_all_that_follows_the_script_is_the_scripts(
    words: str, workers: int, script: list[str], specs: list[tuple[str, RunSpec]]
) -> None:
    assert main(words) == 0
    assert [(spec.workers, list(spec.script)) for _, spec in specs] == [(workers, script)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train.py -n 2", "-n"),
        ("train.py --epochs 3 --workers=2", "--workers=2"),
        ("-n 2 train.py --spares 1", "--spares"),
        ("-n 2 train.py -n 3 --workers 8 --epochs 3 --name x --resume y", ""),
        ("train.py --epochs 3", ""),
    ],
)
def test_options_of_ours_after_the_script_are_told(
    words: str, told: str, specs: list[tuple[str, RunSpec]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0 and len(specs) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"meshmend: {told} comes after train.py") and said.count("\n") == 1 if told else not said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-n 2 python train.py", "'python' is not a script"),
        ("-n 2 /usr/bin/python3.11 train.py", "'/usr/bin/python3.11' is not a script"),
        ("-n 1 .", "'.' is a folder without a __main__.py"),
        ("--nproc_per_node=2 train.py", "--nproc_per_node=2 is torchrun's: give the number of workers with -n"),
        ("--nproc-per-node 2 train.py", "--nproc-per-node is torchrun's: give the number of workers with -n"),
        ("-n 2 -m", "-m needs the name of a module"),
        ("-n 2 -m nowhere.train", "there is no module 'nowhere.train' here"),
    ],
)
def test_what_is_no_script_is_one_sentence(
    words: str, says: str, specs: list[tuple[str, RunSpec]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2 and specs == []
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_a_module_is_run_as_python_does(specs: list[tuple[str, RunSpec]], folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "other.py").write_text("name = 'neighbour'")
    text = "import sys\nfrom .other import name\nprint(__name__, name, sys.argv[1:], sys.path[0], __spec__.name)"
    (folder / "package" / "train.py").write_text(text)
    assert main("-n 2 -m package.train --epochs 3") == 0
    words = specs[0][1].script
    ran = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.stdout == f"__main__ neighbour ['--epochs', '3'] {folder} package.train\n", ran.stderr


def test_a_module_is_printed_as_it_was_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del folder
    assert main("-n 2 --print slurm -m package.train --epochs 3") == 0
    text = capsys.readouterr().out
    assert "-m package.train --epochs 3\n" in text and "--job-name=meshmend-package-train" in text
