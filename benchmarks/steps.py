"""Steps of a training loop with `mm.Job` beside the same loop with a bare MPI_Allreduce in the worker's own process.

    python benchmarks/steps.py [--quick] [--sizes 25,100] [--turns 20] [--kinds pieces,float,bf16,exact]
    python benchmarks/steps.py --frameworks numpy,torch,jax --workers 2,4 --kinds float

Each kind beside `one`: both are started, as many processes each, and then take turns of a second or two, in which the
other stands stopped; so whatever else the machine does slows both alike. Trust the ratios.

    one      MPI_Allreduce of the whole flat buffer      float   mm.Job
    pieces   the same in pieces of 1 M numbers           bf16    mm.Job(wire="bf16")
                                                         exact   mm.Job(reduction="exact")

In PyTorch `one` sums every gradient in place, as such loops do, and there are no `pieces`; a worker has one lane, where
it has two or four in numpy and JAX.

`cpu` is the processor time of all processes of a loop, per step and worker; MPI spends it while it waits, too. `lanes`
is the time in the gradients' own computing, `update` that of the update, `other` the rest: packing, summing, waiting
for the others, unpacking, the digest. A turn's ratio is that of its median step to that of `one` in the same turn: the
median over all turns is shown, and the quartiles.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from meshmend.base.processes import TICK
from meshmend.run.world.mpirun import ON_HOSTS, OPTIONS, mpirun

HERE = Path(__file__).parent / "loops"
KINDS = "pieces,float,bf16,exact"
FRAMEWORKS = ("numpy", "torch", "jax")
TURN = {25: 1.3, 100: 2.5}
"""Seconds of a turn."""
SHORT = (0.5, 1.0, 1.5)
WARM = 6
"""Steps before the first turn."""


class Loop:
    """One kind of loop: its processes, stopped unless it is their turn."""

    def __init__(self, kind: str, framework: str, size: int, workers: int, folder: str) -> None:
        self.kind = kind
        self.times = Path(folder) / kind
        self.times.touch()
        self.turns: list[tuple[float, float]] = []
        self.workers = workers
        self.cpu: list[float] = []
        """Milliseconds per step and worker, of each turn."""
        args = [framework, str(size), kind, str(self.times), str(workers)]
        of = "_torch.py" if framework == "torch" else ".py"
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        if kind in ("one", "pieces"):
            program = [sys.executable, str(HERE / f"bare{of}"), *args]
            line = [mpirun(), *root, *OPTIONS, *ON_HOSTS, "-n", str(workers), *program]
        else:
            line = [sys.executable, "-m", "meshmend", "run", "-n", str(workers), str(HERE / f"job{of}"), *args]
        # One thread a process: there are already more processes than cores.
        one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NPROC"), "1")
        one_thread["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        self.log = open(f"{folder}/{kind}.log", "w+")  # noqa: SIM115
        self.main = subprocess.Popen(
            line, env={**os.environ, **one_thread}, stdout=self.log, stderr=self.log, start_new_session=True
        )
        self.wait(WARM)
        self.signal(signal.SIGSTOP)

    def wait(self, steps: int) -> None:
        """Until it has done so many steps."""
        while len(self.rows()) < steps:
            if self.main.poll() is not None:
                self.log.seek(0)
                raise SystemExit(f"the loop {self.kind!r} ended:\n{self.log.read()}")
            time.sleep(0.02)

    def processes(self) -> Iterator[tuple[int, list[str]]]:
        """All its processes, and what the kernel says of them: those of its session, and the launcher's workers."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(ProcessLookupError, FileNotFoundError):
                stat = (process / "stat").read_text().rpartition(")")[2].split()
                if self.main.pid in (os.getsid(int(process.name)), int(stat[1])):
                    yield int(process.name), stat

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        for process, _ in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def spent(self) -> float:
        """Seconds of processor time that they have taken so far."""
        return sum(int(stat[11]) + int(stat[12]) for _, stat in self.processes()) * TICK

    def turn(self, seconds: float) -> None:
        """Let it run for a while, two steps at least."""
        begin, before, spent = time.monotonic(), len(self.rows()), self.spent()
        self.signal(signal.SIGCONT)
        time.sleep(seconds)
        self.wait(before + 4)
        self.turns.append((begin, time.monotonic()))
        self.signal(signal.SIGSTOP)
        self.cpu.append(1e3 * (self.spent() - spent) / (len(self.rows()) - before) / self.workers)

    def rows(self) -> list[list[float]]:
        """(begin, end, lanes, update) of every step."""
        lines = self.times.read_text().splitlines()
        return [[float(word) for word in line.split()] for line in lines]

    def found(self) -> list[np.ndarray]:
        """For each turn (whole, lanes, update) of its steps but the first, in milliseconds."""
        rows = np.array(self.rows())
        out = []
        for begin, end in self.turns:
            inside = rows[(rows[:, 0] > begin) & (rows[:, 1] < end)][1:]
            out.append(1e3 * np.stack([inside[:, 1] - inside[:, 0], inside[:, 2], inside[:, 3]], 1))
        return out

    def end(self) -> None:
        """A launcher cleans up when it is interrupted."""
        self.signal(signal.SIGCONT)
        self.main.send_signal(signal.SIGINT)
        try:
            self.main.wait(10)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.main.wait()


