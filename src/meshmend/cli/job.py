"""Verbs of the job half: run, chaos, doctor, demo."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection
from importlib.machinery import PathFinder
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from meshmend.cli.app import app
from meshmend.errors import JobError
from meshmend.job.faults import KINDS, chaos_kinds, default_kinds
from meshmend.mesh import Mesh

OURS = {
    "-n": "workers", "--workers": "workers", "--spares": "spares", "--min-workers": "least", "--hosts": "hosts",
    "--on-failure": "on_failure", "--launch-agent": "launch_agent", "--checkpoint-every": "every",
}  # fmt: skip
"""Options that hardly any script has itself, and what they are called in an order."""


@app.command
def run(
    *script: str,
    workers: Annotated[str | None, Parameter(name=["--workers", "-n"])] = None,
    spares: int | None = None,
    min_workers: int | None = None,
    on_failure: Literal["replace", "spare", "shrink", "restart", "checkpoint"] | None = None,
    hosts: str | None = None,
    launch_agent: str | None = None,
    checkpoint_every: str | None = None,
    mesh: str | None = None,
    algorithm: Literal["trees", "ring", "rowpair", "rowcol"] | None = None,
    name: str | None = None,
    resume: str | None = None,
    attach: str | None = None,
    print_: Annotated[str | None, Parameter(name="--print")] = None,
) -> int:
    """Run a training script on several workers, and keep it running when some die.

    Exit status: 0 the job was done, 1 it failed, 2 a mistake in what was asked, 75 it ended early with a checkpoint.

    Parameters
    ----------
    script
        The script, or -m and a module, and its own arguments: all that follows the script is the script's.
    workers
        How many take part, such as 4; or MIN:MAX, such as 2:4, to go on as long as 2 are left. By default 1, or as many
        as --hosts have room for, or as --mesh has chips.
    spares
        How many more wait, ready to take the place of the dead; by default none.
    min_workers
        With fewer than these left, write a checkpoint and end with status 75; by default 1.
    on_failure
        Start a new worker in the place of a dead one (the default); have a spare take it; go on with fewer; go back to
        the last commit in memory (as Reinit does); or restart everything from the last checkpoint.
    hosts
        Where, such as a:4,b:4; by default here.
    launch_agent
        What starts a command on another host, by default ssh; it gets the host and the command.
    checkpoint_every
        Such as 60s, 5min, or 100 (steps); by default every 30 s, or less often: it takes 1 % of the time at most.
    mesh
        Take workers for the chips of this mesh, such as 4x4: sums go over its links only, round those that die.
    algorithm
        How sums go over the mesh; by default trees.
    name
        What to call the run; by default MMDD-HHMMSS-PROCESS, the date, the time and the launcher's process.
    resume
        Go on with this run from its last checkpoint, as it was begun, but for the options and the script given now; one
        that is done is left as it is, unless another script, or other arguments of it, are given.
    attach
        Go on with this run, whose launcher was killed, from the memory of its workers, as it was begun.
    print_
        Print a job that runs this on a cluster, with all options, and run nothing: slurm (a script for sbatch) or k8s
        (an MPIJob for Kubernetes).

    """
    from meshmend import run as launch

    places = launch.parse_hosts(hosts) if hosts else None
    most, least = _range(workers) if workers else (None, None)
    if most is None and places:
        most = sum(place.slots for place in places)
    elif most is None and mesh:
        most = len(Mesh.parse(mesh).live)
    options: dict[str, Any] = {
        "workers": most, "least": least if min_workers is None else min_workers, "spares": spares,
        "on_failure": on_failure, "hosts": places, "launch_agent": launch_agent, "every": checkpoint_every,
        "mesh": mesh, "algorithm": algorithm, "script": (script if print_ else _as_file(script)) or None,
    }  # fmt: skip
    given = {option: value for option, value in options.items() if value is not None}
    if attach:
        if given or name or resume or print_:
            raise JobError(
                f"--attach {attach} goes on with a run as it was begun: leave out the script and all options"
            )
        return launch.attach(launch.load_spec(attach))
    if print_:
        words = {
            "--name": name, "--resume": resume, "--spares": spares, "--min-workers": given.get("least"),
            "--on-failure": on_failure, "--launch-agent": launch_agent, "--checkpoint-every": checkpoint_every,
            "--mesh": mesh, "--algorithm": algorithm,
        }  # fmt: skip
        known = [word for option, value in words.items() if value is not None for word in (option, str(value))]
        return _say(launch.text_for(print_, script, most or 1, len(places or [1]), known))
    _misplaced(script, given)
    if resume and name:
        raise JobError(f"--resume {resume} --name {name}: a run keeps its name, leave out --name")
    if resume and (launch.begun(resume) or not script):
        return launch.resume(launch.load_spec(resume, **given))
    called = resume or name or f"{time.strftime('%m%d-%H%M%S')}-{os.getpid()}"
    return launch.launch(launch.RunSpec(**{"run": called, "script": (), "workers": 1, **given}))


def _kinds_help() -> str:
    """What `--kinds` may be, from the registry."""
    known = "; ".join(f"{name}: {KINDS[name].what}" for name in chaos_kinds())
    few = ", ".join(f"{name} needs {KINDS[name].members} workers" for name in chaos_kinds() if KINDS[name].members > 2)
    return f"Kinds of failure, separated by commas. {known}. {few}."


@app.command
def chaos(
    run: str,
    *,
    every: float = 5.0,
    kinds: Annotated[str, Parameter(help=_kinds_help())] = ",".join(default_kinds()),
    count: int | None = None,
    seed: int = 0,
) -> int:
    """Strike a run on this host at random (kills, stops, flipped bits) to see that it survives.

    Parameters
    ----------
    run
        The run's name.
    every
        Seconds between two failures, on average.
    count
        How many; by default until the run ends.
    seed
        Seed of what is chosen.

    """
    from meshmend import run as launch

    return launch.wreak(run, every=every, kinds=kinds.split(","), count=count, seed=seed)


@app.command
def doctor(*, quick: bool = False) -> int:
    """See whether this machine can run meshmend, with a test that really kills a process.

    Parameters
    ----------
    quick
        Leave out what starts processes.

    """
    from meshmend import run as launch

    findings = []
    for finding in launch.findings(deep=not quick):
        findings.append(finding)
        print(launch.line(finding), flush=True)
    print(launch.verdict(findings))
    return 1 if any(finding.good is False for finding in findings) else 0


@app.command
def demo() -> int:
    """Train on digits with 4 workers, kill some, and show that nothing was lost."""
    from meshmend.demo import demo as play

    return play()


def leave_script(words: list[str]) -> list[str]:
    """A script's own options are not ours: everything from the script, or from -m, on is left as it is."""
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] not in ("--help", "-h", "--", "-m"):
        if words[place].partition("=")[0].replace("_", "-") == "--nproc-per-node":
            raise JobError(f"{words[place]} is torchrun's: give the number of workers with -n, such as -n 4")
        alone = "=" in words[place] or (words[place][1:2] != "-" and len(words[place]) > 2)  # --name=x, -n4
        place += 1 if alone else 2
    script = words[place:]
    return [*words[:place], *(["--"] if script and script[0] not in ("--help", "-h", "--") else []), *script]


