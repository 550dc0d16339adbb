"""How long after a kill the replacement counts: from SIGKILL to its first committed step, cold and with `--warm 1`.

    python benchmarks/rejoin.py [--frameworks numpy,torch,jax] [--kills 4] [--workers 2]

For each framework a run without and a run with warm processes, in turn; in each, the last worker is killed again and
again, as soon as everybody trains (and, with `--warm 1`, another process waits). Medians, and the range in brackets.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from meshmend.base.processes import running
from meshmend.base.terminal import table
from meshmend.job.shm.inspect import Member, member

LOOP = """
with mm.Job(np.ones((256, 1000), np.float32), batch=64, lanes=8) as job:
    state = job.share(zeros(1000))
    for step in job.steps(1_000_000):
        state = state + job.sum(lambda lane: gradient(lane)) / 64
        job.commit(state)
        time.sleep(0.02)
"""
SCRIPTS = {
    "numpy": """
import time
import numpy as np
import meshmend as mm
zeros = lambda size: np.zeros(size, np.float32)
gradient = lambda lane: lane.sum(0)
""",
    "torch": """
import time
import numpy as np
import torch
import meshmend as mm
zeros = torch.zeros
gradient = lambda lane: torch.as_tensor(lane).sum(0)
""",
    "jax": """
import time
import numpy as np
import jax
import jax.numpy as jnp
import meshmend as mm
zeros = jnp.zeros
gradient = jax.jit(lambda lane: lane.sum(0))
""",
}
DEADLINE = 300.0


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit(f"it did not happen in {DEADLINE:.0f} s")
        time.sleep(0.005)


def trains(name: str, rank: int, without: int = 0, after: int = 0) -> bool:
    """Whether a rank's worker, another than `without`, takes part in sums and is past this step."""
    found = member(name, rank)
    return found is not None and found.worker not in (0, without) and found.active and found.step > after


def killed(name: str, rank: int) -> Member:
    """Kill a rank's worker; what it was."""
    found = member(name, rank)
    assert found is not None
    os.kill(found.worker, signal.SIGKILL)
    return found


def measure(framework: str, warm: int, kills: int, workers: int, folder: Path) -> list[float]:
    """Seconds from each kill until the replacement has committed a step."""
    name, script = f"rejoin-{os.getpid()}", folder / "train.py"
    script.write_text(SCRIPTS[framework] + LOOP)
    command = [sys.executable, "-m", "meshmend", "run", "-n", str(workers), "--warm", str(warm), "--name", name]
    with (folder / "log").open("w") as log:
        run = subprocess.Popen([*command, str(script)], cwd=folder, stdout=log, stderr=log)
    last, seconds = workers - 1, []
    try:
        for _ in range(kills):
            wait_for(lambda: all(trains(name, rank) for rank in range(workers)))
            if warm:
                wait_for(lambda: bool(running("meshmend.job.warm", str(script))))
                time.sleep(4)  # it has to import, which shows nowhere
            victim, began = killed(name, last), time.monotonic()
            wait_for(partial(trains, name, last, victim.worker))
            joined = member(name, last)
            assert joined is not None
            wait_for(partial(trains, name, last, victim.worker, joined.step))
            seconds.append(time.monotonic() - began)
    finally:
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        run.wait(DEADLINE)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", default=",".join(SCRIPTS))
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    rows = []
    for framework in chosen.frameworks.split(","):
        row = [framework]
        for warm in (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                found = measure(framework, warm, chosen.kills, chosen.workers, Path(folder))
            row.append(f"{statistics.median(found):.1f} s ({min(found):.1f}–{max(found):.1f})")
        rows.append(row)
    print(table(["framework", "cold", "--warm 1"], rows))


if __name__ == "__main__":
    main()
