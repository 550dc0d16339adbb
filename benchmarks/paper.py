"""Builds the tables and charts of docs/results anew, each with the command that makes it: `make paper`.

python benchmarks/paper.py [--only NAME] [--into docs/results]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import time
from pathlib import Path

from meshmend.cli import main as meshmend

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
        "The question of arXiv 2011.03641, beside the published times. Errors where only minutes were published are "
        "large, and stand there.",
        ["simulate step --table multipod --draw multipod.png"],
        "",
    ),
    "one-failure": (
        "What one failure costs, by policy",
        "The question of arXiv 1709.03316: AlexNet and GoogLeNet on 4 to 64 workers.",
        ["simulate step --table mpi-faults --draw one-failure.png"],
        "",
    ),
    "month": (
        "A month of 4096 chips",
        "1,000 job-weeks under failures, by policy. The chart shows one of the jobs.",
        ["simulate fleet tpu-v3-multipod --draw month.png"],
        "",
    ),
    "sizes": (
        "From where on going round the hole pays",
        "The same for 512 to 65,536 chips.",
        ["simulate fleet --sweep --draw sizes.png"],
        "",
    ),
}  # fmt: skip
"""Name: title, what it is, the commands that print it, and one more that draws it."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the tables and charts of docs/results anew.")
    parser.add_argument("--only", choices=list(PAGES))
    parser.add_argument("--into", type=Path, default=HERE)
    chosen = parser.parse_args()
    chosen.into.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with contextlib.chdir(chosen.into):
        for name in [chosen.only] if chosen.only else PAGES:
            own = time.monotonic()
            Path(f"{name}.md").write_text(page(name))
            print(f"{name:12} {time.monotonic() - own:4.0f} s", flush=True)
        Path("README.md").write_text(index())
    print(f"{'all':12} {time.monotonic() - begin:4.0f} s")


def page(name: str) -> str:
    """One page: its commands, what they print, and the picture."""
    title, about, commands, drawing = PAGES[name]
    printed = [f"$ meshmend {command}\n{run(command)}" for command in commands]
    if drawing:
        run(drawing)
    blocks = "\n".join(f"```text\n{text.strip()}\n```\n" for text in printed)
    return f"# {title}\n\n{about}\n\n![{title}]({name}.png)\n\n{blocks}"


def run(command: str) -> str:
    """What a command prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if meshmend(shlex.split(command)):
            raise SystemExit(f"meshmend {command} failed")
    return said.getvalue()


def index() -> str:
    """All pages."""
    lines = [f"* [{title}]({name}.md). {about}" for name, (title, about, *_) in PAGES.items()]
    head = "# Results\n\nTables and charts of the simulations, with the command of each; `make paper` builds them anew."
    return "\n".join([head, "", *lines, ""])


if __name__ == "__main__":
    main()
