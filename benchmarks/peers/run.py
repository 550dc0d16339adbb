"""meshmend beside other ways to train: the same work, on the same machine, in turns.

    python benchmarks/peers/run.py [--minutes 19] [--rounds 3] [--only meshmend,torchft] [--sizes 25,100]
    python benchmarks/peers/run.py --again           write the page anew from the last measurements

Makes its own environments in benchmarks/peers/.envs, runs every system in short runs, round after round, and writes
docs/results/peers.md and peers.png. Where time runs out, later rounds are left out, never a system. All processes are
ended by their ids, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import envs
import report
import trial
from count import Tally
from systems import ALL

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "docs" / "results"
LAST = envs.HOME / "last.json"
STEPS = {25: 20, 100: 10}
PATIENCE = 30.0
"""Seconds in which the next step must come after a failure."""
NEVER = ("ddp", "mpi", "torchrun")
"""No notion of a hang: tried once only, since it takes all of the patience."""
STEPS_ALONE = ("meshmend-exact", "meshmend-wrap")
"""Other ways to sum and to write the loop; failures are those of "meshmend"."""


@dataclass(frozen=True)
class Turn:
    """One short run."""

    name: str
    size: int
    workers: int
    kills: int
    hang: bool = False


def turns(number: int, sizes: list[int], names: list[str]) -> Iterator[Turn]:
    """All runs of one round, those that are compared next to each other."""
    for workers in (4, 2):
        for size in sizes:
            for name in names:
                fails = workers == 4 and name not in STEPS_ALONE
                if name == "torchft-default" and (size != 25 or workers != 4):
                    continue  # differs only in what it waits for
                if name in STEPS_ALONE and workers != 4:
                    continue
                goes_on = ALL[name].goes_on
                yield Turn(name, size, workers, int(fails), fails and goes_on and name not in NEVER)
    if number == 0:
        for name in names:
            if name in NEVER:
                yield Turn(name, min(sizes), 4, 0, hang=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="meshmend beside other ways to train.")
    parser.add_argument("--minutes", type=float, default=19, help="of all, environments included")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(ALL))
    parser.add_argument("--sizes", default="25,100")
    parser.add_argument("--again", action="store_true", help="write the page anew, and measure nothing")
    parser.add_argument("--into", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not chosen.again:
        begin = time.monotonic()
        envs.make()
        measure(begin, chosen)
    found = json.loads(LAST.read_text())
    results = [loaded(one) for one in found["results"]]
    (chosen.into / "peers.md").write_text(report.page(results, found))
    chart = [str(envs.python("meshmend")), str(HERE / "chart.py"), str(LAST), str(chosen.into / "peers.png")]
    subprocess.run(chart, check=True, timeout=120)
    print((chosen.into / "peers.md").read_text())


def measure(begin: float, chosen: argparse.Namespace) -> None:
    """All rounds, as far as time allows; what was measured is kept after every run."""
    names, sizes = chosen.only.split(","), [int(size) for size in chosen.sizes.split(",")]
    budget = 60 * chosen.minutes
    about = {"versions": envs.versions(), "rounds": 0, "left_out": 0, "patience": PATIENCE}
    results: list[trial.Result] = []
    took: dict[Turn, float] = {}
    for number in range(chosen.rounds):
        row = list(turns(number, sizes, names))
        for turn in row:
            elapsed = time.monotonic() - begin
            if number and elapsed + took.get(turn, 30) > budget:
                about["left_out"] += 1
                continue
            print(
                f"{elapsed:5.0f} of {budget:.0f} s   round {number + 1}   {turn.size:3} MB   {turn.workers} workers   "
                f"{ALL[turn.name].title}{', hang' if turn.hang and not turn.kills else ''}",
                flush=True,
            )
            steps = STEPS[turn.size] if turn.kills or not turn.hang else 5
            one = trial.run(turn.name, ALL[turn.name], turn.size, turn.workers, steps, turn.kills, turn.hang, PATIENCE)
            if turn.hang and not turn.kills:
                one = replace(one, steps=[], sums=[])  # too few to tell
            one = replace(one, round=number)
            if one.error:
                print(f"    it did not finish: {one.error[:300]}", flush=True)
            results.append(one)
            took[turn] = time.monotonic() - begin - elapsed
            about["rounds"] = number + 1
            about["seconds"] = round(time.monotonic() - begin)
            keep(about, results)
    keep(about, results)


def keep(about: dict, results: list[trial.Result]) -> None:
    """Write down what was measured so far."""
    LAST.write_text(json.dumps({**about, "results": [asdict(result) for result in results]}))


def loaded(one: dict) -> trial.Result:
    """A result as it was kept."""
    failures = [trial.Failure(**failure) for failure in one["failures"]]
    samples = Tally(**one["samples"]) if one["samples"] else None
    return trial.Result(**{**one, "failures": failures, "samples": samples})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("ended, and cleaned up; --again writes the page from what was measured so far")
