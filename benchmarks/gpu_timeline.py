"""Where the time of a step goes in a worker on an accelerator: how long after the step before each point is reached.

    GPU_TIMELINE=1 python benchmarks/gpu_workers.py --workers 2 --kinds job

Medians over the steps of one worker, of its main thread. What the device does meanwhile is not seen: a point that waits
for it says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

POINTS: list[tuple[str, float]] = []


def stamped(owner: Any, name: str, before: str = "", after: str = "") -> None:
    """Have each call of a function noted."""
    function: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if before:
            POINTS.append((before, time.perf_counter()))
        try:
            return function(*args, **kwargs)
        finally:
            if after:
                POINTS.append((after, time.perf_counter()))

    setattr(owner, name, call)


def begin(framework: str) -> None:
    """Note the points of every step from now on."""
    from meshmend.job.device.block_messages import PartInBlock, TotalInBlocks
    from meshmend.job.device.messages import Messages
    from meshmend.job.frameworks.packed import PackedLanes
    from meshmend.job.job import Job
    from meshmend.job.ledger import StepLedger
    from meshmend.job.replica import Replica
    from meshmend.job.session.session import WorkerSession

    stamped(Job, "sum", "sum begins", "sum is given out")
    stamped(Job, "commit", "commit begins", "commit is done")
    stamped(Messages, "publish", "part is exported", "part is complete (waits for the device)")
    stamped(WorkerSession, "_take_total", "total is there (waits for the others)")
    stamped(PackedLanes, "unpack", "memory for sums is ready", "sums are written (waits for the device)")
    stamped(PartInBlock, "pack", "lane is awaited by our stream", "packing is launched")
    stamped(TotalInBlocks, "unpack", "unpacking begins")
    stamped(StepLedger, "confirm", "", "last step is written down")
    stamped(Messages, "settle", "", "the total was there")
    stamped(Replica, "commit", "", "state is listed")
    if framework == "jax":
        from meshmend.job.frameworks.jax.sums import JaxSums as Sums
    else:
        from meshmend.job.frameworks.torch.sums import TorchSums as Sums  # type: ignore[assignment]
    stamped(Sums, "accumulate", "lane is launched", "")


def show(skip: int) -> str:
    """The table, without the first steps."""
    steps: list[list[tuple[str, float]]] = []
    for name, at in POINTS:
        if name == "sum begins":
            steps.append([])
        if steps:
            steps[-1].append((name, at))
    steps = steps[skip:-1]
    length = [later[0][1] - now[0][1] for now, later in pairwise(steps)]
    lines = [f"a step takes {1000 * statistics.median(length):.2f} ms"]
    names = [name for name, _ in steps[0]]
    alike = [step for step in steps if [name for name, _ in step] == names]
    for number, name in enumerate(names):
        since = statistics.median(step[number][1] - step[0][1] for step in alike)
        took = statistics.median(step[number][1] - step[max(number - 1, 0)][1] for step in alike)
        lines.append(f"  {1000 * since:8.2f} ms  +{1000 * took:6.2f}  {name}")
    return "\n".join(lines)
