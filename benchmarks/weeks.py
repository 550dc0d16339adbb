"""What a run of weeks costs: its ledger on disk, the audit of it, and the processes beside the workers.

    python benchmarks/weeks.py ledger [--days 7] [--workers 4] [--rate 10] [--folder F]
    python benchmarks/weeks.py page [--days 7] [--workers 4] [--rate 10] [--looks 5]
    python benchmarks/weeks.py idle [--workers 4] [--step 1.0] [--seconds 20]
    python benchmarks/weeks.py growth [--steps 100000 | --worlds 1000] [--workers 2]

`ledger` writes what the workers of such a run would have written (a failure each hour, a checkpoint each minute), lets
one file grow line by line to see what that costs and what it becomes, and audits the whole in a process of its own.
`page` opens the page of such a run, and looks at it again while it grows by some steps between two looks.
`idle` runs a job of long steps, and takes from /proc how much of a core each process needs meanwhile.
`growth` looks whether memory, open files, shared memory or the run's folder grow with steps and worlds (growth.py).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import growth
import numpy as np

from meshmend.base.processes import TICK, running
from meshmend.base.processes import name as program
from meshmend.report.history import Reading
from meshmend.report.page.snapshot import Snapshots, to_json
from meshmend.telemetry import (
    Began,
    Committed,
    Component,
    Died,
    Epoch,
    Event,
    Formed,
    How,
    Log,
    Opened,
    Saved,
    Steps,
    Why,
)
from meshmend.telemetry.compaction import compact
from meshmend.telemetry.folder import FULL, segment
from meshmend.telemetry.steps import MOST

LANES, BATCH, SIZE = 32, 512, 1_281_167
START = 1.7e9
HOUR = 3600

SCRIPT = """
import sys, time
import numpy as np
import meshmend as mm

with mm.Job(np.zeros(64), batch=8, lanes=8) as job:
    state = job.share(np.zeros(4, np.float32))
    for step in job.steps(10_000):
        def lane(_):
            time.sleep(float(sys.argv[1]) / 2)  # two lanes each
            return np.ones(4, np.float32)
        total = job.sum(lane)
        job.commit(state, loss=1.0)
"""


def line(step: int, rank: int, rate: float, workers: int, epoch: Epoch) -> Committed:
    by = [[one, LANES // workers] for one in range(workers)]
    return Committed(
        time=START + step / rate, epoch=epoch, rank=rank, step=step, by=by, digest=f"{_digests(step, 1)[0]:012x}",
        metrics={"loss": float(_losses(step, 1)[0])},
    )  # fmt: skip


def _digests(step: int, count: int) -> np.ndarray:
    mixed = np.arange(step, step + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed ^ (mixed >> np.uint64(29))) & np.uint64((1 << 48) - 1)


def _losses(step: int, count: int) -> np.ndarray:
    steps = np.arange(step, step + count)
    return 0.2 + 2 / (1 + steps / 1e4) + 0.05 * np.sin(steps * 12.9898) ** 2


def events(rank: int, steps: int, rate: float, workers: int) -> Iterator[Event]:
    """What one worker writes; each hour something fails, so a step is not like the others and the epoch changes."""
    noise = np.random.default_rng(rank).normal(0, 2e-3, MOST)
    data = {"size": SIZE, "batch": BATCH, "lanes": LANES, "seed": 0}
    yield Opened(time=START, epoch=Epoch(0, 1), rank=rank, step=0, reduction="exact", **data)
    minute, hour = int(60 * rate), int(HOUR * rate)
    edges = sorted({*range(0, steps, MOST), *range(0, steps, minute), *range(0, steps, hour), steps})
    for begin, end in pairwise(edges):
        epoch = Epoch(0, 1, begin // hour)
        if begin % minute == 0 and rank == 0:
            yield Saved(time=START + begin / rate, epoch=epoch, step=begin, path="step", seconds=1.0, nbytes=10**8)
        if begin % hour == 0 and begin:
            odd = line(begin, rank, rate, workers, epoch)
            yield Committed(**{**vars(odd), "by": [[0, LANES]]})
            begin += 1
        times = START + np.arange(begin, end) / rate + noise[: end - begin]
        first = line(begin, rank, rate, workers, epoch)
        yield Steps.of(first, times, _digests(begin, end - begin), [_losses(begin, end - begin)])


def launcher(steps: int, rate: float, workers: int) -> Iterator[Event]:
    yield Began(time=START, epoch=Epoch(0), workers=workers, spares=0, on_failure="shrink")
    yield Formed(time=START, epoch=Epoch(0, 1), ranks=[*range(workers)], why=Why.BEGIN)
    for number, step in enumerate(range(int(HOUR * rate), steps, int(HOUR * rate))):
        died = {"what": Component.COURIER, "how": How.LOST, "rank": 1, "process": number + 1, "step": step}
        yield Died(time=START + step / rate, epoch=Epoch(0, 1, number), **died)


def write(folder: Path, writer: str, found: Iterator[Event]) -> int:
    """Write a writer's files as compaction leaves them; the bytes."""
    number, size, total = 0, 0, 0
    (folder / "events").mkdir(parents=True, exist_ok=True)
    file = segment(folder, writer, 0).open("w")
    for event in found:
        text = event.line() + "\n"
        if size > FULL // 9:
            number, size = number + 1, 0
            file.close()
            file = segment(folder, writer, number).open("w")
        size += file.write(text)
        total += len(text)
    file.close()
    return total


