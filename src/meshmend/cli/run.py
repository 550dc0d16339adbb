"""`meshmend run`: a training script on several workers."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from meshmend.cli.app import app, one_of
from meshmend.errors import JobError
from meshmend.mesh import read_mesh
from meshmend.mesh.planners import ALGORITHMS
from meshmend.run.clusters import SCHEDULERS
from meshmend.run.supervisor import POLICIES

if TYPE_CHECKING:
    Policy = str
    Algorithm = str
    Scheduler = str
else:
    Policy, Algorithm, Scheduler = one_of(POLICIES), one_of(ALGORITHMS), one_of(SCHEDULERS)

OURS = {
    "-n": "workers", "--workers": "workers", "--spares": "spares", "--warm": "warm", "--min-workers": "least",
    "--hosts": "hosts", "--on-failure": "on_failure", "--launch-agent": "launch_agent", "--checkpoint-every": "every",
}  # fmt: skip
"""Options that hardly any script has itself, and their names in a `RunSpec`."""


@app.command
def run(
    *script: str,
    workers: Annotated[str | None, Parameter(name=["--workers", "-n"])] = None,
    spares: int | None = None,
    warm: int | None = None,
    min_workers: int | None = None,
    on_failure: Policy | None = None,
    hosts: str | None = None,
    launch_agent: str | None = None,
    checkpoint_every: str | None = None,
    mesh: str | None = None,
    algorithm: Algorithm | None = None,
    name: str | None = None,
    resume: str | None = None,
    attach: str | None = None,
    add_host: str | None = None,
    print_: Annotated[Scheduler | None, Parameter(name="--print")] = None,
    log_every: str | None = None,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="")] = False,
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative="")] = False,
) -> int:
    """Run a training script on several workers, and keep it running when some die.

    Exit status: 0 the job finished, 1 it failed, 2 the command was wrong, 75 it stopped early with a checkpoint, 70 the
    launcher failed and its workers wait for --attach.

    Parameters
    ----------
    script
        The script, or -m and a module, with its own arguments: everything after the script goes to the script.
    workers
        How many workers take part, such as 4; or MIN:MAX, such as 2:4, to continue as long as 2 are left. By default 1,
        or the number of slots in --hosts, or of chips in --mesh.
    spares
        How many more workers wait, ready to take over from a dead one; by default none.
    warm
        How many processes per host wait to become replacements, with the script's libraries already imported. A
        replacement then joins seconds earlier, at the cost of the memory of those libraries; by default none.
    min_workers
        If fewer workers are left, write a checkpoint and stop with status 75; by default 1.
    on_failure
        Start a new worker in place of a dead one (replace, the default); let a spare take over (spare); continue with
        fewer workers (shrink); return to the last commit in memory, as Reinit does (restart); or restart everything
        from the last checkpoint (checkpoint).
    hosts
        Where to run, such as a:4,b:4; by default on this host.
    launch_agent
        The program that starts a command on another host, by default ssh; it is given the host and the command.
    checkpoint_every
        How often to write a checkpoint: 60s, 5min, or 100 (steps). By default every 30 s, or less often if that would
        take more than 1 % of the time.
    mesh
        Treat workers as the chips of this mesh, such as 4x4: sums use only its links, and route around dead chips.
    algorithm
        How sums go over the mesh; by default trees.
    name
        Name of the run; by default MMDD-HHMMSS-PROCESS: the date, the time and the launcher's process.
    resume
        Resume this run from its last checkpoint with its own options, except those given now; a run that has finished
        is left alone unless the script or its arguments have changed.
    attach
        Take over this run, whose launcher was killed, from the memory of its workers, with its own options.
    add_host
        With --attach: add a host to the run, such as c:4, with that many new workers. If the run has a live launcher,
        that launcher adds the host, and this command exits. It works on any host that sees the run's folder.
    print_
        Print a job that runs this on a cluster, with all options, and run nothing: slurm (a script for sbatch), k8s
        (an MPIJob for Kubernetes) or jobset (a JobSet for Kubernetes).
    log_every
        How often a step is printed, such as 10s; 0 for every step; by default once per second.
    quiet
        Do not print steps; the script's own output and messages about the run are still printed.
    verbose
        Print the mpirun commands too.

    """
    from meshmend import run as launch

    launch.working_folder()
    places = launch.parse_hosts(hosts) if hosts else None
    most, least = _range(workers) if workers else (None, None)
    if most is None and places:
        most = sum(place.slots for place in places)
    elif most is None and mesh:
        most = len(read_mesh(mesh).live)
    options: dict[str, Any] = {
        "workers": most, "least": least if min_workers is None else min_workers, "spares": spares, "warm": warm,
        "on_failure": on_failure, "hosts": places, "launch_agent": launch_agent, "every": checkpoint_every,
        "mesh": mesh, "algorithm": algorithm, "log_every": "never" if quiet else log_every, "verbose": verbose or None,
        "script": (script if print_ else _as_file(script)) or None,
    }  # fmt: skip
    given = {option: value for option, value in options.items() if value is not None}
    if attach:
        if given.keys() - {"log_every", "verbose"} or name or resume or print_:
            raise JobError(
                f"--attach {attach} takes over a run with its own options: leave out the script and all other options"
            )
        return launch.attach(launch.load_spec(attach, **given), launch.parse_hosts(add_host) if add_host else [])
    if add_host:
        raise JobError(f"--add-host {add_host} needs --attach and the run to add it to: --attach RUN --add-host c:4")
    if print_:
        words = {
            "--name": name, "--resume": resume, "--spares": spares, "--warm": warm, "--min-workers": given.get("least"),
            "--on-failure": on_failure, "--launch-agent": launch_agent, "--checkpoint-every": checkpoint_every,
            "--mesh": mesh, "--algorithm": algorithm, "--log-every": given.get("log_every"),
        }  # fmt: skip
        known = [word for option, value in words.items() if value is not None for word in (option, str(value))]
        known += ["--verbose"] if verbose else []
        return _say(launch.text_for(print_, script, most or 1, len(places or [1]), known))
    _misplaced(script, given)
    if resume and name:
        raise JobError(f"--resume {resume} --name {name}: a run keeps its name, leave out --name")
    if resume and (launch.begun(resume) or not script):
        return launch.resume(launch.load_spec(resume, **given))
    called = resume or name or f"{time.strftime('%m%d-%H%M%S')}-{os.getpid()}"
    return launch.launch(launch.RunSpec(**{"run": called, "script": (), "workers": 1, **given}))


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
    """Say that options after the script belong to the script, if they look like ours and we got none like them."""
    for word in script[1:]:
        option = word.partition("=")[0]
        if option in OURS and OURS[option] not in known:
            print(
                f"meshmend: {word} comes after {script[0]}, so it goes to the script; if it was meant for meshmend: "
                f"meshmend run {word} … {script[0]}",
                file=sys.stderr,
            )
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
