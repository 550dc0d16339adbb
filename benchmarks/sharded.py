"""A step with Adam, sharded beside unsharded, in turns on the same machine: time, and what the optimizer remembers.

    python benchmarks/sharded.py [--megabytes 100] [--workers 4] [--hosts 1] [--steps 12] [--turns 3]

Gradients cost nothing, so a step is the sum, the update and the digest. Times are medians over the steps of all turns,
as the first worker sees them; the optimizer's state is the largest of any worker, of what an unsharded one has. Several
hosts are network namespaces (as root), and what they send each other per step is counted by their network devices.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import meshmend as mm
from meshmend.testbed import namespaces, why_not

Floats = Any


def init(weights: Floats) -> dict[str, Any]:
    """Adam's moments."""
    return {"m": np.zeros_like(weights), "v": np.zeros_like(weights), "count": np.zeros((), np.int64)}


def update(weights: Floats, grads: Floats, state: dict[str, Any], rate: float = 0.01) -> tuple[Floats, dict[str, Any]]:
    """A step of Adam."""
    count = state["count"] + 1
    m = np.float32(0.9) * state["m"] + np.float32(0.1) * grads
    v = np.float32(0.999) * state["v"] + np.float32(0.001) * grads * grads
    step = m / np.float32(1 - 0.9**count) / (np.sqrt(v / np.float32(1 - 0.999**count)) + np.float32(1e-8))
    return weights - np.float32(rate) * step, {"m": m, "v": v, "count": np.asarray(count)}


def sent() -> int:
    """Bytes that this host has sent to others."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth"))


def worker(kind: str, megabytes: int, steps: int, lanes: int) -> None:
    """One worker of a run."""
    size = megabytes * 250_000
    grads = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    times: list[float] = []
    bytes_sent: list[int] = []

    def tick() -> None:
        times.append(time.perf_counter())
        bytes_sent.append(sent())

    with mm.Job(np.arange(4 * lanes), batch=lanes, lanes=lanes, reduction="exact", check=False) as job:
        weights = np.zeros(size, np.float32)
        if kind == "unsharded":
            weights, state = job.share((weights, init(weights)))
            whole = 2 * size
            for _ in job.steps(steps):
                weights, state = update(weights, job.sum(lambda _: grads), state)
                job.commit((weights, state))
                tick()
        else:
            job.share(weights, optimizer=mm.optimizer(init, update))
            for _ in job.steps(steps):
                job.update(lambda _: grads)
                job.commit()
                tick()
            replica: Any = job.training.replica
            whole = sum(array.size for copy in replica.holder.copies.values() for array in copy.state.values())
        print(f"held {whole / (2 * size):.4f}", flush=True)
        print(f"sent {os.uname().nodename} {(bytes_sent[-1] - bytes_sent[2]) / (steps - 3):.0f}", flush=True)
        if job.first:
            print("took", *(f"{1000 * one:.1f}" for one in np.diff(times)[2:]), flush=True)


@contextlib.contextmanager
def places(workers: int, hosts: int) -> Iterator[Callable[..., list[str]]]:
    """What makes a command line of `meshmend run` and its words, for workers on so many hosts."""
    run = [sys.executable, "-m", "meshmend", "run"]
    if hosts == 1:
        yield lambda *words: [*run, "-n", str(workers), *words]
        return
    if reason := why_not():
        raise SystemExit(reason)
    names, home = "abcdefgh"[:hosts], namespaces.make_home()
    try:
        namespaces.wire(home, {name: f"10.79.0.{number}" for number, name in enumerate(names, 1)})
        listed = ",".join(f"{name}:{workers // hosts}" for name in names)
        for name in names:
            (namespaces.MEMORY / home.name / name).mkdir()
        where = ["--hosts", listed, "--launch-agent", shlex.join(namespaces.agent(home))]
        yield lambda *words: namespaces.line(home, names[0], *run, *where, *words)
    finally:
        namespaces.remove(*(namespaces.space_of(name) for name in (*names, "hub")))
        namespaces.remove_home(home)


def main() -> None:
    """Both kinds in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("megabytes", 100), ("workers", 4), ("hosts", 1), ("steps", 12), ("turns", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"unsharded": [], "sharded": []}
    traffic: dict[str, float] = {}
    held = 0.0
    with tempfile.TemporaryDirectory() as folder, places(options.workers, options.hosts) as line:
        for turn in range(options.turns):
            for kind, found in times.items():
                words = ["--checkpoint-every", "24h", "--name", f"sharded-{os.getpid()}-{turn}-{kind}"]
                numbers = map(str, (options.megabytes, options.steps, options.workers))
                command = line(*words, os.path.abspath(__file__), kind, *numbers)
                ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
                if ran.returncode:
                    raise SystemExit(ran.stdout + ran.stderr)
                found += [float(one) for some in re.findall(r"took ([\d. ]+)", ran.stdout) for one in some.split()]
                traffic[kind] = sum(
                    {host: float(one) for host, one in re.findall(r"sent (\S+) (\d+)", ran.stdout)}.values()
                )
                if kind == "sharded":
                    held = max([held, *(float(one) for one in re.findall(r"held ([\d.]+)", ran.stdout))])
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    for kind, median in medians.items():
        wire = f", {traffic[kind] / 1e6:6.0f} MB between hosts" if options.hosts > 1 else ""
        print(f"{kind:10} {median:7.0f} ms a step ({len(times[kind])} steps){wire}")
    print(f"sharded beside unsharded: {medians['sharded'] / medians['unsharded']:.2f} of the time")
    if options.hosts > 1:
        print(f"sharded beside unsharded: {traffic['sharded'] / traffic['unsharded']:.2f} of the bytes")
    print(f"optimizer's state of a worker: {held:.3f} of the whole, with {options.workers} workers and one buddy")


if __name__ == "__main__":
    if sys.argv[1:2] in (["unsharded"], ["sharded"]):
        worker(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        main()
