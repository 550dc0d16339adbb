"""The page docs/results/peers.md from what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from count import Spread, lines_changed
from systems import ALL, SCRIPTS
from trial import INTO, Failure, Result

Cell = tuple[int, int]
"""Size in MB, and workers."""
CELLS: list[Cell] = [(25, 2), (25, 4), (100, 2), (100, 4)]

HEAD = """# Compared with other ways to train

The same network, data and batch on one machine, in turns: `make peers`, or `python benchmarks/peers/run.py`.

![From a kill to the next step, and what a step takes](peers.png)
"""

MEASURED = """## How it is measured

* Two shared cores, no GPU, one thread a process. Dense layers of 25 and 100 MB of float32 weights, plain SGD, batches
  of 192 and 128 samples over all workers, 3840 samples an epoch. Systems take turns in short runs, round after round. A
  cell is the median over runs of a run's median, and in brackets the least and the most of these; without brackets it
  is one run. The machine had other work too: torchrun's loop is DDP's with checkpoints in it, so where it is quicker
  than DDP, that is how large the noise is.
* A **step** is the time from one committed step to the next in the first worker, reading of samples included.
* A **sum**, in the loop, from the end of `backward` to the end of the sum, by the worker that waited least: bare mpi4py
  and meshmend (which also copies the gradients in and out in that time). By itself, as one buffer of the same size in
  the same processes before the loop: DDP and torchft, which sum while `backward` still runs.
* **Cost**: a system's step beside that of the same loop without fault tolerance, in the same round.
* Workers are struck in the middle of computing their gradients: SIGKILL, or SIGSTOP for a hang. The next step is the
  first one that anybody commits afterwards. **Rejoin** is the time from the kill until samples of a new worker count in
  a step. Nothing is kept ready: the new worker has to start Python and import its framework.
* **Samples** are counted from what each worker notes when it computes them, up to a few steps after the newcomer is in.
  Lost: in batches that were gone past, but in no committed step. Repeated: counted twice in an epoch. Steps that
  torchrun takes back and does again count once. Who computed which lane for meshmend says its ledger.
* **Lines** changed, added or taken away from the same script for one process; docstrings and notes for the benchmark do
  not count.
* torchft has a replica group a worker, started again at once when it dies. *Defaults* are those of the lighthouse, with
  the 5 s for a sum of its own example. *Tuned*: heartbeats every 50 ms, which may stay away for 300 ms, quorums looked
  at every 20 ms, and 0.5 s for a sum (100 MB: 1 s). These waits must be longer than the slowest sum, so they fit one
  model on one machine. A group's place in the data is not saved, as in its example; its documentation advises to save
  it often.
* torchrun restarts all workers from a checkpoint that is written every 10 steps.
* meshmend has one lane a worker, so that each computes its share in one go, as with DDP.
"""

BETTER = """* DDP and torchft sum layers while `backward` still computes others; meshmend sums after it.
* torchft's groups may be sharded inside (FSDP, tensor and pipeline parallel), and it sums on GPUs with NCCL.
* DDP, torchft and torchrun need no MPI. A bare loop of mpi4py has no process beside the worker.
"""


def page(results: Sequence[Result], about: dict[str, Any]) -> str:
    """All of it."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items()))
    left = f" {about['left_out']} runs of later rounds were left out for want of time." if about["left_out"] else ""
    parts = [
        HEAD,
        "## What it had to show\n",
        *(f"* {line}" for line in targets(results)),
        "\n## Steps\n\nMilliseconds.\n",
        steps_table(results),
        "What fault tolerance costs: a step, as a multiple of the same loop without it.\n",
        cost_table(results),
        "A sum with 4 workers, in milliseconds.\n",
        sums_table(results),
        "\n## Failures, 4 workers\n\nSeconds; in brackets least and most.\n",
        *(failures_table(results, size, about["patience"]) for size in (25, 100)),
        "\n## What others do better\n",
        *(f"* {line}" for line in better(results)),
        BETTER,
        MEASURED,
        f"{about['rounds']} rounds in {about['seconds'] / 60:.0f} minutes.{left} {versions}.\n",
    ]
    return "\n".join(parts)


def medians(results: Iterable[Result], name: str, cell: Cell) -> dict[int, float]:
    """A run's median step in seconds, by round."""
    mine = [one for one in results if (one.system, (one.size, one.workers)) == (name, cell) and one.steps]
    return {one.round: statistics.median(one.steps) for one in mine}


