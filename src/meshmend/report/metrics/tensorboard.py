"""A run's metrics for TensorBoard, from its ledger: each step that counts once, whichever worker wrote it."""

from __future__ import annotations

from collections.abc import Iterator

from meshmend.errors import MissingLibrary
from meshmend.report.curves import of_metric, of_step_time
from meshmend.report.history import History, JobHistory
from meshmend.report.ledger import read_ledger


def write_tensorboard(history: History, folder: str, job: int | None = None) -> int:
    """Add an event file to the folder; return how many scalars it has."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"--tensorboard needs {error.name}, which is not installed; run pip install 'meshmend[tensorboard]'"
        ) from None
    chosen = history.job(max(history.jobs) if job is None else job)
    writer, count = EventFileWriter(folder), 0
    for tag, step, value, when in scalars(history, chosen):
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(wall_time=when, step=step, summary=summary))
        count += 1
    writer.close()
    return count


def scalars(history: History, job: JobHistory) -> Iterator[tuple[str, int, float, float]]:
    """Every metric of every step that counts, and the step time: (tag, step, value, seconds since 1970)."""
    ledger = job.audit.ledger
    ledger.settle()
    spans = ledger.counting()
    times: dict[int, float] = {}
    for span in spans:
        steps, when = job.state.timeline.commits(span.attempt)
        inside = (steps >= span.begin) & (steps < span.end)
        times.update(zip(steps[inside].tolist(), when[inside].tolist(), strict=True))
    for name in sorted(ledger.metrics):
        own = spans if name == ledger.metric else read_ledger(history.events(job.number), name).counting()
        for step, value in zip(*(column.tolist() for column in of_metric(own)), strict=True):
            yield name, int(step), value, times.get(int(step), 0.0)
    for step, seconds in zip(*(column.tolist() for column in of_step_time(job.state.timeline, spans)), strict=True):
        yield "meshmend/step seconds", int(step), seconds, times.get(int(step), 0.0)
