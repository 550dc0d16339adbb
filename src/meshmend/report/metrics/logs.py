"""A run as log records of OpenTelemetry: a line of OTLP/JSON for each event, which its Collector reads as it is.

Each record has a time, a severity, a sentence as its body, the name of the event, and the event's fields as attributes
(`meshmend.rank`, `meshmend.step`, …). Lines of the ledger are left out unless they are asked for: they are a
record per step and worker, and metrics tell them better.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from meshmend.report.sentences import sentence
from meshmend.telemetry import (
    Committed,
    Died,
    Differed,
    Ended,
    Evaluated,
    Event,
    Halting,
    Raised,
    SingleCopies,
    Skipped,
    Steps,
    Struck,
)

DEBUG, INFO, WARN, ERROR = (5, "DEBUG"), (9, "INFO"), (13, "WARN"), (17, "ERROR")
"""Numbers and names of severities in OpenTelemetry's data model."""
LEDGER = Committed, Skipped, Steps, Evaluated


def severity(event: Event) -> tuple[int, str]:
    """How serious an event is."""
    match event:
        case Raised() | Differed():
            return ERROR
        case Ended():
            return ERROR if event.status not in (0, 75) else WARN if event.status else INFO
        case Died() | Struck() | Halting() | SingleCopies() | Skipped():
            return WARN
        case Committed() | Steps() | Evaluated():
            return DEBUG
        case _:
            return INFO


def record(event: Event) -> dict[str, Any]:
    """One log record."""
    number, name = severity(event)
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
    fields = {key: value for key, value in event.values().items() if key not in ("kind", "time", "columns", "stalls")}
    fields["epoch"] = str(event.epoch)
    nanoseconds = str(max(0, round(event.time * 1e9)))
    return {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": number,
        "severityText": name,
        "eventName": f"meshmend.{kind}",
        "body": {"stringValue": sentence(event)},
        "attributes": _pairs({f"meshmend.{key}": value for key, value in fields.items()}),
    }


def write_logs(events: Iterable[Event], path: str | Path, run: str, *, ledger: bool = False) -> int:
    """Write the records of a run; return how many there are."""
    version = metadata.version("meshmend")
    resource = {"attributes": _pairs({"service.name": "meshmend", "service.version": version, "meshmend.run": run})}
    scope = {"name": "meshmend.telemetry", "version": version}
    count = 0
    with Path(path).open("w", encoding="utf-8") as file:
        for event in events:
            if ledger or not isinstance(event, LEDGER):
                scoped = [{"scope": scope, "logRecords": [record(event)]}]
                line = {"resourceLogs": [{"resource": resource, "scopeLogs": scoped}]}
                file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
                count += 1
    return count


def _pairs(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": str(key), "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    """A value as protobuf's JSON has it: integers of 64 bits are text there."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            names = {math.inf: "Infinity", -math.inf: "-Infinity"}
            return {"doubleValue": value if math.isfinite(value) else names.get(value, "NaN")}
        case Mapping():
            return {"kvlistValue": {"values": _pairs(value)}}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(one) for one in value]}}
        case _:
            return {"stringValue": str(value)}
