"""Testbeds in tests: whether there can be any, flows between their chips, and what must not be left of them."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from meshmend import testbed
from meshmend.mesh.grid import Chip
from meshmend.testbed import namespaces
from meshmend.testbed.wiring import address, host
from tests.processes import DEADLINE, wait_for

FLOW = str(Path(__file__).with_name("flow.py"))
ALLREDUCE = str(Path(__file__).with_name("allreduce.py"))


@cache
def why_not() -> str:
    return testbed.why_not()


def need_testbed() -> None:
    if why_not():
        pytest.skip(why_not())


def left(owner: int) -> list[str]:
    """What a process has left."""
    return [*namespaces.existing(owner), *map(str, namespaces.homes(owner))]


def said(bed: testbed.Testbed, chip: Chip, *command: str) -> str:
    """What a command on a chip prints."""
    done = subprocess.run(bed.line(chip, *command), capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def way(bed: testbed.Testbed, here: Chip, there: Chip) -> list[Chip]:
    """The chips on the way, as the kernel's routes have it, hop by hop."""
    chips = {address(chip): chip for chip in bed.chips}
    passed = [here]
    while passed[-1] != there and len(passed) < 100:
        words = said(bed, passed[-1], "ip", "route", "get", address(there)).split()
        passed.append(chips[words[words.index("via") + 1] if "via" in words else words[0]])
    return passed


def flow(bed: testbed.Testbed, *pairs: tuple[Chip, Chip], seconds: float, over: float = 0.0) -> list[float]:
    """The rates of flows between chips, all at once, and last that of all together; `once` says how they are measured.

    `over` is what all together must reach, in bits per second. Other load on this machine can only slow a flow down, so
    a few attempts are made, and the fastest counts.
    """
    rates = once(bed, *pairs, seconds=seconds)
    for _ in range(9):
        if rates[-1] > over:
            break
        rates = max(rates, once(bed, *pairs, seconds=seconds), key=lambda found: found[-1])
    return rates


def once(bed: testbed.Testbed, *pairs: tuple[Chip, Chip], seconds: float) -> list[float]:
    """Send as much as a link can carry in that time from chip to chip, all at once: (bits per second) for each flow,
    and last the same for all together, from the first start to the last end."""
    nbytes = int(bed.rate / 8 * seconds)
    receivers = []
    for port, (_, there) in enumerate(pairs, 5000):
        line = bed.line(there, sys.executable, FLOW, "receive", str(port))
        receivers.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        assert receivers[-1].stdout is not None and receivers[-1].stdout.readline() == "ready\n"
    senders = []
    for port, (here, there) in enumerate(pairs, 5000):
        line = bed.line(here, sys.executable, FLOW, "send", host(there), str(port), str(nbytes))
        senders.append(subprocess.Popen(line))
    rates, begins, ends = [], [], []
    for receiver in receivers:
        sender, came, rate, begin, end = receiver.communicate(timeout=DEADLINE)[0].split()
        assert int(came) == nbytes and sender.startswith("10.77.")
        rates.append(float(rate))
        begins.append(float(begin))
        ends.append(float(end))
    assert [process.wait(DEADLINE) for process in senders] == [0] * len(senders)
    return [*rates, 8 * nbytes * len(pairs) / (max(ends) - min(begins))]


def wait_until_gone(process: int) -> None:
    wait_for(lambda: left(process) == [])
