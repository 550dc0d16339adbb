"""A run as metrics for Prometheus: `meshmend watch` serves them at `/metrics`.

Everything is worked out from the run's folder at the moment of the request, so counters survive a page that is closed
and opened again, and two pages of one run give the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from meshmend.report.audit import Account
from meshmend.report.curves import of_step_time
from meshmend.report.fold import Level
from meshmend.report.history import History, JobHistory
from meshmend.report.roster import Condition

CONTENT_TYPE = CONTENT_TYPE_LATEST
RECENT = 50
"""Steps whose median time is the current step time."""
PHASES = "running", "halting", "finished", "stopped", "failed"


class RunMetrics(Collector):
    """The metrics of one run, each with the labels `run` and `job`."""

    def __init__(self, history: History) -> None:
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        yield from of_run(self._history)
        jobs = [job for job in self._history.jobs.values() if job.audit.ledger.is_open]
        for job in jobs[-1:]:
            yield from of_job(self._history, job)


def exposition(history: History) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics(history))
    return generate_latest(registry)


def of_run(history: History) -> Iterator[Metric]:
    """What is about the run as a whole."""
    run = history.name
    workers = GaugeMetricFamily(
        "meshmend_workers", "Workers by what they were last seen doing.", labels=["run", "state"]
    )
    for condition in Condition:
        workers.add_metric([run, condition.name.lower()], history.roster.count(condition))
    yield workers
    lanes = GaugeMetricFamily("meshmend_worker_lanes", "Lanes of a worker in the newest step.", labels=["run", "rank"])
    deaths = CounterMetricFamily("meshmend_worker_deaths", "How often a worker died.", labels=["run", "rank"])
    for rank, one in sorted(history.roster.workers.items()):
        lanes.add_metric([run, str(rank)], history.roster.lanes.get(rank, 0))
        deaths.add_metric([run, str(rank)], one.deaths)
    yield lanes
    yield deaths
    yield _gauge("meshmend_last_event_timestamp_seconds", "When the run last wrote anything.", [run], history.last)
    yield _counter("meshmend_attempts", "How often the run was begun or resumed.", [run], len(history.attempts))
    ended = history.ended
    yield _gauge("meshmend_running", "1 while the run has not ended, by its events.", [run], float(ended is None))
    yield _gauge("meshmend_exit_status", "Status with which the run ended; -1 while it runs.", [run],
                 ended.status if ended else -1)  # fmt: skip
    yield _counter("meshmend_damaged_lines", "Lines and files of events that could not be read.", [run],
                   len(history.damaged))  # fmt: skip


def of_job(history: History, job: JobHistory) -> Iterator[Metric]:
    """What is about the newest job of the run's script."""
    labels = [history.name]
    ledger, account = job.audit.ledger, history.account(job.number)
    incidents, goodput = job.incidents(), history.goodput(job.number)
    if isinstance(account, Account):
        yield _counter("meshmend_steps", "Steps in the ledger.", labels, account.steps)
        yield _counter("meshmend_samples", "Samples that were trained on.", labels, account.samples)
        yield _counter("meshmend_steps_repeated", "Steps done again after a checkpoint.", labels, account.repeated)
        yield _counter("meshmend_steps_skipped", "Steps skipped because a sum was not finite.", labels, account.skipped)
        yield _gauge("meshmend_findings", "What the audit of the ledger found wrong so far.", labels,
                     len(account.findings))  # fmt: skip
        yield _gauge("meshmend_input_stall_ratio", "Share of the workers' time in which they waited for input.", labels,
                     account.stall)  # fmt: skip
    metric = GaugeMetricFamily("meshmend_metric", "Metrics of the newest step, by name.", labels=["run", "name"])
    for name, value in sorted(job.latest.items()):
        metric.add_metric([history.name, name], value)
    yield metric
    spans = ledger.counting()
    seconds = of_step_time(job.state.timeline, spans)[1][-RECENT:]
    if len(seconds):
        yield _gauge(
            "meshmend_step_seconds", f"Median time of the last {RECENT} steps.", labels, float(np.median(seconds))
        )
    levels = Counter(one.level for one in incidents if not one.joins)
    count = CounterMetricFamily(
        "meshmend_incidents", "Failures, by how far recovery had to go.", labels=["run", "level"]
    )
    for level in Level:
        count.add_metric([history.name, level.name.lower()], levels[level])
    yield count
    yield _counter("meshmend_recovery_seconds", "From failures to the next commits, in all.", labels,
                   sum(one.total or 0.0 for one in incidents))  # fmt: skip
    yield _gauge("meshmend_goodput_ratio", "Share of the time in which the run made progress that counts.", labels,
                 goodput.share)  # fmt: skip
    lost = CounterMetricFamily("meshmend_lost_seconds", "Time without progress, by reason.", labels=["run", "reason"])
    for reason, spent in goodput.seconds.items():
        lost.add_metric([history.name, reason], spent)
    yield lost
    yield _counter("meshmend_checkpoints", "Checkpoints written.", labels, len(job.checkpoints))
    if job.checkpoints:
        newest = job.checkpoints[-1]
        yield _gauge("meshmend_checkpoint_step", "Step of the newest checkpoint.", labels, newest.step)
        yield _gauge("meshmend_checkpoint_timestamp_seconds", "When it was written.", labels, newest.time)
        yield _gauge("meshmend_checkpoint_bytes", "Its size.", labels, newest.nbytes)
        yield _gauge("meshmend_checkpoint_write_seconds", "How long it took.", labels, newest.seconds)


def _gauge(name: str, text: str, labels: list[str], value: float) -> Metric:
    found = GaugeMetricFamily(name, text, labels=["run"])
    found.add_metric(labels, value)
    return found


def _counter(name: str, text: str, labels: list[str], value: float) -> Metric:
    found = CounterMetricFamily(name, text, labels=["run"])
    found.add_metric(labels, value)
    return found
