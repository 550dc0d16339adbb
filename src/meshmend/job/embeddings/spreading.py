"""How a job gets tables: what a worker holds of them, and what saves it. What cannot be done yet is said here."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from meshmend.base.clocks import ROWS_POLL
from meshmend.base.env import Settings
from meshmend.base.sockets import LOOPBACK, address_towards
from meshmend.errors import JobError
from meshmend.job.checkpoints.saving import State
from meshmend.job.config import JobConfig
from meshmend.job.embeddings.contacts import Contacts
from meshmend.job.embeddings.holder import TableHolder
from meshmend.job.embeddings.message import check_float_rows
from meshmend.job.embeddings.others import Others, SameHost, SeveralHosts
from meshmend.job.embeddings.placement import Placement
from meshmend.job.embeddings.port import RowsPort
from meshmend.job.embeddings.replica import TableReplica
from meshmend.job.embeddings.saving import TableSaver, TableSide
from meshmend.job.embeddings.shelf import OtherShelves, Shelf
from meshmend.job.embeddings.tables import EmbeddingTables
from meshmend.job.frameworks.base import Framework
from meshmend.job.ledger import StepLedger
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.shm.segment import open_to_read
from meshmend.telemetry import read_description

RUN = "run.json"


def spread(
    tables: EmbeddingTables,
    framework: Framework,
    config: JobConfig,
    session: WorkerSession | Solo,
    settings: Settings | None,
    ledger: StepLedger,
    state: Callable[[], State | None],
) -> tuple[TableReplica, TableSaver]:
    """What a worker of a job with tables has, and what saves it."""
    _check(tables, framework, config)
    shape = tables.shape
    width = shape.width + shape.memory
    if settings is None or session.alone:
        holder = TableHolder(shape, tables.optimizer, _placement(tables, session.wanted), Shelf(width))
    else:
        own = open_to_read(settings.run, settings.rank)
        # Not of those that are wanted now: where hosts were added, newcomers must count as all others did.
        first = session.founders
        _check_buddies(tables, first)
        shelf, rest = Shelf(width, own.files, own.birth), partial(_rest, session)
        others: Others = SameHost(OtherShelves(settings.run, width))
        holder = TableHolder(
            shape, tables.optimizer, _placement(tables, first), shelf, settings.rank, others, rest, session.end
        )
        if address := _address(settings):
            sizes = np.diff(shape.bounds)
            port = RowsPort(address, shelf, lambda: holder.version, sizes)
            contacts = Contacts(settings.rank, own.agent.ranks, port.contact)
            holder.reach(SeveralHosts(contacts, others, sizes, width, rest, port.close), contacts)
    tables.holder = holder
    rank = 0 if settings is None else settings.rank
    saver = TableSaver(settings, ledger, state, holder, session, rank)
    session.hook(lambda segment, *_: TableSide(segment, saver))
    session.save = saver.halted
    return TableReplica(framework, config, holder, session, ledger, compared=settings is not None), saver


def _placement(tables: EmbeddingTables, workers: int) -> Placement:
    """Where nobody has a copy yet."""
    return Placement(tables.shape.slices, min(1, workers - 1) if tables.buddies is None else tables.buddies)


def _rest(session: WorkerSession | Solo) -> None:
    """Wait a moment for what another worker is about to do; end here if the run is halted."""
    session.tick()
    time.sleep(ROWS_POLL)
    session.obey()


def _check(tables: EmbeddingTables, framework: Framework, config: JobConfig) -> None:
    if not isinstance(tables, EmbeddingTables):
        raise JobError(f"job.share got a {type(tables).__name__} as tables: give it mm.EmbeddingTables(…)")
    if tables.holder is not None:
        raise JobError("job.share got tables that belong to another job: make new mm.EmbeddingTables for each job")
    if framework.device:
        raise JobError(
            f"embedding tables need a state in the host's memory, and this one is on {framework.device}: they do not "
            "work with states on devices yet"
        )
    if not config.kind.sliceable:
        raise JobError(f"embedding tables do not support wire={config.kind.wire!r} yet: use mm.Job(wire='float32')")
    if config.kind.dtype.kind == "f":
        check_float_rows(sum(tables.shape.rows))


def _check_buddies(tables: EmbeddingTables, workers: int) -> None:
    given = tables.buddies
    if given is not None and not 0 <= given < workers:
        raise JobError(
            f"buddies={given} needs at least {max(given, 0) + 1} workers (the owner and each buddy run on different "
            f"workers), but there are {workers}; use buddies=0 to {workers - 1}, or start more workers"
        )


def _address(settings: Settings) -> str:
    """The address at which workers of other hosts reach this one; empty in a run that began on one host."""
    if not (settings.folder / RUN).exists():
        raise JobError(
            f"embedding tables found no {RUN} in {settings.folder} on this host: all hosts must share one runs folder"
        )
    run = read_description(settings.folder)
    names = [host["name"] for host in (*(run.get("hosts") or ()), *(run.get("added") or ()))]
    if len(run.get("hosts") or ()) < 2:
        if settings.rank >= run["workers"] + run["spares"]:  # a worker of a host that was added: it must not join
            raise JobError(
                "embedding tables of a run that began on one host cannot be spread over a host that was added: start "
                "the run with all hosts (--hosts)"
            )
        return ""
    towards = [address_towards(name.rpartition("@")[2]) for name in names]
    for address in towards:
        if address and not address.startswith(LOOPBACK):
            return address
    raise JobError(
        f"embedding tables found no address at which other hosts can ask this worker for rows: the hosts of the run "
        f"({', '.join(names)}) have no IPv4 address here"
    )
