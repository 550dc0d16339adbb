"""Builds the tables and charts of docs/results anew, each with the command that makes it: `make paper`.

python benchmarks/paper.py [--only NAME] [--into docs/results]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent.parent / "docs" / "results"
PAGES = {
    "sums": (
        "One all-reduce, chunk by chunk",
        "The gradients of ResNet-50 in float32, 102 MB, on half a TPU-v3 pod that has lost a host, and on a whole one.",
        [
            "simulate 16x32 -4x2@8,12 --algorithm ring,rowpair,trees",
            "simulate 16x32 --algorithm ring,rowpair,rowcol,trees",
        ],
        "simulate 16x32 -4x2@8,12 --algorithm trees --draw sums.png",
    ),
    "dead-host": (
        "What a dead host costs a step",
        "The question of arXiv 2011.03605. What was calibrated, and on what, stands under the table.",
        ["simulate step --table mesh-holes --draw dead-host.png"],
        "",
    ),
    "multipod": (
        "Steps from 16 to 4096 chips",
        "The question of arXiv 2011.03641, on the inputs of Google's MLPerf logs and beside their times. Runs that "
        "calibrate are marked; errors are those of all others.",
        ["simulate step --table multipod --draw multipod.png"],
        "",
    ),
    "one-failure": (
        "What one failure costs, by policy",
        "The question of arXiv 1709.03316: AlexNet and GoogLeNet on 4 to 32 workers.",
        ["simulate step --table mpi-faults --draw one-failure.png"],
        "",
    ),
    "month": (
        "A month of 4096 chips",
        "1,000 job-weeks under failures, by policy. The chart shows one of the jobs.",
        ["simulate fleet tpu-v3-multipod --draw month.png"],
        "",
    ),
    "cubes": (
        "A month of 9,216 chips in cubes",
        "Cubes with a dead host left out, as Google's rule of 130 healthy cubes of 144 does, or used. With repairs of "
        "4 hours nearly all cubes are healthy; the second table has repairs so slow that the rule begins to be needed.",
        ["simulate cubes --jobs 10 --draw cubes.png"],
        "",
    ),
    "sizes": (
        "From what size on routing around the hole pays",
        "The same for 512 to 65,536 chips.",
        ["simulate fleet --sweep --draw sizes.png"],
        "",
    ),
}  # fmt: skip
"""Name: title, what it is, the commands that print it, and one more that draws it."""

MEASURED = """Measured, not simulated:

* [Compared with other ways to train](peers.md). DDP, torchft, torchrun and bare mpi4py on the same work; `make peers`.
* [Compiled for real TPUs](tpu.md). What Google's compiler makes of the all-reduce and of `psum` with the same chips \
left out; `make tpu`."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the tables and charts of docs/results anew.")
    parser.add_argument("--only", choices=list(PAGES))
    parser.add_argument("--into", type=Path, default=HERE)
    chosen = parser.parse_args()
    chosen.into.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(write, name, chosen.into) for name in ([chosen.only] if chosen.only else PAGES)]:
            done.result()
    (chosen.into / "README.md").write_text(index())
    print(f"{'all':12} {time.monotonic() - begin:4.0f} s")


def write(name: str, folder: Path) -> None:
    """One page: its commands, what they print, and the picture."""
    begin = time.monotonic()
    title, about, commands, drawing = PAGES[name]
    printed = [f"$ meshmend {command}\n{run(command, folder)}" for command in commands]
    if drawing:
        run(drawing, folder)
    blocks = "\n".join(f"```text\n{text.strip()}\n```\n" for text in printed)
    (folder / f"{name}.md").write_text(f"# {title}\n\n{about}\n\n![{title}]({name}.png)\n\n{blocks}")
    print(f"{name:12} {time.monotonic() - begin:4.0f} s", flush=True)


def run(command: str, folder: Path) -> str:
    """What a command prints; each has a process of its own, one for every core."""
    words = [sys.executable, "-m", "meshmend", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"meshmend {command} failed")
    return done.stdout


def index() -> str:
    """All pages."""
    lines = [f"* [{title}]({name}.md). {about}" for name, (title, about, *_) in PAGES.items()]
    head = "# Results\n\nTables and charts of the simulations, with the command of each; `make paper` builds them anew."
    return "\n".join([head, "", *lines, "", MEASURED, ""])


if __name__ == "__main__":
    main()