def _as_file(script: tuple[str, ...]) -> tuple[str, ...]:
    """A module that is given as `-m NAME` is run by a script of ours, as `python -m` would."""
    if script[:1] != ("-m",):
        return script
    if len(script) < 2:
        raise JobError("-m needs the name of a module: meshmend run -n 4 -m package.train")
    if not PathFinder.find_spec(script[1].partition(".")[0], [os.getcwd(), *sys.path]):
        raise JobError(f"there is no module {script[1]!r} here: expected its name with dots, such as package.train")
    from meshmend.run import run_module as module

    return (str(module.__file__), *script[1:])


def _misplaced(script: tuple[str, ...], known: Collection[str]) -> None:
    """Say that options after the script are the script's, where they look like ours and we got none like them."""
    for word in script[1:]:
        option = word.partition("=")[0]
        if option in OURS and OURS[option] not in known:
            print(f"meshmend: {word} comes after {script[0]}, so the script gets it: ours come before", file=sys.stderr)
            return


def _range(text: str) -> tuple[int, int | None]:
    """(most, least) of "4" or "2:4"."""
    match = re.fullmatch(r"(?:(\d+):)?(\d+)", text)
    if not match:
        raise JobError(f"cannot read {text!r} in --workers: expected a number such as 4, or MIN:MAX such as 2:4")
    return int(match[2]), int(match[1]) if match[1] else None


def _say(text: str) -> int:
    print(text)
    return 0
