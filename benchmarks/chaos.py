"""Hundreds of random failures of all kinds in one run; then its audit, and its states beside an undisturbed run's.

    python benchmarks/chaos.py [--failures 200] [--every 0.7] [--seed 0] [--workers 4] [--kinds KINDS] [--keep FOLDER]

Kinds: SIGKILL or SIGSTOP of a worker, a courier or mpirun, a flipped bit in a worker's state, SIGKILL of the launcher
(another one attaches) and SIGTERM to it (the run is resumed).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from meshmend import report
from meshmend.job.shm import ranks_of
from meshmend.telemetry import Struck, read

SCRIPT = Path(__file__).parent / "loops" / "recover.py"
KINDS = "kill,hang,courier,courier-stop,mpirun,mpirun-stop,flip,launcher,term"
LANES = 8
"""At least; as many as workers where those are more."""
STEPS = 130
"""Steps for each failure: the run must last as long as the chaos."""
AGAIN = {-signal.SIGKILL: "--attach", 70: "--attach", 75: "--resume"}
"""What follows the launcher's end, by its status."""
MESHMEND = [sys.executable, "-m", "meshmend"]


def keep_running(words: list[str], log: IO[str], statuses: list[int]) -> None:
    """Run it, and attach or resume whenever its launcher was killed or stopped."""
    while True:
        status = subprocess.run([*MESHMEND, "run", *words], stdout=log, stderr=log).returncode
        statuses.append(status)
        if status not in AGAIN:
            return
        words = [AGAIN[status], "chaos"]


def torment(folder: Path, chosen: argparse.Namespace, runner: threading.Thread) -> None:
    """Strike until there were enough failures, in as many goes as the run has lives."""
    go = 0
    while runner.is_alive() and (left := chosen.failures - count(folder).total()) > 0:
        options = ["--every", str(chosen.every), "--kinds", chosen.kinds, "--count", str(left)]
        subprocess.run([*MESHMEND, "chaos", *options, "--seed", str(1000 * chosen.seed + go), "chaos"], check=False)
        go += 1
        while runner.is_alive() and not ranks_of("chaos"):
            time.sleep(0.1)


def count(folder: Path) -> Counter[str]:
    """The failures so far, by kind."""
    return Counter(event.fault for event in read(folder, "chaos") if isinstance(event, Struck))


def main() -> int:
    parser = argparse.ArgumentParser(description="Hundreds of random failures in one run, and what became of it.")
    parser.add_argument("--failures", type=int, default=200)
    parser.add_argument("--every", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--keep", help="a folder for the runs, which is not removed")
    chosen = parser.parse_args()
    if chosen.keep:
        Path(chosen.keep).mkdir(parents=True, exist_ok=True)
    with nullcontext(chosen.keep) if chosen.keep else tempfile.TemporaryDirectory() as folder:
        os.environ.update(MESHMEND_RUNS=folder, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        script = [str(SCRIPT), "1", str(STEPS * chosen.failures), "exact", str(max(LANES, chosen.workers))]
        begin, statuses = time.monotonic(), list[int]()
        with Path(folder, "log").open("w+") as log:
            words = ["-n", str(chosen.workers), "--name", "chaos", *script]
            runner = threading.Thread(target=keep_running, args=[words, log, statuses])
            runner.start()
            while not ranks_of("chaos") and runner.is_alive():
                time.sleep(0.1)
            torment(Path(folder, "chaos"), chosen, runner)
            runner.join()
            if statuses[-1]:
                log.seek(0)
                print(*[line for line in log if " step " not in line][-60:], sep="")
            seconds = time.monotonic() - begin
            alone = [*MESHMEND, "run", "-n", "1", "--name", "alone", *script]
            subprocess.run(alone, stdout=log, stderr=log, check=True)
        events = read(Path(folder, "chaos"))
        account, incidents = report.check(events), report.incidents(events)
        print(report.render(account, incidents))
        struck = count(Path(folder, "chaos"))
        step = report.compare(events, read(Path(folder, "alone")))
        print(
            f"\n{struck.total()} failures ({', '.join(f'{n} {kind}' for kind, n in sorted(struck.items()))})", end=" "
        )
        print(f"in {seconds:.0f} s, status {statuses[-1]}; states compared with the undisturbed run's:", end=" ")
        print("the same after every step" if step is None else f"not the same after step {step}")
        good = statuses[-1] == 0 and account.clean and step is None and struck.total() >= chosen.failures
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
