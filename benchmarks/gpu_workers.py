"""Several workers on one accelerator, beside as many processes that compute the same and sum nothing.

    python benchmarks/gpu_workers.py [--framework torch,jax] [--workers 2,4] [--kinds bare,sync,meet,job,exact,host,ddp]
                                     [--model gpt] [--size full|tiny] [--device cuda|cpu] [--turns 5] [--steps 20]

    bare    processes that compute their share of the batch, update by it, and never talk to each other
    sync    the same, and each waits for its gradients once per step: what any sum costs that is certain when it returns
    meet    the same, and all wait for all others' gradients: what a sum costs that takes no time at all
    job     `meshmend run`: sums in device memory          exact   the same, bit for bit
    host    the same as job, through registered memory of the host, and how much of the copies and sums is hidden
    bf16    the same as host, with wire="bf16"             pages   the same as host, without registration
    ddp     DistributedDataParallel over gloo (PyTorch)

A batch is divided between the workers, so `bare` with as many processes is what the same work costs without any sum.
Kinds run one after another, `bare` first and last; a step is the median over all turns of the slowest worker's.
GPU_PROFILE=1 in the environment shows where the first worker's processor time goes, and GPU_TIMELINE=1 when its main
thread gets where in a step (`gpu_timeline.py`).
`--kill` kills a worker in the middle of a run of three and shows what that cost, by `meshmend audit`.
`--join` kills one early in a long run and shows what its replacement cost the others when it joined: how much longer
than usual the steps took in which it got the state and began (`--model bert --join`: 334 M parameters with Adam).
"""

from __future__ import annotations

import argparse
import atexit
import cProfile
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gpu_timeline
import numpy as np
from gpu import SIZES, jax_loops, torch_loops

WARM = 10
DEADLINE = 300.0
ALONE = ("bare", "sync", "meet", "ddp")
"""Kinds without `meshmend run`."""


def child(arguments: argparse.Namespace, kind: str) -> None:
    """One process: its turns, each of which begins when all are ready for it."""
    rank = int(os.environ.get("MESHMEND_RANK", os.environ.get("RANK", "0")))
    workers, folder = arguments.count, Path(arguments.out)
    size = SIZES["tiny" if arguments.size == "tiny" else arguments.model]
    alone = kind in ALONE
    lanes, batch = (1, size.batch // workers) if alone else (workers, size.batch // workers * workers)
    until = WARM + arguments.turns * arguments.steps
    meet = Meeting(folder / "meeting", rank, workers) if kind == "meet" else lambda: None
    of = {"host": "job", "pages": "job"}.get(kind, kind), lanes, batch, until, meet
    if kind == "ddp":
        _join_group(rank, workers)
    if arguments.framework == "torch":
        loop, _, held = torch_loops(arguments.model, size, arguments.device, *of)
    else:
        loop, _, held = jax_loops(size, arguments.device, *of)
    if arguments.join:
        return _watched(loop, held, rank, folder)
    loop.run(WARM)
    turns = []
    timeline = not alone and rank == 0 and bool(os.environ.get("GPU_TIMELINE"))
    if timeline:
        gpu_timeline.begin(arguments.framework)
    profile = cProfile.Profile() if os.environ.get("GPU_PROFILE") and rank == 0 else None
    if profile is not None:
        profile.enable()
    for turn in range(arguments.turns):
        if alone:
            _meet(folder, f"{kind}-{turn}", rank, workers)
        turns.append(loop.run(arguments.steps))
        if (
            not alone
            and rank == 0
            and (found := held[1].training.session.messages.buffers.figures()) is not None
            and found[1]
        ):
            down, add, whole = found
            hidden = 1 - whole / (2 * down + add)
            print(
                f"             down {1000 * down:.1f} ms, add {1000 * add:.1f} ms, up like down: {1000 * whole:.1f} ms "
                f"in all, {100 * max(hidden, 0):.0f} % hidden",
                flush=True,
            )
    if profile is not None:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    if timeline:
        print(gpu_timeline.show(5), flush=True)
    (folder / f"{kind}-{rank}.json").write_text(json.dumps(turns))
    for _ in () if alone else loop.rest():
        pass  # a job ends after its last step


class Meeting:
    """Processes that wait for each other again and again, as quickly as that can be done."""

    def __init__(self, path: Path, rank: int, workers: int) -> None:
        with path.open("ab") as file:
            file.truncate(8 * workers)
        self._turns, self._rank, self._turn = np.memmap(path, np.int64, "r+", shape=(workers,)), rank, 0

    def __call__(self) -> None:
        """Wait until all have come as often as this one."""
        self._turn += 1
        self._turns[self._rank] = self._turn
        while self._turns.min() < self._turn:
            os.sched_yield()


def _watched(loop: Any, held: list[Any], rank: int, folder: Path) -> None:
    """Every step to the end of the job, and how long it took."""
    times: list[float] = []
    with suppress(StopIteration):  # the job is over
        while True:
            times.append(loop.run(1))
    began = held[1].training.began
    (folder / f"join-{rank}-{began}.json").write_text(json.dumps(times))


def joined(framework: str, words: list[str]) -> None:
    """Kill one of three workers early, and show what it cost the others when its replacement joined."""
    faults = json.dumps([{"rank": 1, "step": WARM, "point": "compute", "kind": "kill"}])
    for way in ("", "off"):
        folder = measured("job", framework, 3, [*words, "--join"], faults, way=way)
        found = {path.stem: json.loads(path.read_text()) for path in folder.glob("join-*.json")}
        survivor, newcomers = found["join-0-0"], [int(name.split("-")[2]) for name in found]
        step, began = statistics.median(survivor), max(newcomers)
        more = [time - step for time in survivor]
        where = "over the host" if way else "in device memory"
        print(
            f"  join, state {where}: step {1000 * step:.1f} ms; the death cost {1000 * max(more[5:30]):.0f} ms",
            flush=True,
        )
        if began:
            cost = sum(max(one, 0.0) for one in more[began - 2 : began + 3])
            print(f"    the replacement joined in step {began} and cost the others {1000 * cost:.0f} ms", flush=True)
        else:
            print(f"    the replacement was not there after {len(survivor)} steps: give more --steps", flush=True)


def _join_group(rank: int, workers: int) -> None:
    import torch

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=workers)


