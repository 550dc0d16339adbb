"""What a failure costs: from the kill to the next committed step, on this machine.

    python benchmarks/recovery.py [--quick] [--only kill,spare,…] [--sharded]
    python benchmarks/recovery.py --only kill,hang --frameworks numpy,torch,jax --sizes 25,100

Every row is a run of its own with several failures, each compared with the median of the ordinary steps just before
it; so what else the machine does weighs on both. `beyond` is what a failure adds: its time from the kill to the next
commit, less one ordinary step, less the time in which the dead worker's lanes were computed again.

    kill      SIGKILL of a worker, the others go on      spare     the same, a spare takes over 100 MB of state
    join      its replacement comes in                   mpirun    SIGKILL of mpirun, a new world is formed
    hang      SIGSTOP of a worker                        restart, checkpoint   the policies of others, for comparison

With `--sharded` each row is a phase of a step with sharded updates (Adam, 24 lanes, exact sums), in which a worker, or
its courier, is killed; in the last row another one dies in the next step, while new buddies are being filled. A round
that is decided is completed by the survivors, and then `total` ends a whole step later, with the first step of the new
group. So a second line divides it, in ordinary steps: `own` from the kill until all survivors have committed the
interrupted step, `next` the step after that, in which the first copies for new buddies are made, and `later` the median
of the tenth step after the kill and those that follow: what fewer workers take in any case.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from meshmend import report
from meshmend.base.processes import kill
from meshmend.job.shm.inspect import member
from meshmend.report import Incident
from meshmend.telemetry import Committed, Component, Event, Log, Struck, read

SCRIPT = Path(__file__).parent / "loops" / "recover.py"
WORKERS, LANES = 4, 8
NAME = f"bench-{os.getpid()}"
"""Of the runs: several of these programs may run at a time."""


@dataclass(frozen=True)
class Case:
    """A kind of failure."""

    words: tuple[str, ...]
    kind: str
    size: int = 25
    every: int = 15
    """Steps between two failures."""
    point: str = "compute"
    buddies: int = 0
    """0: updates are not sharded."""
    next_too: bool = False
    """Whether another worker dies in the step after each failure."""


CASES = {
    "kill": Case(("--on-failure", "replace"), "kill", every=40),
    "spare": Case(("--on-failure", "spare", "--spares", "4"), "kill", size=100, every=8),
    "mpirun": Case(("--on-failure", "replace"), "mpirun", every=20),
    "hang": Case(("--on-failure", "replace"), "hang", every=40),
    "restart": Case(("--on-failure", "restart"), "kill", every=30),
    "checkpoint": Case(("--on-failure", "checkpoint", "--checkpoint-every", "10"), "kill", every=25),
}
PHASES = ("compute", "allreduce", "add", "meet", "update", "compare", "give", "take", "commit")
SHARDED = {phase: Case(("--on-failure", "shrink"), "kill", every=25, point=phase, buddies=1) for phase in PHASES}
SHARDED["hand-over"] = Case(("--on-failure", "replace"), "kill", every=60, buddies=2, next_too=True)


def run(case: Case, failures: int, folder: Path, reduction: str, framework: str = "numpy") -> list[Event]:
    """A run with failures, and all its events."""
    steps = case.every * (failures + 1)
    faults = [
        {"rank": 1 + n % (WORKERS - 1), "step": case.every * (n + 1), "point": case.point, "kind": case.kind}
        for n in range(failures)
    ]
    if case.next_too:
        faults += [{**fault, "rank": 1 + fault["rank"] % (WORKERS - 1), "step": fault["step"] + 1} for fault in faults]
    if "spare" in case.words:
        for n, fault in enumerate(faults):
            fault["rank"] = n  # whoever has died does not come back
    environment = {
        **os.environ, "MESHMEND_RUNS": str(folder), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        "MESHMEND_FAULTS": "[]" if case.kind == "mpirun" else json.dumps(faults),
    }  # fmt: skip
    line = [sys.executable, "-m", "meshmend", "run", "-n", str(WORKERS), "--name", NAME, *case.words, str(SCRIPT)]
    with (folder / "log").open("w+") as log:
        lanes = "24" if case.buddies else str(LANES)
        words = [str(case.size), str(steps), reduction, lanes, str(case.buddies), framework]
        job = subprocess.Popen([*line, *words], env=environment, stdout=log, stderr=log)
        if case.kind == "mpirun":
            kill_mpirun(job, folder / NAME, [fault["step"] for fault in faults])
        if job.wait(timeout=600):
            log.seek(0)
            raise SystemExit(log.read())
    return read(folder / NAME)


def clean_run(case: Case, failures: int, reduction: str, framework: str) -> list[Event]:
    """The events of a run whose ledger holds every sample once."""
    with tempfile.TemporaryDirectory() as folder:
        events = run(case, failures, Path(folder), reduction, framework)
    account = report.check(events)
    if not account.clean:
        raise SystemExit(report.render(account, report.incidents(events)))
    return events


def kill_mpirun(job: subprocess.Popen[bytes], folder: Path, steps: list[int]) -> None:
    """Kill mpirun when the first worker gets to each of these steps."""
    log = None
    for step in steps:
        while job.poll() is None and not ((first := member(NAME, 0)) and first.step >= step):
            time.sleep(0.005)
        if job.poll() is None and first is not None:
            log = log or Log(folder, "benchmark")
            log.write(Struck(epoch=first.epoch, what=Component.MPIRUN, fault="mpirun", step=first.step))
            kill(first.mpirun)


def complete(found: list[Incident]) -> list[Incident]:
    """Those that have ended, and whose ordinary step is known."""
    return [incident for incident in found if incident.total is not None and incident.ordinary]


def in_steps(incident: Incident) -> float:
    """How many ordinary steps it took until the next commit."""
    assert incident.total is not None and incident.ordinary, "it is complete"
    return incident.total / incident.ordinary


def show(name: str, found: list[Incident], events: list[Event]) -> None:
    """A row of the table."""
    done = complete(found)
    if not done:
        print(f"{name:12} no incident was complete")
        return
    totals = [1e3 * (incident.total or 0) for incident in done]
    steps = [1e3 * (incident.ordinary or 0) for incident in done]
    again = [1e3 * incident.times.get("recompute", 0.0) for incident in done]
    beyond = [total - step - more for total, step, more in zip(totals, steps, again, strict=True)]
    low, high = min(totals), max(totals)
    count = len({event.step for event in events if isinstance(event, Committed)})
    print(
        f"{name:12}{len(done):9}{statistics.median(steps):10.0f}{statistics.median(totals):10.0f} "
        f"{f'{low:.0f}–{high:.0f}':>13}{statistics.median(again):11.0f}{statistics.median(beyond):9.0f}"
        f"{statistics.median(map(in_steps, done)):8.1f}{count:8}",
        flush=True,
    )


def split(incident: Incident, events: list[Event]) -> tuple[float, float, float] | None:
    """What is left of the interrupted step, the next step, and steps of the new group later, in ordinary steps."""
    struck = {event.rank: event.time for event in events if isinstance(event, Struck) and event.step == incident.step}
    ends: dict[int, float] = {}
    for event in events:
        if isinstance(event, Committed) and event.rank not in struck:
            ends[event.step] = max(ends.get(event.step, 0.0), event.time)
    own = incident.step
    later = [ends[step] - ends[step - 1] for step in range(own + 10, own + 20) if {step, step - 1} <= ends.keys()]
    if not struck or not incident.ordinary or not later or own + 1 not in ends:
        return None
    parts = ends[own] - min(struck.values()), ends[own + 1] - ends[own], statistics.median(later)
    return parts[0] / incident.ordinary, parts[1] / incident.ordinary, parts[2] / incident.ordinary


def show_split(found: list[Incident], events: list[Event]) -> None:
    """The end of a row of sharded updates."""
    every = [one for one in (split(incident, events) for incident in found) if one is not None]
    if every:
        own, following, later = (statistics.median(times) for times in zip(*every, strict=True))
        print(f"{'':12}own {own:.2f}, next {following:.2f}, later {later:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a failure costs, from the kill to the next committed step.")
    parser.add_argument("--quick", action="store_true", help="two failures a run")
    parser.add_argument("--only", default="")
    parser.add_argument("--sharded", action="store_true", help="phases of a step with sharded updates")
    parser.add_argument("--reduction", default="float")
    parser.add_argument("--frameworks", default="numpy", help="of numpy, torch, jax; sharded updates run in numpy")
    parser.add_argument("--sizes", default="", help="MB of gradients, 25 or 100, in place of each row's own")
    chosen = parser.parse_args()
    cases = SHARDED if chosen.sharded else CASES
    if chosen.sharded:
        chosen.reduction = "exact"
    print(f"{WORKERS} workers, {chosen.reduction}; times in ms, medians (and range of the totals)")
    head = f"{'':12}{'failures':>9}{'step':>10}{'total':>10} {'range':>13}{'recompute':>11}"
    print(f"{head}{'beyond':>9}{'steps':>8}{'done':>8}")
    for name in chosen.only.split(",") if chosen.only else cases:
        failures = 2 if chosen.quick or chosen.sharded else 4 if name == "spare" else 6
        for size in map(int, chosen.sizes.split(",")) if chosen.sizes else (cases[name].size,):
            for framework in chosen.frameworks.split(","):
                events = clean_run(replace(cases[name], size=size), failures, chosen.reduction, framework)
                found = report.incidents(events)
                joins = [incident for incident in found if incident.joins]
                label = name if framework == "numpy" else f"{name} {framework}"
                show(label, [incident for incident in found if not incident.joins], events)
                if chosen.sharded:
                    show_split([incident for incident in found if not incident.joins], events)
                if joins:
                    show("  join", joins, events)


if __name__ == "__main__":
    main()
