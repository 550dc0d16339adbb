"""`meshmend report`: what happened in a run, for people and for other programs."""

from __future__ import annotations

import re

from meshmend.base.units import plural, size_text
from meshmend.cli.app import app
from meshmend.errors import JobError


@app.command
def report(
    run: str,
    *,
    out: str | None = None,
    job: int | None = None,
    metric: str = "",
    trace: str | None = None,
    steps: str | None = None,
    logs: str | None = None,
    tensorboard: str | None = None,
) -> int:
    """Write what happened in a run: the proof, where the time went, and every incident with its cause and its cost.

    Prints Markdown, unless a file is asked for.

    Parameters
    ----------
    run
        The run's name, or its folder.
    out
        Write the report to this .md or .html file, with the loss curve.
    job
        Report on this job (1, 2, …), if the script has several; by default the last.
    metric
        The metric to draw; by default the loss, or else the first one that the script commits.
    trace
        Write steps and repairs of all processes as a trace to this JSON file, for ui.perfetto.dev.
    steps
        The steps of the trace, such as 1000:2000; by default all.
    logs
        Write the run's events to this file as log records of OpenTelemetry, a line of OTLP/JSON each.
    tensorboard
        Add the run's metrics to this folder, for TensorBoard.

    """
    from meshmend.report.document import story, write_report
    from meshmend.report.document.write import as_markdown
    from meshmend.report.history import read_history

    history = read_history(run, metric)
    known = sorted(number for number, one in history.jobs.items() if one.audit.ledger.is_open)
    if job is not None and job not in known:
        raise JobError(f"run {run!r} has no job {job}: choose from {', '.join(map(str, known)) or 'none yet'}")
    if out:
        print(f"{out}: {size_text(write_report(history, out, job))}")
    first, last = _range(steps) if steps else (0, 1 << 62)
    if trace or logs or tensorboard:
        from meshmend.telemetry import Events

        events = Events(history.folder, damaged=lambda _: None)
        try:
            if trace:
                from meshmend.report.metrics.trace import write_trace

                print(f"{trace}: {plural(write_trace(events, trace, first, last), 'slice')}, for ui.perfetto.dev")
            if logs:
                from meshmend.report.metrics.logs import write_logs

                print(f"{logs}: {plural(write_logs(events.in_order(), logs, history.name), 'log record')}")
            if tensorboard:
                from meshmend.report.metrics.tensorboard import write_tensorboard

                print(f"{tensorboard}: {plural(write_tensorboard(history, tensorboard, job), 'scalar')}")
        except OSError as error:
            raise JobError(
                f"cannot write {error.filename!r} ({error.strerror}): give a path in a folder that exists and can be "
                "written"
            ) from None
    if not (out or trace or logs or tensorboard):
        print(as_markdown(story(history, None, job)), end="")
    return 0


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None or (match[1] and match[2] and int(match[1]) >= int(match[2])):
        raise JobError(f"--steps {text}: expected two numbers, such as 1000:2000")
    return int(match[1] or 0), int(match[2] or 1 << 62)
