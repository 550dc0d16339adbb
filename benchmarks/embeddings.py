"""DLRM's 26 embedding tables, spread over workers that are killed: the same bits and the same AUC as undisturbed.

    python benchmarks/embeddings.py                       # 1.5 million rows, 4 workers, 3 failures
    python benchmarks/embeddings.py --rows 20000 --steps 200 --batch 512
    python benchmarks/embeddings.py --hosts 2             # network namespaces (as root): rows cross a network

Runs `examples/dlrm.py` with one worker, with several, and with several that `meshmend chaos` kills and that are
replaced (on several hosts, workers of the first are killed by injected faults). Prints the AUC and the digest of each,
the largest share of the tables that a worker held at the end, the time, and what the audit found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sharded import places

from meshmend.base.env import ONE_THREAD

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "dlrm.py"
MESHMEND = [sys.executable, "-m", "meshmend"]
APART = 6
"""Steps between two failures: what the last one took is copied again by then."""


def run(line: Callable[..., list[str]], folder: str, name: str, failures: int, words: list[str], here: int = 0) -> str:
    """What a run prints; it is struck by so many failures, of the `here` workers of the first of several hosts."""
    command = line("--name", name, "--log-every", "0", str(SCRIPT), *words)
    faults = [
        {"rank": n % here, "step": APART * (n + 1), "point": "compute", "kind": "kill"}
        for n in range(failures * (here > 0))
    ]
    environment = {**os.environ, "MESHMEND_FAULTS": json.dumps(faults)}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines, struck = [], 0
    for line in process.stdout:
        lines.append(line)
        step = re.search(r"step (\d+) of", line)
        if step is not None and not here and struck < failures and int(step[1]) >= APART * (struck + 1):
            struck += 1
            kind = ("kill", "courier")[struck % 2]
            chaos = ["chaos", "--every", "0.1", "--count", "1", "--kinds", kind, "--seed", str(struck), name]
            subprocess.Popen([*MESHMEND, *chaos], cwd=folder, stdout=subprocess.DEVNULL)
    process.wait()
    return "".join(lines)


def told(label: str, output: str, seconds: float) -> tuple[str, ...]:
    """Print what a run has found; its AUC and bits."""
    found, shares = re.search(r"AUC (\S+), bits (\w+)", output), re.findall(r"holds (\S+) of the tables", output)
    if found is None:
        raise SystemExit(f"{label} has no AUC:\n{output}")
    deaths, most = len(re.findall(r"was killed by|was ended|is ended", output)), max(map(float, shares))
    print(
        f"{label:24} AUC {found[1]}  bits {found[2]}  holds {most:.3f} at most  {deaths} deaths  {seconds:.0f} s",
        flush=True,
    )
    return found[1], found[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--failures", type=int, default=3)
    options = parser.parse_args()
    words = ["--rows", str(options.rows), "--steps", str(options.steps), "--batch", str(options.batch)]
    words += ["--samples", str(max(65536, options.steps * options.batch))]
    results = []
    with tempfile.TemporaryDirectory() as folder, places(options.workers, options.hosts) as line:
        began = time.monotonic()
        # As `meshmend run` starts workers: with other threads, products of matrices have other last bits.
        one = {**ONE_THREAD, **os.environ}
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *words], env=one, capture_output=True, text=True, check=True
        )
        results.append(told("one worker", done.stdout, time.monotonic() - began))
        several = f"{options.workers} workers"
        here = options.workers // options.hosts if options.hosts > 1 else 0
        for label, failures in ((several, 0), (f"{several}, failures", options.failures)):
            name, began = f"tables-{failures}", time.monotonic()
            more = ["--buddies", "2"] if failures else []
            output = run(line, folder, name, failures, [*words, *more], here)
            results.append(told(label, output, time.monotonic() - began))
            audit = subprocess.run([*MESHMEND, "audit", name], cwd=folder, capture_output=True, text=True)
            print(f"{'':24} audit: {'clean' if audit.returncode == 0 else audit.stdout.strip()}")
    if len(set(results)) != 1:
        raise SystemExit("the runs differ")
    print("all runs have the same bits")


if __name__ == "__main__":
    main()