def step(results: Iterable[Result], name: str, cell: Cell) -> Spread | None:
    """What a step takes."""
    return Spread.of(medians(results, name, cell).values())


def sums(results: Iterable[Result], name: str, size: int) -> Spread | None:
    """What a sum takes with 4 workers."""
    mine = [one for one in results if (one.system, one.size, one.workers) == (name, size, 4) and one.sums]
    return Spread.of(statistics.median(one.sums) for one in mine)


def cost(results: Sequence[Result], name: str, base: str, cell: Cell) -> Spread | None:
    """Its step beside that of another, round by round."""
    mine, other = medians(results, name, cell), medians(results, base, cell)
    return Spread.of(mine[number] / other[number] for number in mine.keys() & other.keys())


def struck(results: Iterable[Result], name: str, size: int, kind: str) -> list[Failure]:
    """All failures of a kind."""
    mine = [one for one in results if (one.system, one.size) == (name, size)]
    return [failure for one in mine for failure in one.failures if failure.kind == kind]


def next_step(results: Iterable[Result], name: str, size: int, kind: str) -> Spread | None:
    """Seconds from the failure to the next step, of those where one came."""
    return Spread.of(one.next for one in struck(results, name, size, kind) if one.next is not None)


def rejoin(results: Iterable[Result], name: str, size: int) -> Spread | None:
    """Seconds from the kill until a new worker counts."""
    return Spread.of(one.rejoin for one in struck(results, name, size, "kill") if one.rejoin is not None)


def steps_table(results: Sequence[Result]) -> str:
    """What a step takes in every system, and lines changed."""
    rows = [["", *(f"{size} MB, {workers} workers" for size, workers in CELLS), "lines changed"]]
    for name, system in ALL.items():
        cells = [shown(step(results, name, cell), 1e3) for cell in CELLS]
        if any(cell != "–" for cell in cells):
            changed = lines_changed(SCRIPTS / system.plain, SCRIPTS / system.script)
            rows.append([system.title, *cells, str(changed)])
    return table(rows)


def sums_table(results: Sequence[Result]) -> str:
    """A sum by itself, with 4 workers."""
    rows = [["", "25 MB", "100 MB"]]
    for name, system in ALL.items():
        cells = [shown(sums(results, name, size), 1e3) for size in (25, 100)]
        if any(cell != "–" for cell in cells):
            rows.append([system.title, *cells])
    return table(rows)


def cost_table(results: Sequence[Result]) -> str:
    """A step beside that of the same loop without fault tolerance."""
    rows = [["", "beside", *(f"{size} MB, {workers} workers" for size, workers in CELLS)]]
    for name, system in ALL.items():
        for base in system.beside:
            found = [cost(results, name, base, cell) for cell in CELLS]
            if any(found):
                rows.append([system.title, ALL[base].title, *(shown(one, 1, 2) for one in found)])
    return table(rows)


def failures_table(results: Sequence[Result], size: int, patience: float) -> str:
    """What follows on a failure."""
    head = [
        "kill → next step",
        "in steps",
        "hang → next step",
        "rejoin",
        "steps lost",
        "samples lost",
        "repeated",
        "of",
    ]
    rows = [[f"{size} MB", *head]]
    for name, system in ALL.items():
        kills, hangs = (struck(results, name, size, kind) for kind in ("kill", "hang"))
        if not kills and not hangs:
            continue
        steps = Spread.of(one.next / one.ordinary for one in kills if one.next is not None)
        came = [one for one in kills if one.next is not None]
        samples = [one.samples for one in results if (one.system, one.size) == (name, size) and one.samples is not None]
        rows.append(
            [
                system.title,
                outcome(kills, next_step(results, name, size, "kill"), patience),
                shown(steps, 1, 1),
                outcome(hangs, next_step(results, name, size, "hang"), patience),
                shown(rejoin(results, name, size), 1, 1),
                shown(Spread.of(float(one.steps_lost) for one in came), 1, 0),
                *(
                    [f"{sum(one.lost for one in samples)}", f"{sum(one.repeated for one in samples)}"]
                    if samples
                    else ["–", "–"]
                ),
                f"{sum(one.due for one in samples)}" if samples else "–",
            ]
        )
    return table(rows)


def outcome(failures: Sequence[Failure], found: Spread | None, patience: float) -> str:
    """Seconds, or what happened instead."""
    if not failures:
        return "–"
    none = [one for one in failures if one.next is None]
    words = sorted({"ends" if one.why == "ended" else f"> {patience:.0f}" for one in none})
    if found is None:
        return ", ".join(words)
    return shown(found, 1, 2) + (f"; {', '.join(words)} in {len(none)} of {len(failures)}" if none else "")


