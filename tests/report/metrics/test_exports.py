"""A run for other programs: each format is read back by its own library, or held against its own rules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from prometheus_client.parser import text_string_to_metric_families

from meshmend import report
from meshmend.report.history import read_history
from meshmend.report.metrics.logs import record, write_logs
from meshmend.report.metrics.prometheus import exposition
from meshmend.report.metrics.tensorboard import write_tensorboard
from meshmend.report.metrics.trace import LAUNCHER, REPAIRS, STEPS, write_trace
from meshmend.telemetry import Committed, Ended, Epoch, Event, Events, Raised, Saved
from meshmend.telemetry.compaction import compact
from tests.report.made import Attempt, run
from tests.report.test_weeks import written

ROOT = Path(__file__).parents[3]
KILLED = [Attempt(0, 40, 4, {20: 2}, {30: 2}), Attempt(35, 60, 4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "run", run(KILLED))


# ── Prometheus ──


def samples(folder: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = exposition(read_history(str(folder))).decode()
    return {
        (one.name, tuple(sorted((k, v) for k, v in one.labels.items() if k != "run"))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_metrics_are_what_the_audit_says(folder: Path) -> None:
    found, account = samples(folder), report.check(Events(folder))
    assert found["meshmend_steps_total", ()] == account.steps == 60
    assert found["meshmend_samples_total", ()] == account.samples
    assert found["meshmend_steps_repeated_total", ()] == account.repeated == 5
    assert found["meshmend_findings", ()] == 0
    assert found["meshmend_incidents_total", (("level", "shrink"),)] == 1
    assert found["meshmend_incidents_total", (("level", "checkpoint"),)] == 1
    assert found["meshmend_worker_deaths_total", (("rank", "2"),)] == 1
    assert found["meshmend_workers", (("state", "active"),)] == 4
    assert found["meshmend_running", ()] == 1 and found["meshmend_exit_status", ()] == -1
    assert found["meshmend_step_seconds", ()] == pytest.approx(0.1)
    assert found["meshmend_metric", (("name", "loss"),)] == pytest.approx(0.2 + 2.1 / (1 + 59 / 30))


def test_counters_never_fall_while_a_run_goes_on(tmp_path: Path) -> None:
    events = run([Attempt(0, 30, 3, {10: 1}, {20: 1})])
    folder = written(tmp_path / "run", events[:20])
    before: dict[object, float] = {}
    for begin in range(20, len(events), 13):
        found = {name: value for name, value in samples(folder).items() if name[0].endswith("_total")}
        assert all(value >= before.get(name, 0.0) for name, value in found.items())
        before = found
        written(folder, events[begin : begin + 13])


def test_odd_names_are_escaped(tmp_path: Path) -> None:
    odd = 'a"b\\c\nd'
    made = [replace(one, metrics={odd: float("inf")}) if isinstance(one, Committed) else one for one in run(KILLED)]
    found = samples(written(tmp_path / "run", made))
    assert found["meshmend_metric", (("name", odd),)] == float("inf")


def test_the_dashboard_shows_metrics_that_there_are(folder: Path) -> None:
    log_ = [Saved(time=1005.0, epoch=Epoch(0, 1), step=3, path="x", seconds=0.1, nbytes=7)]
    known = {name for name, _ in samples(written(folder, log_))}
    board = json.loads((ROOT / "docs" / "grafana" / "meshmend.json").read_text())
    import re

    asked = set()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            names = set(re.findall(r"\bmeshmend_\w+", target["expr"]))
            assert names, panel["title"]
            asked |= names
    asked |= set(re.findall(r"\bmeshmend_\w+", board["templating"]["list"][1]["query"]["query"]))
    assert asked <= known, asked - known
    assert len(asked) >= 15
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23, "panels overlap, or do not fit"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) and all(panel["datasource"]["uid"] == "${source}" for panel in board["panels"])


# ── traces ──


def test_slices_of_a_track_nest_and_never_overlap(folder: Path, tmp_path: Path) -> None:
    count = write_trace(Events(folder), tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len([one for one in found if one["ph"] != "M"]) == count
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in found:
        if one["ph"] == "X":
            tracks.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    for slices in tracks.values():
        open_: list[tuple[float, float]] = []
        for begin, end in sorted(slices, key=lambda pair: (pair[0], -pair[1])):
            while open_ and open_[-1][1] <= begin + 2e-3:
                open_.pop()
            assert not open_ or end <= open_[-1][1] + 2e-3
            open_.append((begin, end))
    named = {one["pid"]: one["args"]["name"] for one in found if one["name"] == "process_name"}
    assert named == {LAUNCHER: "launcher", 1: "worker 0", 2: "worker 1", 3: "worker 2", 4: "worker 3"}
    assert any(one["name"] == "injected on purpose: worker 2 (kill)" for one in found)


def test_a_trace_has_every_step_and_repair_of_every_worker(folder: Path, tmp_path: Path) -> None:
    write_trace(Events(folder), tmp_path / "trace.json")
    found = [one for one in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if one["ph"] == "X"]
    mine = [one["name"] for one in found if (one["pid"], one["tid"]) == (1, STEPS)]
    assert mine == [f"step {step}" for step in [*range(1, 40), *range(36, 60)]]
    repairs = [one["name"] for one in found if (one["pid"], one["tid"]) == (2, REPAIRS)]
    assert repairs == ["repair 0.1.1", "revoke", "shrink", "repair 0.2.0", "re-form", "state"]
    for path in (folder / "events").glob("worker-*"):
        compact(path)
    write_trace(Events(folder), tmp_path / "other.json", 10, 12)
    few = json.loads((tmp_path / "other.json").read_text())["traceEvents"]
    assert {one["name"] for one in few if one["ph"] == "X" and one["tid"] == STEPS} == {"step 10", "step 11"}


# ── logs ──


def test_opentelemetry_reads_the_logs(folder: Path, tmp_path: Path) -> None:
    more: list[Event] = [
        Raised(time=1040.0, epoch=Epoch(1, 1), rank=1, step=59, error="ValueError: \u2028 bad", trace="…"),
        Ended(time=1041.0, epoch=Epoch(1, 1), status=1, why="it failed"),
    ]
    events = [*Events(written(folder, more)).in_order()]
    count = write_logs(events, tmp_path / "logs.jsonl", "mine")
    lines = (tmp_path / "logs.jsonl").read_text().splitlines()
    assert len(lines) == count == sum(not isinstance(event, Committed) for event in events)
    kinds, last = set(), 0
    for line in lines:
        data = json_format.Parse(line, LogsData())
        (resource,) = data.resource_logs
        assert {one.key: one.value.string_value for one in resource.resource.attributes}["meshmend.run"] == "mine"
        (found,) = resource.scope_logs[0].log_records
        kinds.add((found.event_name, found.severity_text, found.severity_number))
        assert found.body.string_value and found.time_unix_nano
        last = found.time_unix_nano
    assert last == 1041 * 10**9
    assert {("meshmend.died", "WARN", 13), ("meshmend.raised", "ERROR", 17), ("meshmend.ended", "ERROR", 17)} <= kinds
    assert ("meshmend.formed", "INFO", 9) in kinds


def test_records_keep_every_field() -> None:
    event = Committed(
        time=1.5, epoch=Epoch(0, 1, 2), rank=3, step=4, by=[[3, 2]], digest="ab", metrics={"x": float("nan")}
    )
    found = json_format.ParseDict({"resourceLogs": [{"scopeLogs": [{"logRecords": [record(event)]}]}]}, LogsData())
    (one,) = found.resource_logs[0].scope_logs[0].log_records
    values = {pair.key: pair.value for pair in one.attributes}
    assert values["meshmend.rank"].int_value == 3 and values["meshmend.epoch"].string_value == "0.1.2"
    assert values["meshmend.by"].array_value.values[0].array_value.values[1].int_value == 2
    assert one.time_unix_nano == 1_500_000_000 and one.severity_text == "DEBUG"


# ── TensorBoard ──


def test_tensorboard_reads_each_step_once(folder: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    count = write_tensorboard(read_history(str(folder)), str(tmp_path / "board"))
    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"scalars": 0})
    board.Reload()
    losses = board.Scalars("loss")
    assert [one.step for one in losses] == list(range(60))
    assert [one.value for one in losses] == pytest.approx([0.2 + 2.1 / (1 + step / 30) for step in range(60)])
    assert all(one.wall_time > 1000 for one in losses)
    assert count == 60 + len(board.Scalars("meshmend/step seconds"))
