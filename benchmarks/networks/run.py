"""The networks of two papers, trained for real through a kill, with the cost of each way to go on by name.

    python benchmarks/networks/run.py [--only alexnet,googlenet,resnet50,bert] [--ways shrink,restart,checkpoint]
                                      [--device cuda]
    python benchmarks/networks/run.py --again        write the page anew from the last measurements

AlexNet and GoogLeNet are those of arXiv 1709.03316, ResNet-50 and BERT-large those of arXiv 2011.03605, at their
published sizes (`networks.py`). Each way is a run of its own, in which one worker is killed while it computes, and all
of them are compared with an undisturbed run. What was measured is kept beside this
file, and docs/results/networks.md is written from it: there is no such page before the first run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from networks import NETWORKS, PUBLISHED

from meshmend import report
from meshmend.telemetry import Committed, Event, Saved, read

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "results" / "networks.md"
MEASURED = HERE / "measured.json"
TWINS = HERE / "twins.txt"
"""What `holes.py` printed last."""
WAYS = {
    "undisturbed": ("replace",),
    "shrink": ("shrink",),
    "restart": ("restart",),
    "checkpoint": ("checkpoint", "--checkpoint-every", "2"),
}
TITLES = {"alexnet": "AlexNet", "googlenet": "GoogLeNet", "resnet50": "ResNet-50", "bert": "BERT-large"}
NAMES = {"shrink": "ULFM: shrink", "restart": "in the manner of Reinit", "checkpoint": "checkpoint"}
DEADLINE = 900.0


def steps_of(name: str, device: str) -> tuple[int, int]:
    """Steps of a run, and the one in which a worker is killed."""
    if device == "cuda":
        return 24, 13
    return (6, 3) if name == "bert" else (8, 4)


def workers_of(name: str) -> int:
    """Two for BERT-large, whose weights, gradients and messages take 7 GB a worker."""
    return 2 if name == "bert" else 4


def run(name: str, way: str, folder: Path, device: str) -> list[Event]:
    """The events of one run."""
    steps, struck = steps_of(name, device)
    fault = {"rank": 1, "step": struck, "point": "compute", "kind": "kill"}
    environment = {
        **os.environ, "MESHMEND_RUNS": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "MESHMEND_FAULTS": json.dumps([] if way == "undisturbed" else [fault]),
    }  # fmt: skip
    line = [sys.executable, "-m", "meshmend", "run", "-n", str(workers_of(name)), "--name", name, "--on-failure"]
    options = ["--cuda"] if device == "cuda" else ["--float"] if name == "bert" else []
    words = [*line, *WAYS[way], str(HERE / "train.py"), name, str(steps), *options]
    with (folder / "log").open("w+") as log:
        job = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        try:
            status = job.wait(DEADLINE)
        finally:
            if job.poll() is None:
                job.send_signal(signal.SIGINT)  # a launcher cleans up when it is interrupted
                job.wait(60)
        if status:
            log.seek(0)
            raise SystemExit(log.read())
    events = read(folder / name)
    account = report.check(events)
    if not account.clean:
        raise SystemExit(report.render(account, report.incidents(events)))
    return events


def measured(events: Sequence[Event], struck: int) -> dict[str, Any]:
    """What one run tells: its steps, its incident, its last state."""
    done = {event.step: event for event in events if isinstance(event, Committed)}
    first = [done[step] for step in sorted(done) if step < struck]
    found = [one for one in report.incidents(events) if not one.joins and one.total is not None]
    saved = [event.seconds for event in events if isinstance(event, Saved)]
    return {
        "step": statistics.median(b.time - a.time for a, b in pairwise(first[1:])),
        "sum": statistics.median(one.metrics["summed"] for one in first[1:]),
        "loss": done[max(done)].metrics["loss"],
        "digest": done[max(done)].digest,
        "total": found[0].total if found else None,
        "times": found[0].times if found else {},
        "snapshot": statistics.median(saved) if saved else None,
    }


def count(name: str) -> int:
    """Parameters, from the shapes alone."""
    with torch.device("meta"):
        return sum(value.numel() for value in NETWORKS[name](PUBLISHED).parameters())


HEAD = """# Their networks, trained for real

AlexNet and GoogLeNet, which arXiv 1709.03316 trained, and ResNet-50 and BERT-large, which arXiv 2011.03605 did, at
their published sizes in PyTorch, on images of 224x224 and texts of 128 tokens that the script makes: nothing is
downloaded. One worker is killed while it computes, in the middle of the run: `python benchmarks/networks/run.py`.

| network | parameters | gradients | workers | lanes | a step, s | of it in the sum, s |
|---|---|---|---|---|---|---|
"""
COSTS = """
## What the kill cost

Seconds from the kill to the next committed step, by name: *seen* is the time until the survivors know, *shrunk* until
the group is revoked and made anew, *agreed* until they know who has which lanes, *computed again* that of the dead
worker's lanes, with their data read again. In the manner of Reinit, all workers start again and repeat the step from
the state in memory; with checkpoints, everything starts again from the last one, of which one is written every second
step (*snapshot* is what that takes).