Runs = tuple[list[np.ndarray], list[float]]


def turns_of(kinds: list[str], framework: str, size: int, workers: int, turns: int) -> list[Runs]:
    """Loops that take turns: for each kind and turn (whole, lanes, update) of its steps, and the processor's time."""
    loops: list[Loop] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for kind in kinds:
                loops.append(Loop(kind, framework, size, workers, folder))
            # The first turns are short and do not count: to the launcher a stopped worker is one that hangs, until it
            # has seen that this worker makes such pauses.
            for number in range(turns + len(SHORT)):
                for loop in loops:
                    loop.turn(SHORT[number] if number < len(SHORT) else TURN[size])
            return [(loop.found()[len(SHORT) :], loop.cpu[len(SHORT) :]) for loop in loops]
        finally:
            for loop in loops:
                loop.end()


def row(kind: str, turns: Runs, base: list[np.ndarray]) -> None:
    """Print what came out for one kind."""
    runs, cpu = turns
    whole, lanes, update = np.concatenate(runs).T
    low, middle, high = np.percentile(whole, [25, 50, 75])
    ratios = [np.median(rows[:, 0]) / np.median(other[:, 0]) for rows, other in zip(runs, base, strict=True)]
    least, ratio, most = np.percentile(ratios, [25, 50, 75])
    print(
        f"{kind:8}{len(whole):6}{middle:9.1f} {low:7.1f}–{high:<7.1f}{np.median(cpu):8.1f}{np.median(lanes):8.1f}"
        f"{np.median(update):8.1f}{np.median(whole - lanes - update):8.1f}   {ratio:.3f}  {least:.3f}–{most:.3f}",
        flush=True,
    )


def compare(framework: str, size: int, workers: int, turns: int, kinds: list[str]) -> None:
    """Each kind beside `one`."""
    print(f"\n{size} MB of float32 gradients, {framework}, {workers} processes, {turns} turns each")
    heads = "".join(f"{word:>8}" for word in ("cpu", "lanes", "update", "other"))
    print(f"{'':8}{'steps':>6}{'ms':>9} {'quartiles':>15}{heads}   ratio  quartiles")
    for kind in kinds:
        base, runs = turns_of(["one", kind], framework, size, workers, turns)
        row("one", base, base[0])
        row(kind, runs, base[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="The time of a step with mm.Job and with a bare MPI_Allreduce.")
    parser.add_argument("--quick", action="store_true", help="six turns each, 25 MB only")
    parser.add_argument("--frameworks", default="numpy", help=f"of {', '.join(FRAMEWORKS)}")
    parser.add_argument("--workers", default="4")
    parser.add_argument("--sizes", default="")
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--turns", type=int, default=0)
    chosen = parser.parse_args()
    turns = chosen.turns or (6 if chosen.quick else 20)
    sizes = chosen.sizes.split(",") if chosen.sizes else ["25"] if chosen.quick else ["25", "100"]
    for framework in chosen.frameworks.split(","):
        if framework not in FRAMEWORKS:
            parser.error(f"--frameworks {framework}: give some of {', '.join(FRAMEWORKS)}")
        kinds = [kind for kind in chosen.kinds.split(",") if kind != "pieces" or framework != "torch"]
        for size in map(int, sizes):
            for workers in map(int, chosen.workers.split(",")):
                compare(framework, size, workers, turns, kinds)


if __name__ == "__main__":
    main()
