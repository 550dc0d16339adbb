"""`meshmend audit`."""

from __future__ import annotations

import sys

from meshmend.cli.app import app


@app.command
def audit(
    run: str, *, against: str | None = None, json: bool = False, draw: str | None = None, metric: str = "loss"
) -> int:
    """Prove from a run's ledger that every sample of every epoch was counted once, and list the run's incidents.

    Parameters
    ----------
    run
        The run's name, or its folder.
    against
        Another run; the states of the two must be the same after every step.
    json
        Print JSON, with all findings and all incidents.
    draw
        Draw the loss, with the incidents marked, to this PNG or SVG file.
    metric
        The metric to draw instead of the loss.

    """
    from meshmend import report
    from meshmend.telemetry import Events, folder_of

    events = Events(folder_of(run), torn=lambda text: print(f"meshmend: {text}", file=sys.stderr))
    state = report.State()
    account = report.check(events, also=lambda event: report.fold(state, event))
    incidents = report.found(state)
    print(report.to_json(account, incidents) if json else report.render(account, incidents))
    if draw:
        report.draw_loss(events, draw, metric)
    if against:
        step = report.compare(events, Events(folder_of(against)))
        same = "the same after every step" if step is None else f"not the same after step {step}"
        print(f"the states of {run} and {against} are {same}")
        return 0 if account.clean and step is None else 1
    return 0 if account.clean else 1
