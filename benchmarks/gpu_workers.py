"""Several workers on one accelerator, beside as many processes that compute the same and sum nothing.

    python benchmarks/gpu_workers.py [--framework torch,jax] [--workers 2,4] [--kinds bare,job,exact,host,ddp]
                                     [--model gpt] [--size full|tiny] [--device cuda|cpu] [--turns 5] [--steps 20]

    bare    processes that compute their share of the batch, update by it, and never talk to each other
    job     `meshmend run`: sums in device memory          exact   the same, bit for bit
    host    the same as job, through the host's memory     ddp     DistributedDataParallel over gloo (PyTorch)

A batch is divided between the workers, so `bare` with as many processes is what the same work costs without any sum.
Kinds run one after another, `bare` first and last; a step is the median over all turns of the slowest worker's.
GPU_PROFILE=1 in the environment shows where the first worker's processor time goes.
`--kill` kills a worker in the middle of a run of three and shows what that cost, by `meshmend audit`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu import SIZES, jax_loops, torch_loops

WARM = 10
DEADLINE = 300.0


def child(arguments: argparse.Namespace, kind: str) -> None:
    """One process: its turns, each of which begins when all are ready for it."""
    rank = int(os.environ.get("MESHMEND_RANK", os.environ.get("RANK", "0")))
    workers, folder = arguments.count, Path(arguments.out)
    size = SIZES["tiny" if arguments.size == "tiny" else arguments.model]
    alone = kind in ("bare", "ddp")
    lanes, batch = (1, size.batch // workers) if alone else (workers, size.batch)
    of = {"host": "job"}.get(kind, kind), lanes, batch, WARM + arguments.turns * arguments.steps
    if kind == "ddp":
        _join_group(rank, workers)
    if arguments.framework == "torch":
        loop, *_ = torch_loops(arguments.model, size, arguments.device, *of)
    else:
        loop, *_ = jax_loops(size, arguments.device, *of)
    loop.run(WARM)
    turns = []
    profile = cProfile.Profile() if os.environ.get("GPU_PROFILE") and rank == 0 else None
    if profile is not None:
        profile.enable()
    for turn in range(arguments.turns):
        if alone:
            _meet(folder, f"{kind}-{turn}", rank, workers)
        turns.append(loop.run(arguments.steps))
    if profile is not None:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    (folder / f"{kind}-{rank}.json").write_text(json.dumps(turns))
    for _ in () if alone else loop.rest():
        pass  # a job ends after its last step


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


def measured(kind: str, framework: str, workers: int, words: list[str], faults: str = "", name: str = "") -> float:
    """Milliseconds of a step."""
    folder = Path(tempfile.mkdtemp(prefix="meshmend-gpu-"))
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    script = [__file__, "--child", kind, "--framework", framework, "--count", str(workers), "--out", str(folder)]
    script += words
    if kind in ("bare", "ddp"):
        every = [
            subprocess.Popen([sys.executable, *script], env={**environment, "RANK": str(rank)})
            for rank in range(workers)
        ]
    else:
        if kind == "host":
            environment["MESHMEND_DEVICE_MEMORY"] = "off"
        if faults:
            environment["MESHMEND_FAULTS"] = faults
        run = [
            sys.executable,
            "-m",
            "meshmend",
            "run",
            "-n",
            str(workers),
            "--on-failure",
            "shrink",
            "-q",
            "--checkpoint-every",
            "1000000",
        ]
        every = [subprocess.Popen([*run, *(["--name", name] if name else []), *script], env=environment, cwd=folder)]
    for process in every:
        if process.wait(DEADLINE):
            raise SystemExit(f"{kind} with {workers} workers failed")
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
    for framework in arguments.framework.split(","):
        for workers in map(int, arguments.workers.split(",")):
            kinds = [kind for kind in arguments.kinds.split(",") if kind != "ddp" or framework == "torch"]
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