def grow(folder: Path, rate: float, workers: int) -> None:
    """One file, line by line."""
    log, count, epoch = Log(folder, "worker-0"), 20_000, Epoch(0, 1)
    lines = [line(step, 0, rate, workers, epoch) for step in range(count)]
    began = time.perf_counter()
    for one in lines:
        log.write(one)
    wrote = time.perf_counter() - began
    path = segment(folder, "worker-0", 0)
    before = path.stat().st_size
    del log
    copy = folder / "events" / "copy-0.jsonl"
    copy.write_bytes(path.read_bytes())
    began = time.perf_counter()
    compact(copy)
    took = time.perf_counter() - began
    after = copy.stat().st_size
    print(f"a line: {1e6 * wrote / count:.1f} µs to write, {before / count:.0f} bytes; compacted: {after / count:.1f}")
    print(f"compaction: {1e6 * took / count:.1f} µs per step, in the background, {took:.2f} s per {count:,} steps")


def write_all(folder: Path, steps: int, args: argparse.Namespace) -> list[int]:
    """What all workers and the launcher write; the bytes of each worker."""
    sizes = [
        write(folder, f"worker-{rank}", events(rank, steps, args.rate, args.workers)) for rank in range(args.workers)
    ]
    write(folder, "launcher", launcher(steps, args.rate, args.workers))
    return sizes


def page(args: argparse.Namespace) -> None:
    steps = int(args.days * 86400 * args.rate)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "week"
        write_all(folder, steps, args)
        logs = [Log(folder, f"worker-{rank}") for rank in range(args.workers)]
        reading = Reading(str(folder))
        snapshots, times = Snapshots(reading.history), []
        for step in range(steps, steps + args.looks + 1):
            began = time.process_time()
            reading.poll()
            shown = [to_json(section) for section in snapshots.sections().values()]
            times.append(time.process_time() - began)
            for rank in range(args.workers):
                more = line(step, rank, args.rate, args.workers, Epoch(0, 1, (steps - 1) // int(HOUR * args.rate)))
                logs[rank].write(more)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert reading.history.jobs[1].audit.ledger.end == steps + args.looks, "every look found a step more"
    print(f"{steps:,} steps by {args.workers} workers: the page has {sum(map(len, shown)) / 1e3:.0f} kB, {peak:.0f} MB")
    looks = ", ".join(f"{1e3 * took:.0f}" for took in times[1:])
    print(f"processor time: {times[0]:.1f} s to open it, then {looks} ms per look")


def ledger(args: argparse.Namespace) -> None:
    steps = int(args.days * 86400 * args.rate)
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        grow(Path(temporary) / "grown", args.rate, args.workers)
        folder = Path(temporary) / "week"
        began = time.perf_counter()
        sizes = write_all(folder, steps, args)
        print(f"{steps:,} steps by {args.workers} workers, made in {time.perf_counter() - began:.0f} s")
        files = len([*(folder / "events").iterdir()])
        each = sum(sizes) / args.workers / steps
        print(f"on disk: {sum(sizes) / 1e6:.0f} MB in {files} files, {each:.1f} bytes per step and worker")
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "meshmend", "audit", str(folder)], capture_output=True, text=True, timeout=3600
        )
        took = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print("\n".join(done.stdout.splitlines()[:3]), done.stderr, sep="\n")
        print(f"audit: {took:.1f} s, {peak:.0f} MB at most, status {done.returncode}")


def used(process: int) -> float:
    """Seconds of processor time."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) * TICK


def idle(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        script = Path(temporary) / "train.py"
        script.write_text(SCRIPT)
        name = f"idle-{time.time_ns() % 10**9}"
        command = [sys.executable, "-m", "meshmend", "run", "-n", str(args.workers), "--name", name]
        with (Path(temporary) / "log").open("w") as log:
            run = subprocess.Popen([*command, str(script), str(args.step)], cwd=temporary, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            output = Path(temporary) / "log"
            while output.read_text().count("step ") < 5 and time.monotonic() < deadline and run.poll() is None:
                time.sleep(0.1)
            if run.poll() is not None:
                sys.exit(output.read_text())
            parts = {
                "launcher": [run.pid],
                "couriers": [
                    one for one in running("meshmend.job.courier", name, any_network=True) if "python" in program(one)
                ],
                "workers": running("meshmend.job.worker", str(script)),
            }
            before = {part: [used(one) for one in processes] for part, processes in parts.items()}
            began = time.monotonic()
            time.sleep(args.seconds)
            took = time.monotonic() - began
            for part, processes in parts.items():
                shares = [100 * (used(one) - was) / took for one, was in zip(processes, before[part], strict=True)]
                print(f"{part:9} {' '.join(f'{share:5.2f} %' for share in shares)} of a core")
        finally:
            run.terminate()
            run.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("ledger")
    one.add_argument("--days", type=float, default=7)
    one.add_argument("--workers", type=int, default=4)
    one.add_argument("--rate", type=float, default=10)
    one.add_argument("--folder")
    one.set_defaults(verb=ledger)
    page_verb = verbs.add_parser("page")
    page_verb.add_argument("--days", type=float, default=7)
    page_verb.add_argument("--workers", type=int, default=4)
    page_verb.add_argument("--rate", type=float, default=10)
    page_verb.add_argument("--looks", type=int, default=5)
    page_verb.set_defaults(verb=page)
    two = verbs.add_parser("idle")
    two.add_argument("--workers", type=int, default=4)
    two.add_argument("--step", type=float, default=1.0)
    two.add_argument("--seconds", type=float, default=20)
    two.set_defaults(verb=idle)
    growth.add_parser(verbs)
    args = parser.parse_args()
    args.verb(args)


if __name__ == "__main__":
    main()
