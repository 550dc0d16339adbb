"""What a launcher and the agent on another host send each other: typed messages, a JSON object per line.

    agent     Hello (once), then Report whenever something has changed, and at least every `BEAT` seconds
    launcher  Secret (once), then commands; the agent's reports count the commands it has carried out, except Beat

Every command and every report has the epoch number in which it was sent; Hello, Secret and Beat are about the
connection alone. An agent ignores a command of an earlier attempt than the latest it knows of.

`VERSION` is raised with every change to these messages. The launcher refuses an agent of another version. Either side
drops the other after an invalid message (`FormatError`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar

from meshmend.base.proofs import SIZE
from meshmend.base.schema import Rule, checked, loads, wrong
from meshmend.errors import FormatError
from meshmend.run.supervisor.observations import Cause, RankSeen
from meshmend.telemetry.epoch import FIRST, Epoch

VERSION = 11
LONGEST = 16 << 20
"""The largest number of bytes in a line."""
PRINTED = 1 << 20
"""Characters of output after which a new report is begun; one more line always fits."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The agent's first message."""

    port: int
    """The port on which it answers probes."""
    version: int = 1
    """A hello without a version is older than versions."""
    address: str = ""
    """The address that it listens on; empty if its host's name does not resolve to an address of the host."""
    living: list[int] = field(default_factory=list)
    """Processes of the run's workers that were alive there before it."""
    attempt: int = 0
    """The latest attempt of which workers have left memory there."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The observations of a host's ranks."""

    observations: Sequence[RankSeen] | None = None
    """All observations, or None if nothing has changed."""
    did: int = 0
    """Commands carried out since the last report; the observations show their effects."""
    output: Sequence[tuple[int, str]] = ()
    """(rank, line) that workers have printed."""
    epoch: Epoch = FIRST
    """The latest that a worker there knows."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Base of everything that a launcher sends."""

    kinds: ClassVar[dict[str, type[Notice]]] = {}

    def __init_subclass__(cls, *, base: bool = False) -> None:
        if not base:
            Notice.kinds[cls.__name__] = cls


@dataclass(frozen=True, kw_only=True)
class Command(Notice, base=True):
    """Base of all commands to an agent."""

    epoch: Epoch = FIRST
    """The launcher's when it gave the command: `Pool.tell` fills it in."""


@dataclass(frozen=True, kw_only=True)
class Secret(Notice):
    """The secret by which launcher and agents recognise each other (run/secret.py)."""

    secret: Annotated[str, Rule(f"{2 * SIZE} hexadecimal digits", re.compile(f"[0-9a-f]{{{2 * SIZE}}}").fullmatch)]


@dataclass(frozen=True, kw_only=True)
class Adopt(Command):
    """Take over the workers of these ranks that another agent of the host has left behind."""

    ranks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Start(Command):
    """Start a worker."""

    rank: int
    founders: int
    wanted: int
    ranks: int
    resume: str
    every: str
    script: Sequence[str]
    log_every: str = ""
    passed: int = 0


@dataclass(frozen=True, kw_only=True)
class KeepWarm(Command):
    """Keep processes that have loaded the script's libraries and wait to become workers."""

    count: int
    script: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Kill(Command):
    """Kill a worker."""

    rank: int
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Clear(Command):
    """Kill the couriers of the present world."""

    only: Sequence[int] | None = None
    """Of these ranks, or of all."""


@dataclass(frozen=True, kw_only=True)
class Open(Command):
    """Note that the couriers of a new world are about to be started; another launcher must not use its number again."""

    world: int


@dataclass(frozen=True, kw_only=True)
class Enter(Command):
    """Let the couriers of a new world work, in place of those of the old one."""

    world: int
    mpirun: int
    formed: int
    """When the old world was lost, in nanoseconds since 1970; 0 if there was none."""
    fresh: bool
    job: int = 1
    wanted: int


@dataclass(frozen=True, kw_only=True)
class Release(Command):
    """Tell a worker to leave: this job and all earlier ones are over."""

    rank: int
    job: int = 1


@dataclass(frozen=True, kw_only=True)
class Halt(Command):
    """Have all workers stop."""

    writer: int
    """The rank that first writes a checkpoint; -1: none does."""


@dataclass(frozen=True, kw_only=True)
class Remove(Command):
    """Kill everything, and leave nothing behind."""


@dataclass(frozen=True, kw_only=True)
class Beat(Notice):
    """The launcher is still alive."""


def pack(message: Hello | Report | Notice) -> dict[str, Any]:
    """Return a message as a JSON object; enums travel by name."""
    kind = {"command": type(message).__name__} if isinstance(message, Notice) else {}
    return {**kind, **asdict(message, dict_factory=_plain)}


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.name if isinstance(value, Enum) else value for name, value in pairs}


def unpack_command(values: Mapping[str, Any]) -> Notice:
    """Read a launcher's message."""
    kind = values.get("command")
    if not isinstance(kind, str) or kind not in Notice.kinds:
        raise wrong("command", kind, f"one of {', '.join(Notice.kinds)}")
    return checked(Notice.kinds[kind], {name: value for name, value in values.items() if name != "command"})


def unpack(values: Mapping[str, Any]) -> Hello | Report:
    """Read an agent's message; of a hello of another version, only the version matters."""
    return checked(Hello, values, others=True) if "port" in values else checked(Report, values)


def reports(output: Sequence[tuple[int, str]], epoch: Epoch) -> Iterator[Report]:
    """Split the workers' output into messages of limited length."""
    some: list[tuple[int, str]] = []
    size = 0
    for rank, line in output:
        some.append((rank, line))
        size += len(line)
        if size > PRINTED:
            yield Report(output=some, epoch=epoch)
            some, size = [], 0
    if some:
        yield Report(output=some, epoch=epoch)


def misunderstood(host: str, error: FormatError) -> str:
    """Say why an agent that sends such a message cannot be used."""
    return f"the agent on {host} sent an invalid message ({error}): install the same meshmend on all hosts"


def refusal(host: str, version: int) -> str:
    """Say why an agent of another version cannot be used."""
    return (
        f"the agent on {host} speaks version {version} and this launcher version {VERSION}: install the same meshmend "
        "on all hosts"
    )


def write_line(file: int, value: dict[str, Any]) -> None:
    """Send an object."""
    data = memoryview((json.dumps(value) + "\n").encode())
    while data:
        data = data[os.write(file, data) :]


def read_lines(file: int, buffer: bytearray) -> list[dict[str, Any]] | None:
    """Wait for data and return the objects that have arrived; None at the end. Keeps an incomplete line in `buffer`.

    Lines that do not begin like an object are skipped: a login shell may print a greeting.
    """
    data = os.read(file, 1 << 16)
    if not data:
        return None
    buffer += data
    if b"\n" not in data:
        if len(buffer) > LONGEST:
            raise FormatError(f"a line has more than {LONGEST} bytes")
        return []  # a long line arrives in many pieces
    *whole, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    return [loads(line) for line in whole if line.startswith(b"{")]
