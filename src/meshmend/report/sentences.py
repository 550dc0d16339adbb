"""What an event says, as a sentence for reports and logs."""

from __future__ import annotations

from meshmend.base.units import duration_text, plural, size_text, workers
from meshmend.report.incidents import WHY
from meshmend.report.victims import Victim
from meshmend.telemetry import (
    Began,
    Committed,
    Died,
    Differed,
    Ended,
    Evaluated,
    Event,
    Formed,
    Halting,
    Opened,
    Raised,
    Repaired,
    Saved,
    SingleCopies,
    Skipped,
    Started,
    Steps,
    Struck,
    Why,
)


def sentence(event: Event) -> str:
    """Put an event in words."""
    match event:
        case Began(attached=True):
            return "another launcher took over the run"
        case Began():
            again = f"resumed as attempt {event.epoch.attempt}" if event.epoch.attempt else "began"
            return f"the run {again} with {plural(event.workers, 'worker')} and policy {event.on_failure}"
        case Started():
            place = f" on {event.host}" if event.host else ""
            return f"worker {event.rank} was started{place}, process {event.process}"
        case Opened():
            return f"worker {event.rank} takes part from step {event.step} on"
        case Formed(why=Why.JOIN):
            return f"world {event.epoch.world} was entered: {workers(sorted(event.joined))} join"
        case Formed():
            why = WHY.get(event.why, "couriers stopped")
            return f"world {event.epoch.world} of {workers(sorted(event.ranks))} was entered: {why}"
        case Struck():
            return f"injected on purpose: {Victim([event]).words()} ({event.fault})"
        case Died():
            return f"noticed: {Victim([event]).words()}"
        case Repaired():
            total = duration_text(sum(event.times.values()))
            left = workers(sorted(event.active))
            return f"the courier of worker {event.rank} had repaired its group after {total}: {left} take part"
        case Committed():
            return f"worker {event.rank} committed step {event.step}"
        case Steps():
            return f"worker {event.rank} committed steps {event.step} to {event.end - 1}"
        case Skipped():
            return f"worker {event.rank} skipped step {event.step}: {event.why}"
        case Evaluated():
            return f"worker {event.rank} evaluated {plural(event.size, 'sample')} after step {event.step}"
        case Saved():
            took = duration_text(event.seconds)
            return f"a checkpoint before step {event.step}, {size_text(event.nbytes)}, was written in {took}"
        case Raised():
            return f"worker {event.rank} raised an exception in step {event.step}: {event.error}"
        case Halting():
            return f"the run is being halted: {event.reason}"
        case Ended():
            return f"the run ended with status {event.status}{f': {event.why}' if event.why else ''}"
        case Differed():
            return f"the state of worker {event.rank} differs from others before step {event.step}"
        case SingleCopies():
            return f"{event.slices} of {plural(event.of, 'slice')} have one copy alone"
        case _:
            return type(event).__name__
