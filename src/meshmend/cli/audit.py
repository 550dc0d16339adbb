"""`meshmend audit`."""

from __future__ import annotations

import sys
from functools import partial
from json import dumps
from typing import TypeVar

from meshmend.cli.app import app
from meshmend.errors import JobError

E = TypeVar("E")


@app.command
def audit(
    run: str,
    *,
    job: int | None = None,
    against: str | None = None,
    json: bool = False,
    draw: str | None = None,
    metric: str = "loss",
) -> int:
    """Prove from a run's ledger that every sample of every epoch was counted once, and list the run's incidents.

    Parameters
    ----------
    run
        The run's name, or its folder.
    job
        Only this job (1, 2, …), if the script has several, one after another.
    against
        Another run; the states of the two must be the same after every step.
    json
        Print JSON, with all findings and all incidents; a list if there are several jobs.
    draw
        Draw the loss, with the incidents marked, to this PNG or SVG file; of the last job if there are several.
    metric
        The metric to draw instead of the loss.

    """
    from meshmend import report
    from meshmend.telemetry import Events, folder_of

    events = Events(folder_of(run), torn=lambda text: print(f"meshmend: {text}", file=sys.stderr))
    chosen = _chosen(report.jobs(events), job, run)
    found = []
    for one in chosen.values():
        state = report.State()
        account = report.check(one, also=partial(report.fold, state))
        found.append((account, report.found(state)))
    if json:
        values = [report.to_dict(*one) for one in found]
        print(dumps(values if len(values) > 1 else values[0], indent=2))
    else:
        heads = [f"job {number}\n" if len(chosen) > 1 else "" for number in chosen]
        print("\n\n".join(head + report.render(*one) for head, one in zip(heads, found, strict=True)))
    if draw:
        report.draw_loss(chosen[max(chosen)], draw, metric)
    fine = all(account.clean for account, _ in found)
    if against:
        others = _chosen(report.jobs(Events(folder_of(against))), job, against)
        for number in sorted(chosen | others):
            step = report.compare(chosen[number], others[number]) if number in chosen and number in others else 0
            of = f" of job {number}" if len(chosen) > 1 else ""
            same = f"the same after every step{of}" if step is None else f"not the same after step {step}{of}"
            print(f"the states of {run} and {against} are {same}")
            fine = fine and step is None
    return 0 if fine else 1


def _chosen(found: dict[int, E], job: int | None, run: str) -> dict[int, E]:
    if job is not None and job not in found:
        raise JobError(f"run {run!r} has no job {job}: choose from {', '.join(map(str, found))}")
    return found if job is None else {job: found[job]}
