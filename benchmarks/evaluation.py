"""An evaluation that only computes, divided among workers: how much faster two are than one, and what a kill costs.

    python benchmarks/evaluation.py [--turns 5]

Runs with one worker, with two, and with two of which one is killed in the middle take turns, so what else the machine
does weighs on all of them. Each worker has one thread. 10,003 samples; every run must count the same. The last column
compares processor time, of the worker that used most: what a machine with nothing else to do could reach at best.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import os, signal, sys, time
import numpy as np
import meshmend as mm

x = np.random.default_rng(0).integers(-3, 4, (10_003, 256)).astype(np.float32)
layer = np.random.default_rng(1).integers(-1, 2, (256, 256)).astype(np.float32)
chunks = 0

def right(chunk, weight):
    global chunks
    chunks += 1
    if sys.argv[1] == "kill" and job.rank == 1 and job.step == 2 and chunks > 40:
        os.kill(os.getpid(), signal.SIGKILL)
    z = chunk
    for _ in range(24):
        z = np.sign(z @ layer)
    return {"right": int(((z.sum(1) > 0) * weight).sum()), "seen": int(weight.sum())}

with mm.Job(x, batch=256, lanes=4, reduction="exact") as job:
    state = job.share(np.zeros(1, np.float32))
    for step in job.steps(2):
        state = state + job.sum(lambda lane: lane[:1, 0])
        job.commit(state)
        job.barrier()
        begin, used = time.perf_counter(), time.process_time()
        found = job.evaluate(x, right)
        print(f"evaluation {step} used {time.process_time() - used} s", flush=True)
        if job.first:
            print(f"evaluation {step} took {time.perf_counter() - begin} s: {found}", flush=True)
        chunks = 0
"""
KINDS = {"one": (1, ""), "two": (2, ""), "kill": (2, "kill")}


def measure(kind: str, folder: Path, name: str) -> tuple[float, float, str]:
    """Seconds of the second evaluation, when everything is warm, by the clock and of a processor; and its result."""
    workers, word = KINDS[kind]
    env = os.environ | dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], "1")
    words = ["run", "-n", str(workers), "--on-failure", "shrink", "--name", name, "evaluate.py", word]
    run = subprocess.run(
        [sys.executable, "-m", "meshmend", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=900
    )
    found = re.search(r"evaluation 1 took (\S+) s: (.*)", run.stdout)
    if run.returncode or found is None:
        raise SystemExit(run.stdout + run.stderr)
    used = max(map(float, re.findall(r"evaluation 1 used (\S+) s", run.stdout)))
    return float(found[1]), used, found[2]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {turns} turns")
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    used: dict[str, list[float]] = {kind: [] for kind in KINDS}
    results = set()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "evaluate.py").write_text(SCRIPT)
        for turn in range(turns):
            for kind, seconds in times.items():
                took, work, result = measure(kind, Path(folder), f"{kind}-{turn}")
                seconds.append(took)
                used[kind].append(work)
                results.add(result)
    for kind, seconds in times.items():
        ratios = [one / own for one, own in zip(times["one"], seconds, strict=True)]
        work = statistics.median(one / own for one, own in zip(used["one"], used[kind], strict=True))
        print(
            f"{kind:5} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"{statistics.median(ratios):.2f} times as fast as one worker ({min(ratios):.2f} to {max(ratios):.2f}), "
            f"{work:.2f} by processor time"
        )
    print("results: " + ("the same in all runs, " + results.pop() if len(results) == 1 else f"NOT the same: {results}"))


if __name__ == "__main__":
    main()
