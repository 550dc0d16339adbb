"""A run as the page shows it: plain data, in sections that are sent again only when they have changed.

run       what it is, and how it stands            workers   one entry per rank
job-1 …   curves, incidents, checkpoints, proof    mesh      chips and the loads of links, for runs with --mesh
notes     what could not be read
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from meshmend.base.status import DONE, HALTED
from meshmend.report.audit import Account
from meshmend.report.curves import Curve, of_metric, of_step_time, thin
from meshmend.report.history import History, JobHistory
from meshmend.report.incidents import PHASES, Incident
from meshmend.report.page.mesh import MeshPicture

POINTS = 400
"""Pieces of a curve, each with its lowest and its highest value."""
MOST = 200
"""Incidents and checkpoints that are shown: the newest."""
WINDOWS = 120
"""Parts of the run whose goodput is shown."""
RECENT = 50
"""Steps whose median time is the current step time."""

Section = dict[str, Any] | list[Any] | None


class Snapshots:
    """Makes sections of a history; keeps what is expensive and has not changed."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._mesh = MeshPicture()

    def sections(self) -> dict[str, Section]:
        """All of them."""
        history = self._history
        jobs = {number: job for number, job in sorted(history.jobs.items()) if job.audit.ledger.is_open}
        found: dict[str, Section] = {"run": _run(history, [*jobs]), "workers": _workers(history)}
        for number, job in jobs.items():
            found[f"job-{number}"] = _job(history, job)
        found["mesh"] = self._mesh.section(history.description, history.roster)
        found["notes"] = history.damaged[:MOST]
        return found


def to_json(section: Section) -> str:
    """As JSON that may stand in a page: no number that JSON does not have, and nothing that ends a script."""
    text = json.dumps(_plain(section), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def phase(history: History) -> str:
    """How the run stands, in a word."""
    ended = history.ended
    if ended is not None:
        return {DONE: "finished", HALTED: "stopped"}.get(ended.status, "failed")
    if not history.attempts:
        return "unknown"
    return "halting" if history.halting is not None else "running"


def _run(history: History, jobs: list[int]) -> Section:
    about, ended = history.description, history.ended
    script = about.get("script")
    hosts = about.get("hosts")
    return {
        "name": history.name,
        "phase": phase(history),
        "status": ended.status if ended else None,
        "why": ended.why if ended else "",
        "script": " ".join(map(str, script)) if isinstance(script, list) else "",
        "policy": history.attempts[-1][0].on_failure if history.attempts else str(about.get("on_failure", "")),
        "workers": about.get("workers"),
        "spares": about.get("spares"),
        "hosts": len(hosts) if isinstance(hosts, list) else 0,
        "version": about.get("version"),
        "began": history.attempts[0][0].time if history.attempts else None,
        "last": history.last or None,
        "attempts": len(history.attempts),
        "errors": [f"worker {one.rank}, step {one.step}: {one.error}" for one in history.raised[-5:]],
        "jobs": jobs,
    }


def _workers(history: History) -> Section:
    stalls = history.jobs[max(history.jobs)].audit.stalls.shares if history.jobs else {}
    lanes = history.roster.lanes
    return [
        {
            "rank": one.rank,
            "state": one.condition.name.lower(),
            "since": one.since,
            "host": one.host,
            "process": one.process,
            "step": one.step,
            "lanes": lanes.get(one.rank, 0),
            "stall": stalls.get(one.rank),
            "starts": one.starts,
            "deaths": one.deaths,
            "death": one.last_death,
        }
        for _, one in sorted(history.roster.workers.items())
    ]


def _job(history: History, job: JobHistory) -> Section:
    account = history.account(job.number)
    ledger = job.audit.ledger
    incidents = job.incidents()
    spans = ledger.counting()
    pace = of_step_time(job.state.timeline, spans)
    goodput = history.goodput(job.number)
    recent = pace[1][-RECENT:]
    return {
        "number": job.number,
        "metric": job.metric,
        "metrics": {name: _short(value) for name, value in sorted(job.latest.items())},
        "step": ledger.end if spans else 0,
        "batch": ledger.data.batch,
        "lanes": ledger.data.lanes,
        "pace": _short(float(np.median(recent))) if len(recent) else None,
        "curve": _curve(of_metric(spans)) if ledger.metric else None,
        "rolledBack": _curve(of_metric(ledger.void())) if ledger.metric else None,
        "paces": _curve(pace),
        "active": _active((span.begin, len({rank for rank, _ in span.by})) for span in spans),
        "incidents": _incidents(job, incidents),
        "incidentCount": len(incidents),
        "recovery": sum(one.total or 0.0 for one in incidents),
        "checkpoints": [
            {"step": one.step, "time": one.time, "seconds": _short(one.seconds), "bytes": one.nbytes, "path": one.path}
            for one in job.checkpoints[-MOST:]
        ],
        "checkpointCount": len(job.checkpoints),
        "account": _account(account),
        "goodput": {
            "share": _short(goodput.share),
            "wall": _short(goodput.wall),
            "seconds": {name: _short(seconds) for name, seconds in goodput.seconds.items()},
            "windows": [round(share, 3) for share in goodput.windows(WINDOWS)],
        },
    }


def _account(account: Account | str) -> dict[str, Any]:
    if isinstance(account, str):
        return {"clean": None, "why": account}
    values = asdict(account)
    values["findings"] = account.findings[:MOST]
    return {"clean": account.clean if account.steps else None, "findingCount": len(account.findings), **values}


def _incidents(job: JobHistory, incidents: list[Incident]) -> list[dict[str, Any]]:
    shown = incidents[-MOST:]
    return [
        {
            "number": one.number,
            "begin": one.begin,
            "step": one.step,
            "what": one.what,
            "level": one.level.name.lower(),
            "total": _short(one.total),
            "ordinary": _short(one.ordinary),
            "phases": [[name, _short(one.times[name])] for name in (*PHASES, *sorted({*one.times} - {*PHASES}))
                       if name in one.times],
            "joins": one.joins,
            "lost": cost.lost,
            "taken": cost.taken,
            "lanes": cost.lanes,
            "samples": cost.samples,
            "repeated": cost.steps,
        }
        for one, cost in zip(shown, job.costs(shown), strict=True)
    ]  # fmt: skip


def _active(changes: Iterable[tuple[int, int]]) -> list[list[int]]:
    """From which step on how many workers computed, where that changes."""
    found: list[list[int]] = []
    for step, count in changes:
        if not found or found[-1][1] != count:
            found.append([step, count])
    return found[-MOST:]


def _curve(curve: Curve) -> dict[str, list[Any]]:
    steps, values = thin(curve, POINTS)
    return {"steps": steps.astype(int).tolist(), "values": [_short(value) for value in values.tolist()]}


def _short(value: float | None) -> float | None:
    """With as many digits as a picture can show."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
