"""The verb testbed: a real mesh on one machine, with a job in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshmend.base.units import duration_text, plural, read_duration, read_rate
from meshmend.cli.app import app
from meshmend.cli.plan import MeshText
from meshmend.errors import TestbedError
from meshmend.mesh import Chip

if TYPE_CHECKING:
    from meshmend.testbed import Testbed


@app.command
def testbed(
    mesh: MeshText,
    *command: str,
    rate: str = "100mbit",
    fail: str | None = None,
    after: str = "5s",
    mend: str | None = None,
) -> int:
    """Run a command on every chip of a real mesh on this machine: namespaces, veth pairs and tc.

    It needs root, or user namespaces, in which it makes itself root over networks that no other process sees.
    The command is run by mpirun, one rank per chip; `meshmend run …` instead gets the chips as its hosts. The exit
    status is the command's.

    Parameters
    ----------
    command
        After --, what to run; MESHMEND_CHIP tells it its row,col.
    rate
        Speed of each link each way, such as 50mbit or 1gbit.
    fail
        Chips and links to cut while it runs, such as 2x2@0,2 or "link@0,0:0,1 chip@3,3".
    after
        When, from the start of the command.
    mend
        How long after that they come back, such as 10s; without it they do not.

    """
    from meshmend.mesh import Mesh
    from meshmend.testbed import Testbed, become_root

    whole = Mesh.parse(mesh)
    left = whole.fail(fail) if fail else whole
    when, back = read_duration(after), read_duration(mend) if mend else None
    speed = read_rate(rate)
    if not command:
        raise TestbedError("no command was given: meshmend testbed 4x4 --rate 50mbit -- python program.py")
    become_root()
    began = time.monotonic()
    try:
        with Testbed(whole, rate) as bed:
            links = f"{plural(len(whole.links), 'link')} of {speed / 1e6:g} Mbit/s"
            _say(
                "up",
                f"{whole}: {plural(len(bed.chips), 'chip')}, {links}, in {duration_text(time.monotonic() - began)}",
            )
            status = _run(bed, command, left.chip(left.live[0]), fail, when, back)
            began = time.monotonic()
    except KeyboardInterrupt:
        _say("down", "interrupted")
        return 130
    _say("down", f"in {duration_text(time.monotonic() - began)}")
    return status


def _run(
    bed: Testbed, command: Sequence[str], head: Chip, fail: str | None, after: float, mend: float | None
) -> int:  # fmt: skip
    from meshmend.base.processes import die_with_parent

    job = _as_job(bed, command)
    line = bed.line(head, *job) if job else bed.mpirun(*command, head=head)
    _say("on", f"{line[-2]}: {line[-1].removeprefix('exec ')}")
    process, ranks = subprocess.Popen(line, preexec_fn=die_with_parent), len(bed.chips)
    lost = False
    for what, seconds, act in (("cut", after, bed.cut), ("mended", mend, bed.mend)):
        if fail is None or seconds is None:
            break
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            began = time.monotonic()
            act(fail)
            lost = lost or len(bed.chips) < ranks
            _say(
                what,
                f"{fail}: {plural(len(bed.chips), 'chip')} live; it took {duration_text(time.monotonic() - began)}",
            )
    status = process.wait()
    if not (status or job) and lost:
        return 1  # ranks were killed, but mpirun calls the loss of its daemon there a success
    return 128 - status if status < 0 else status


def _as_job(bed: Testbed, command: Sequence[str]) -> list[str]:
    """Return the words of a `meshmend run` with the chips as its hosts; none for any other command."""
    words = list(command[2:] if command[1:3] == ("-m", "meshmend") else command)
    if os.path.basename(words[0]) != "meshmend" or words[1:2] != ["run"]:
        return []
    hosts = [] if "--hosts" in words else ["--hosts", ",".join(f"{name}:1" for name in bed.hosts)]
    return [sys.executable, "-P", "-m", "meshmend", "run", *hosts, "--launch-agent", bed.agent, *words[2:]]


def _say(what: str, text: str) -> None:
    print(f"{what:7}{text}", file=sys.stderr, flush=True)
