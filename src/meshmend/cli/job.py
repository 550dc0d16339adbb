"""Verbs of the job half: run, chaos, audit, doctor, demo."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Annotated, Literal

from cyclopts import Parameter

from meshmend.cli.app import app
from meshmend.errors import JobError
from meshmend.mesh import Mesh


@app.command
def run(
    *script: str,
    workers: Annotated[str | None, Parameter(name=["--workers", "-n"])] = None,
    spares: int = 0,
    min_workers: int | None = None,
    on_failure: Literal["replace", "spare", "shrink", "restart", "checkpoint"] = "replace",
    hosts: str | None = None,
    launch_agent: str = "ssh",
    checkpoint_every: str | None = None,
    mesh: str | None = None,
    algorithm: Literal["trees", "ring", "rowpair", "rowcol"] = "trees",
    name: str | None = None,
    resume: str | None = None,
    attach: str | None = None,
    print_: Annotated[Literal["slurm", "k8s"] | None, Parameter(name="--print")] = None,
) -> int:
    """Run a training script on several workers, and keep it running when some die.

    Exit status: 0 the job was done, 1 it failed, 2 a mistake in what was asked, 75 it ended early with a checkpoint.

    Parameters
    ----------
    script
        The script, and its own arguments.
    workers
        How many take part, such as 4; or MIN:MAX, such as 2:4, to go on as long as 2 are left.
    spares
        How many more wait, ready to take the place of the dead.
    min_workers
        With fewer than these left, write a checkpoint and end with status 75.
    on_failure
        Start a new worker in the place of a dead one; have a spare take it; go on with fewer; go back to the last
        commit in memory (as Reinit does); or restart everything from the last checkpoint.
    hosts
        Where, such as a:4,b:4.
    launch_agent
        What starts a command on another host; it gets the host and the command.
    checkpoint_every
        Such as 60s, 5min, or 100 (steps); by default as often as costs less than 1 % of the time.
    mesh
        Take workers for the chips of this mesh, such as 4x4: sums go over its links only, round those that die.
    algorithm
        How sums go over the mesh.
    name
        What to call the run (by default the date and time).
    resume
        Go on with this run from its last checkpoint; with a script, also with other options than it was begun with.
    attach
        Go on with this run, whose launcher was killed, from the memory of its workers.
    print_
        Print a Slurm script or a Kubernetes MPIJob that runs this, and run nothing.

    """
    from meshmend import launch

    if attach or (resume and not script):
        if attach and (script or resume):
            raise JobError("--attach goes on with a run as it was begun: leave out the script and --resume")
        order = launch.load_order(attach or resume or "")
        return launch.attach(order) if attach else launch.resume(order)
    places = launch.parse_hosts(hosts) if hosts else []
    chips = len(Mesh.parse(mesh).live) if mesh else 1
    most, least = _range(workers or str(sum(place.slots for place in places) or chips))
    if print_:
        words = ["--spares", str(spares)] if spares else []
        return _say(launch.text_for(print_, script, most, max(1, len(places)), words))
    order = launch.Order(
        run=resume or name or f"{time.strftime('%m%d-%H%M%S')}-{os.getpid()}", script=script, workers=most,
        least=min_workers or least, spares=spares, on_failure=on_failure, hosts=places, launch_agent=launch_agent,
        every=checkpoint_every or "", mesh=mesh or "", algorithm=algorithm,
    )  # fmt: skip
    return launch.resume(order) if resume else launch.launch(order)


@app.command
def audit(
    run: str, *, against: str | None = None, json: bool = False, draw: str | None = None, metric: str = "loss"
) -> int:
    """Prove from a run's ledger that each sample of each epoch was counted once, and show its incidents.

    Parameters
    ----------
    run
        The run's name, or its folder.
    against
        Another run, whose states must be the same after every step.
    json
        Print JSON.
    draw
        Draw the loss, with the failures marked, to this PNG or SVG file.
    metric
        What to draw instead of the loss.

    """
    from meshmend import report
    from meshmend.events import folder_of, read

    events = read(folder_of(run), torn=lambda text: print(f"meshmend: {text}", file=sys.stderr))
    account, incidents = report.check(events), report.incidents(events)
    print(report.to_json(account, incidents) if json else report.render(account, incidents))
    if draw:
        report.draw_loss(events, draw, metric)
    if against:
        step = report.compare(events, read(folder_of(against)))
        same = "the same after every step" if step is None else f"not the same after step {step}"
        print(f"the states of {run} and {against} are {same}")
        return 0 if account.clean and step is None else 1
    return 0 if account.clean else 1


@app.command
def chaos(
    run: str, *, every: float = 5.0, kinds: str = "kill,hang,courier,mpirun", count: int | None = None, seed: int = 0
) -> int:
    """Kill, stop and flip at random in a run on this host, to see that it goes on.

    Parameters
    ----------
    run
        The run's name.
    every
        Seconds between two failures, on average.
    kinds
        Which, separated by commas: kill, hang, courier, mpirun, flip.
    count
        How many; by default until the run ends.
    seed
        Seed of what is chosen.

    """
    from meshmend import launch

    return launch.wreak(run, every=every, kinds=kinds.split(","), count=count, seed=seed)


@app.command
def doctor(*, quick: bool = False) -> int:
    """See whether this machine can run meshmend, with a test that really kills a process.

    Parameters
    ----------
    quick
        Leave out what starts processes.

    """
    from meshmend import launch

    findings = []
    for finding in launch.findings(deep=not quick):
        findings.append(finding)
        print(launch.line(finding), flush=True)
    return 1 if any(finding.good is False for finding in findings) else 0


@app.command
def demo() -> int:
    """Train on digits with 4 workers, kill some, and show that nothing was lost."""
    from meshmend.demo import demo as play

    return play()


def leave_script(words: list[str]) -> list[str]:
    """A script's own options are not ours: everything from the script on is left as it is."""
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] not in ("--help", "-h", "--"):
        place += 1 if "=" in words[place] else 2
    script = words[place:]
    return [*words[:place], *(["--"] if script and not script[0].startswith("-") else []), *script]


def _range(text: str) -> tuple[int, int]:
    """(most, least) of "4" or "2:4"."""
    match = re.fullmatch(r"(?:(\d+):)?(\d+)", text)
    if not match:
        raise JobError(f"cannot read {text!r} in --workers: expected a number such as 4, or MIN:MAX such as 2:4")
    return int(match[2]), int(match[1] or 1)


def _say(text: str) -> int:
    print(text)
    return 0