def _meet(folder: Path, name: str, rank: int, workers: int) -> None:
    (folder / f"meet-{name}-{rank}").touch()
    deadline = time.monotonic() + DEADLINE
    while not all((folder / f"meet-{name}-{other}").exists() for other in range(workers)):
        if time.monotonic() > deadline:
            raise SystemExit("the others have not come")
        time.sleep(0.0005)


def measured(
    kind: str, framework: str, workers: int, words: list[str], faults: str = "", name: str = "", way: str | None = None
) -> Any:
    """Milliseconds of a step; where a worker joins, the folder with the times of all steps."""
    folder = Path(tempfile.mkdtemp(prefix="meshmend-gpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # whoever called looks into it
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    script = [__file__, "--child", kind, "--framework", framework, "--count", str(workers), "--out", str(folder)]
    script += words
    if kind in ALONE:
        every = [
            subprocess.Popen([sys.executable, *script], env={**environment, "RANK": str(rank)})
            for rank in range(workers)
        ]
    else:
        if kind in ("host", "bf16", "pages"):
            environment["MESHMEND_DEVICE_MEMORY"] = "pageable" if kind == "pages" else "off"
        if way:
            environment["MESHMEND_DEVICE_MEMORY"] = way
        if faults:
            environment["MESHMEND_FAULTS"] = faults
        run = [
            sys.executable,
            "-m",
            "meshmend",
            "run",
            "-n",
            str(workers),
            *(["--on-failure", "shrink"] if way is None else []),
            "-q",
            "--checkpoint-every",
            "1000000",
        ]
        every = [subprocess.Popen([*run, *(["--name", name] if name else []), *script], env=environment, cwd=folder)]
    for process in every:
        if process.wait(DEADLINE):
            raise SystemExit(f"{kind} with {workers} workers failed")
    if way is not None:
        return folder
    if name:
        subprocess.run([sys.executable, "-m", "meshmend", "audit", name], cwd=folder, check=True)
        return 0.0
    turns = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{kind}-*.json"))]
    return 1000 * statistics.median(max(row) for row in zip(*turns, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="jax,torch")
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--kinds", default="bare,job,exact,host,ddp")
    parser.add_argument("--model", default="gpt")
    parser.add_argument("--size", default="full", choices=["full", "tiny"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--join", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments, arguments.child)
    words = [
        "--model", arguments.model, "--size", arguments.size, "--device", arguments.device,
        "--turns", str(arguments.turns), "--steps", str(arguments.steps),
    ]  # fmt: skip
    for framework in arguments.framework.split(",") if arguments.join else ():
        print(f"\n{framework}, {arguments.model}, 3 workers on {arguments.device}", flush=True)
        joined(framework, words)
    for framework in () if arguments.join else arguments.framework.split(","):
        for workers in map(int, arguments.workers.split(",")):
            kinds = [kind for kind in arguments.kinds.split(",") if kind and (kind != "ddp" or framework == "torch")]
            print(f"\n{framework}, {arguments.model}, {workers} workers on {arguments.device}", flush=True)
            found: dict[str, float] = {}
            for kind in [*kinds, *(["bare"] if "bare" in kinds else [])]:
                value = measured(kind, framework, workers, words)
                found[kind] = value if kind not in found else (found[kind] + value) / 2
                print(f"  {kind:10} {value:8.2f} ms", flush=True)
            for kind, value in found.items() if "bare" in found else ():
                print(f"  {kind:10} {value / found['bare']:8.3f} times bare", flush=True)
        if arguments.kill:
            half = WARM + arguments.turns * arguments.steps // 2
            faults = json.dumps([{"rank": 1, "step": half, "point": "compute", "kind": "kill"}])
            measured("exact", framework, 3, words, faults, "killed")


if __name__ == "__main__":
    main()