def targets(results: Sequence[Result]) -> list[str]:
    """What it had to show, and whether it does."""
    out = []
    for workers in (2, 4):
        found = cost(results, "meshmend", "ddp", (100, workers))
        if found:
            holds = "yes" if found.most <= 1 else "yes in the median" if found.middle <= 1 else "no"
            out.append(
                f"A step of 100 MB with {workers} workers takes no longer than with DDP + gloo: {holds}, "
                f"{ratio(found)} times as long."
            )
    for size in (25, 100):
        mine, other = (next_step(results, name, size, "kill") for name in ("meshmend", "torchft"))
        if mine and other:
            times = other.middle / mine.middle
            word = "yes" if times >= 10 else "no"
            whole = statistics.median(failure.ordinary for failure in struck(results, "meshmend", size, "kill"))
            best = other.middle / ((1 - INTO) * whole)
            out.append(
                f"From a kill to the next step ten times as fast as torchft tuned, {size} MB: {word}, {times:.1f} "
                f"times ({mine.middle:.2f} s and {other.middle:.2f} s). A repair in no time would give {best:.1f} "
                f"times: the step takes {whole:.2f} s, and {1 - INTO:.0%} of it is still to be computed."
            )
    mine, other = (next_step(results, name, 25, "kill") for name in ("meshmend", "torchft-default"))
    if mine and other:
        out.append(
            f"Beside torchft with its defaults, 25 MB, {other.middle / mine.middle:.0f} times as fast. The longer a "
            "step, the less there is to gain over waits that fit it."
        )
    ours = [one.samples for one in results if one.system.startswith("meshmend") and one.samples is not None]
    if ours:
        lost, again = sum(one.lost for one in ours), sum(one.repeated for one in ours)
        word = "yes" if lost == again == 0 else "no"
        out.append(
            f"No sample lost or repeated: {word}, {lost} lost and {again} repeated of {sum(o.due for o in ours)}."
        )
    return out


def better(results: Sequence[Result]) -> list[str]:
    """Every figure of another that is better than meshmend's, of the same framework."""
    out = []
    for mine, others in (("meshmend", ("ddp", "torchft", "torchrun", "mpi")), ("meshmend-jax", ("mpi-jax",))):
        for name in others:
            found = []
            for size, workers in CELLS:
                cell = (size, workers)
                found += _less(results, f"a step of {size} MB with {workers} workers", 1e3, "ms", 0,
                               lambda who, cell=cell: step(results, who, cell), name, mine)  # fmt: skip
            for size in (25, 100):
                for what, get in (
                    (f"a sum of {size} MB", lambda who, size=size: sums(results, who, size)),
                    (f"kill to next step, {size} MB", lambda who, size=size: next_step(results, who, size, "kill")),
                    (f"hang to next step, {size} MB", lambda who, size=size: next_step(results, who, size, "hang")),
                    (f"rejoin, {size} MB", lambda who, size=size: rejoin(results, who, size)),
                ):
                    quick = what.startswith("a sum")
                    found += _less(results, what, 1e3 if quick else 1, "ms" if quick else "s", 0 if quick else 1,
                                   get, name, mine)  # fmt: skip
            lines = [lines_changed(SCRIPTS / ALL[one].plain, SCRIPTS / ALL[one].script) for one in (name, mine)]
            if lines[0] < lines[1]:
                found.append(f"lines changed {lines[0]} ({lines[1]})")
            if found:
                out.append(f"{ALL[name].title}, in brackets {ALL[mine].title}: {'; '.join(found)}.")
    return out


def _less(
    results: Sequence[Result], what: str, scale: float, unit: str, digits: int,
    get: Callable[[str], Spread | None], name: str, mine: str,
) -> list[str]:  # fmt: skip
    del results
    other, own = get(name), get(mine)
    if other is None or own is None or other.middle >= own.middle:
        return []
    return [f"{what} {scale * other.middle:.{digits}f} {unit} ({scale * own.middle:.{digits}f})"]


def shown(found: Spread | None, scale: float, digits: int = 0) -> str:
    """A median, and least and most."""
    if found is None:
        return "–"
    middle, least, most = (f"{scale * value:.{digits}f}" for value in (found.middle, found.least, found.most))
    return middle if least == most else f"{middle} ({least}–{most})"


def ratio(found: Spread) -> str:
    """A ratio of two digits."""
    return shown(found, 1, 2)


def table(rows: list[list[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:], ""])