| network | way | seen | shrunk | agreed | new world | computed again | first commit | all | in steps | snapshot |
|---|---|---|---|---|---|---|---|---|---|---|
"""
TAIL = """
## The same weights

{same}

| network | loss of the last step | beside the undisturbed run |
|---|---|---|
"""
ON_CPU = {
    "same": "Sums are exact, so all runs end with the bits of the undisturbed one. BERT-large sums in float32, which "
    "takes less\nmemory, so its loss is the same up to rounding.",
    "machine": "All workers share {cores} cores, one thread each, at a load of {load:.0f} from all work on the "
    "machine: trust the\nratios, not the seconds. A lane is two images or one text; with the batches of the papers, "
    "the sum\nwould be a smaller part of a step.",
}
ON_CARD = {
    "same": "Sums are exact, so all runs should end with the bits of the undisturbed one. No two runs of GoogLeNet do: "
    "its\nauxiliary heads have a pooling (`AdaptiveAvgPool2d`) whose gradient is not deterministic on a card, as "
    "PyTorch's\ndocumentation says.",
    "machine": "In the manner of Reinit and with checkpoints, PyTorch has to come up on the card again, which is 8 to "
    "10 of the\nseconds. All workers share one {card} and {cores} cores, beside {beside}.\nA lane is 32 images or 16 "
    "texts, in float32.",
}
MACHINE = """
{machine} Each row is one run. The optimizer is SGD with momentum, without it for BERT-large.
"""

HOLES = """
## Their small twins around a hole

The same layers in JAX, with a fraction of the width, on 16 XLA devices of one processor: the whole mesh of 4x4 chips,
and the same without a 2x2 board. Both get the same batches, so the losses differ only by the order of additions, and at
the end all chips of a mesh have the same bits: `python benchmarks/networks/holes.py`.

"""


def page(found: dict[str, dict[str, Any]], about: dict[str, Any]) -> str:
    """All of it."""
    words = ON_CARD if about.get("card") else ON_CPU
    text = HEAD
    lanes = {"bert": 2}
    for name, ways in found.items():
        row = ways["undisturbed"]
        text += (
            f"| {TITLES[name]} | {count(name):,} | {4 * count(name) / 1e6:.0f} MB | {workers_of(name)} | "
            f"{lanes.get(name, 8)} | {row['step']:.2f} | {row['sum']:.2f} |\n"
        )
    text += COSTS
    for name, ways in found.items():
        for way, row in ways.items():
            if way in NAMES:
                text += _costs(TITLES[name], NAMES[way], row)
    text += TAIL.format(**words)
    for name, ways in found.items():
        whole = ways["undisturbed"]
        for way in [way for way in ways if way in NAMES]:
            row = ways[way]
            other = f"other bits, {row['loss'] - whole['loss']:+.1e}" if row["loss"] != whole["loss"] else "other bits"
            same = "the same bits" if row["digest"] == whole["digest"] else other
            text += f"| {TITLES[name]}, {NAMES[way]} | {row['loss']:.4f} | {same} |\n"
    text += MACHINE.format(machine=words["machine"].format(**about))
    return text + (HOLES + f"```text\n{TWINS.read_text()}```\n" if TWINS.exists() else "")


def _costs(name: str, way: str, row: dict[str, Any]) -> str:
    times, total = row["times"], row["total"] or 0.0
    parts = [
        times.get("detect"),
        _added(times, "revoke", "shrink"),
        _added(times, "exchange", "roll forward", "state"),
        times.get("re-form"),
        times.get("recompute"),
        times.get("first commit"),
    ]
    cells = ["–" if part is None else f"{part:.2f}" for part in parts]
    snapshot = "–" if row["snapshot"] is None or "checkpoint" not in way else f"{row['snapshot']:.2f}"
    return f"| {name} | {way} | {' | '.join(cells)} | {total:.2f} | {total / row['step']:.1f} | {snapshot} |\n"


def _added(times: dict[str, float], *names: str) -> float | None:
    return sum(times.get(name, 0.0) for name in names) if any(name in times for name in names) else None


def main() -> None:
    parser = argparse.ArgumentParser(description="The networks of the papers, trained through a kill.")
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--ways", default=",".join(NAMES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--again", action="store_true", help="write the page anew, and measure nothing")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else {"about": {}, "networks": {}}
    for name in [] if chosen.again else chosen.only.split(","):
        for way in ("undisturbed", *chosen.ways.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                row = measured(run(name, way, Path(folder), chosen.device), steps_of(name, chosen.device)[1])
            kept["networks"].setdefault(name, {})[way] = row
            card = torch.cuda.get_device_name() if chosen.device == "cuda" else None
            kept["about"] = {
                "cores": os.cpu_count(), "load": os.getloadavg()[2], "card": card, "beside": "nothing else",
            }  # fmt: skip
            MEASURED.write_text(json.dumps(kept, indent=1) + "\n")
            print(f"{name} {way}: step {row['step']:.2f} s, in all {row['total']}, loss {row['loss']:.4f}", flush=True)
    ordered = {name: kept["networks"][name] for name in NETWORKS if name in kept["networks"]}
    PAGE.write_text(page(ordered, kept["about"]))


if __name__ == "__main__":
    main()
