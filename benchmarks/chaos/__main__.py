"""A thousand failures of all kinds in one run; then its audit, and its states beside those of an undisturbed run.

    python benchmarks/chaos [--failures 200] [--hosts N] [--workers 4] [--kinds KINDS] [--seed 0] [--keep FOLDER]
                            [--minutes 600] [--pause 0.01] [--sharded BUDDIES] [--device cuda] [--whole 0.3]

By default on one host; with `--hosts N` over so many network namespaces, each with a /dev/shm of its own, that reach
each other by a real sshd (as root). The next failure strikes as soon as the run has recovered from the last one. With
`--sharded 1` the update is sharded, with one buddy for each slice, and the undisturbed run is still the unsharded one:
then the weights are compared, since the optimizer's state is nobody's as a whole. A worker is struck only when others
hold all its slices, as no run can survive more; new buddies have them within two steps or three.

With `--device cuda` a model of PyTorch lives on the card, where workers sum and get the state from each other; the
weights are compared, and the card must have as much free memory afterwards as before:

    python benchmarks/chaos --device cuda --failures 100 --workers 6 --pause 0.05 --whole 0.05

Everything happens in mount and process namespaces of its own (`room.py`), so nothing else on the machine is touched.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import room
from bed import RUN, Bed, Namespaces
from keeper import DONE, MESHMEND, Keeper
from strikes import STRIKES
from torment import Torment

from meshmend import report
from meshmend.base.processes import kill
from meshmend.base.terminal import table
from meshmend.telemetry import Committed, Event, read, steps_done

LOOPS = Path(__file__).parent.parent / "loops"
SLACK = 64 << 20
"""Bytes by which the free memory of a card may differ for reasons of its own."""
ENDLESS = 10**9
MORE = 100
"""Steps after the last failure."""
PATIENCE = 300.0
LANES, MOST = 8, 64
"""Lanes of the script with few workers, and its batch: every worker needs a lane, and every lane an example."""


def lanes_for(workers: int) -> str:
    """How many lanes the script has, as a word: the undisturbed run must have as many, or its sums are others."""
    return str(max(LANES, 1 << (workers - 1).bit_length()))


def looped(steps: int, pause: float, chosen: argparse.Namespace) -> list[str]:
    """The script of the run and its arguments."""
    words = [str(steps), str(pause), str(chosen.sharded)]
    if chosen.device:
        return [str(LOOPS / "torment_torch.py"), *words, chosen.device]
    return [str(LOOPS / "torment.py"), *words, lanes_for(chosen.workers)]


def finish(bed: Bed, keeper: Keeper, chosen: argparse.Namespace) -> Keeper:
    """Stop a run that would never end, and resume it for the last steps; the keeper of those."""
    keeper.closing = True
    kill(keeper.launcher, signal.SIGTERM)
    keeper.join(PATIENCE)
    words = ["--resume", RUN, *looped(steps_done(bed.run) + MORE, 0.01, chosen)]
    last = Keeper(bed, words, keeper.log)
    last.start()
    last.join(PATIENCE)
    return last


def first_other_weights(ours: list[Event], theirs: list[Event]) -> int | None:
    """The first step after which two runs have other weights, as their scripts wrote to the ledger; None if none."""
    found = {}
    for at, events in enumerate((ours, theirs)):
        for line in events:
            if isinstance(line, Committed):
                found.setdefault(line.step, (set(), set()))[at].add(line.metrics["weights"])
    return min((step for step, (a, b) in found.items() if a != b or len(a) != 1), default=None)


def verdict(
    bed: Bed, torment: Torment, lives: list[object], seconds: float, status: int, chosen: argparse.Namespace
) -> bool:
    """Say what happened; whether all was well."""
    weights = bool(chosen.sharded or chosen.device)
    alone = Path(bed.home) / "alone"
    steps = steps_done(bed.run)
    plain = argparse.Namespace(sharded=0, device=chosen.device, workers=chosen.workers)
    words = ["-n", "1", "--name", "alone", *looped(steps, 0, plain)]
    with alone.open("wb") as log:
        subprocess.run([*MESHMEND, *words], stdout=log, stderr=log, check=False, timeout=3600)
    events = read(bed.run)
    account, incidents = report.check(events), report.incidents(events)
    print(report.render(account, incidents[-5:]))
    undisturbed = read(bed.disk / "alone")
    step = first_other_weights(events, undisturbed) if weights else report.compare(events, undisturbed)
    rows = [
        [
            kind,
            str(one.strikes),
            str(len(one.seconds)),
            seconds_of(sorted(one.seconds), 0.5),
            seconds_of(one.seconds, 1),
        ]
        for kind, one in sorted(torment.tallies.items())
    ]
    print(table(["kind", "strikes", "recovered", "median s", "longest s"], rows))
    left = bed.left()
    odd = [life for life in lives if not life.expected]
    fewer = [f"{torment.struck} failures of {torment.failures}"] if torment.struck < torment.failures else []
    missing = [kind for kind in torment.kinds if not torment.tallies[kind].strikes]
    print(f"{torment.struck} failures in {seconds:.0f} s and {steps:,} steps; {len(lives)} launchers; status {status}")
    print(
        f"{'weights' if weights else 'states'}: "
        + ("those of the undisturbed run, after every step" if step is None else f"differ after step {step}")
    )
    print("left behind: " + (", ".join(left) or "nothing"))
    if missing:
        print("never struck: " + ", ".join(missing))
    for what in [*torment.stuck, *fewer, *(f"a launcher ended: {life}" for life in odd)]:
        print(f"NOT WELL: {what}")
    return not (torment.stuck or fewer or odd or left or status or step is not None) and account.clean


def seconds_of(values: list[float], share: float) -> str:
    """A quantile."""
    return f"{sorted(values)[min(len(values) - 1, int(share * len(values)))]:.2f}" if values else "-"


def free_on_card() -> int:
    """Free bytes of the card; this process's own part of it is the same from the first call on."""
    from meshmend.base.cuda import Device

    return Device(0).memory()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failures", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kinds", default="", help=f"of {', '.join(STRIKES)}; by default all that the place has")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="stop after so long in any case")
    parser.add_argument("--pause", type=float, default=0.01, help="the least length of a step, in seconds")
    parser.add_argument("--sharded", type=int, default=0, metavar="BUDDIES", help="shard the update; 0: do not")
    parser.add_argument("--device", default="", help="a model on this device of PyTorch, such as cuda")
    parser.add_argument("--whole", type=float, default=0.3, help="how often to wait until all workers are back")
    parser.add_argument("--keep", help="a folder that the run is copied to at the end")
    chosen = parser.parse_args()
    kinds = chosen.kinds.split(",") if chosen.kinds else [*STRIKES]
    if wrong := [kind for kind in kinds if kind not in STRIKES]:
        parser.error(f"there is no kind {wrong[0]!r}: choose from {', '.join(STRIKES)}")
    if chosen.workers % chosen.hosts:
        parser.error(f"--workers {chosen.workers} cannot be divided among {chosen.hosts} hosts")
    if not 1 <= chosen.workers <= MOST:
        parser.error(f"--workers {chosen.workers} is out of range: give 1 to {MOST}")
    if not room.inside():
        return room.enter(chosen.workers)
    kinds = [kind for kind in kinds if STRIKES[kind].hosts <= chosen.hosts]
    free = free_on_card() if chosen.device.startswith("cuda") else 0
    home = room.home()
    bed = Namespaces(home, chosen.workers, chosen.hosts) if chosen.hosts > 1 else Bed(home, chosen.workers)
    began = time.monotonic()
    try:
        words = [
            *bed.places(),
            "--name",
            RUN,
            "--checkpoint-every",
            "10s",
            *looped(ENDLESS, chosen.pause, chosen),
        ]
        keeper = Keeper(bed, words, home / "log")
        keeper.start()
        until = began + 60 * chosen.minutes
        torment = Torment(bed, keeper, kinds, chosen.failures, random.Random(chosen.seed), until, chosen.whole)
        torment.run()
        if not steps_done(bed.run):
            print("NOT WELL: the run never did a step; the last words of its launchers:")
            print(*keeper.log.read_text(errors="replace").splitlines()[-15:], sep="\n")
            return 1
        last = finish(bed, keeper, chosen)
        lives = [*keeper.lives, *last.lives]
        status = last.lives[-1].status if last.lives else -1
        good = verdict(bed, torment, lives, time.monotonic() - began, status, chosen)
        if free:
            after = free_on_card()
            print(f"free memory of the card: {free >> 20} MiB before, {after >> 20} MiB after")
            good = good and after > free - SLACK
        if not good:
            print(*keeper.log.read_text(errors="replace").splitlines()[-60:], sep="\n")
        return 0 if good and status == DONE else 1
    finally:
        if chosen.keep:
            shutil.copytree(home, chosen.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("memory", "*.sock"))
        bed.close()


if __name__ == "__main__":
    sys.exit(main())
