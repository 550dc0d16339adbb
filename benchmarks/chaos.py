"""Hundreds of random failures of all kinds in one run; then its audit, and its states beside an undisturbed run's.

    python benchmarks/chaos.py [--failures 200] [--every 0.7] [--seed 0] [--workers 4] [--keep FOLDER]

Kinds: SIGKILL or SIGSTOP of a worker, SIGKILL of a courier or of mpirun, a flipped bit in a worker's state.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from meshmend import report
from meshmend.job.shm import ranks_of
from meshmend.telemetry import Struck, read

SCRIPT = Path(__file__).parent / "loops" / "recover.py"
KINDS = "kill,hang,courier,mpirun,flip"
LANES = 8
"""At least; as many as workers where those are more."""
STEPS = 130
"""Steps for each failure: the run must last as long as the chaos."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Hundreds of random failures in one run, and what became of it.")
    parser.add_argument("--failures", type=int, default=200)
    parser.add_argument("--every", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--keep", help="a folder for the runs, which is not removed")
    chosen = parser.parse_args()
    if chosen.keep:
        Path(chosen.keep).mkdir(parents=True, exist_ok=True)
    with nullcontext(chosen.keep) if chosen.keep else tempfile.TemporaryDirectory() as folder:
        os.environ.update(MESHMEND_RUNS=folder, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        meshmend = [sys.executable, "-m", "meshmend"]
        script = [str(SCRIPT), "1", str(STEPS * chosen.failures), "exact", str(max(LANES, chosen.workers))]
        begin = time.monotonic()
        with Path(folder, "log").open("w+") as log:
            run = [*meshmend, "run", "-n", str(chosen.workers), "--name", "chaos", *script]
            job = subprocess.Popen(run, stdout=log, stderr=log)
            while not ranks_of("chaos") and job.poll() is None:
                time.sleep(0.1)
            options = ["--every", str(chosen.every), "--kinds", KINDS, "--count", str(chosen.failures)]
            subprocess.run([*meshmend, "chaos", *options, "--seed", str(chosen.seed), "chaos"], check=False)
            status = job.wait()
            if status:
                log.seek(0)
                print(*[line for line in log if " step " not in line][-60:], sep="")
            seconds = time.monotonic() - begin
            alone = [*meshmend, "run", "-n", "1", "--name", "alone", *script]
            subprocess.run(alone, stdout=log, stderr=log, check=True)
        events = read(Path(folder, "chaos"))
        account, incidents = report.check(events), report.incidents(events)
        print(report.render(account, incidents))
        struck = Counter(event.fault for event in events if isinstance(event, Struck))
        step = report.compare(events, read(Path(folder, "alone")))
        print(
            f"\n{struck.total()} failures ({', '.join(f'{n} {kind}' for kind, n in sorted(struck.items()))})", end=" "
        )
        print(f"in {seconds:.0f} s, status {status}; states beside the undisturbed run's:", end=" ")
        print("the same after every step" if step is None else f"not the same after step {step}")
        good = status == 0 and account.clean and step is None and struck.total() >= chosen.failures
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
