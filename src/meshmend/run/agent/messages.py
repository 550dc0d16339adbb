"""What a launcher and the agent on another host say to each other: typed messages, a JSON object per line.

    agent     Hello (once), then Report whenever something has changed, and at least every `BEAT` seconds
    launcher  Secret (once), then commands; the agent counts in its reports those that it has carried out, not Beat

`VERSION` is raised with every change to these messages. The launcher refuses an agent of another version. Either side
gives up the other if it says something that it cannot have meant (`FormatError`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar

from meshmend.base.schema import Rule, checked, loads, wrong
from meshmend.errors import FormatError
from meshmend.run.secret import SIZE
from meshmend.run.supervisor.observations import Cause, RankSeen

VERSION = 6
LONGEST = 16 << 20
"""Bytes of a line, at most."""
PRINTED = 1 << 20
"""Characters of output after which the next report is begun; one line more fits in any case."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The agent is there."""

    port: int
    """Where it answers probes."""
    version: int = 1
    """One without a version is from before there were versions."""
    address: str = ""
    """The address that it listens on; empty where its host is not known by an address of its own."""
    living: list[int] = field(default_factory=list)
    """Processes of the run's workers that have been there before it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """How the ranks of a host are."""

    observations: Sequence[RankSeen] | None = None
    """All of them, or None if nothing has changed."""
    did: int = 0
    """Commands that were carried out since the last report; what they changed is in its observations."""
    output: Sequence[tuple[int, str]] = ()
    """(rank, line) that workers have printed."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base of all commands to an agent."""

    kinds: ClassVar[dict[str, type[Command]]] = {}

    def __init_subclass__(cls) -> None:
        Command.kinds[cls.__name__] = cls


@dataclass(frozen=True, kw_only=True)
class Secret(Command):
    """What proves that somebody belongs to the launcher (run/secret.py)."""

    secret: Annotated[str, Rule(f"{2 * SIZE} hexadecimal digits", re.compile(f"[0-9a-f]{{{2 * SIZE}}}").fullmatch)]


@dataclass(frozen=True, kw_only=True)
class Adopt(Command):
    """Take over the workers of these ranks that another agent of the host has left."""

    ranks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Start(Command):
    """Start a worker."""

    rank: int
    wanted: int
    ranks: int
    attempt: int
    resume: str
    every: str
    script: Sequence[str]
    log_every: str = ""
    passed: int = 0


@dataclass(frozen=True, kw_only=True)
class Kill(Command):
    """Kill a worker."""

    rank: int
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Clear(Command):
    """Kill the couriers of the world that works."""

    only: Sequence[int] | None = None
    """Of these ranks, or of all."""


@dataclass(frozen=True, kw_only=True)
class Enter(Command):
    """Let the couriers of a new world work, in place of those of the old one."""

    world: int
    mpirun: int
    formed: int
    """When the old world was lost, in nanoseconds since 1970; 0 if there was none."""
    fresh: bool
    job: int = 1


@dataclass(frozen=True, kw_only=True)
class Release(Command):
    """Let a worker go: this job is over, and those before it."""

    rank: int
    job: int = 1


@dataclass(frozen=True, kw_only=True)
class Halt(Command):
    """Have all workers end."""

    writer: int
    """The rank that writes a checkpoint first; -1 if none does."""


@dataclass(frozen=True, kw_only=True)
class Remove(Command):
    """End everything, and leave nothing behind."""


@dataclass(frozen=True, kw_only=True)
class Beat(Command):
    """The launcher is still there."""


def pack(message: Hello | Report | Command) -> dict[str, Any]:
    """A message as a JSON object; enums travel by their names."""
    kind = {"command": type(message).__name__} if isinstance(message, Command) else {}
    return {**kind, **asdict(message, dict_factory=_plain)}


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.name if isinstance(value, Enum) else value for name, value in pairs}


def unpack_command(values: Mapping[str, Any]) -> Command:
    """A launcher's message."""
    kind = values.get("command")
    if not isinstance(kind, str) or kind not in Command.kinds:
        raise wrong("command", kind, f"one of {', '.join(Command.kinds)}")
    return checked(Command.kinds[kind], {name: value for name, value in values.items() if name != "command"})


def unpack(values: Mapping[str, Any]) -> Hello | Report:
    """An agent's message; of another version's hello, only the version matters."""
    return checked(Hello, values, others=True) if "port" in values else checked(Report, values)


def reports(output: Sequence[tuple[int, str]]) -> Iterator[Report]:
    """What workers have printed, in messages that are not too long."""
    some: list[tuple[int, str]] = []
    size = 0
    for rank, line in output:
        some.append((rank, line))
        size += len(line)
        if size > PRINTED:
            yield Report(output=some)
            some, size = [], 0
    if some:
        yield Report(output=some)


def misunderstood(host: str, error: FormatError) -> str:
    """Why an agent that says such things is of no use."""
    return f"the agent on {host} sent what is no message ({error}): install the same meshmend on all hosts"


def refusal(host: str, version: int) -> str:
    """Why the agent of another version is of no use."""
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
    """The objects that have come, once something has; None at the end. An incomplete line stays in the buffer.

    Lines that do not begin as objects do are left out: a login shell may print a greeting.
    """
    data = os.read(file, 1 << 16)
    if not data:
        return None
    buffer += data
    if b"\n" not in data:
        if len(buffer) > LONGEST:
            raise FormatError(f"a line has more than {LONGEST} bytes")
        return []  # a long line comes in many pieces
    *whole, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    return [loads(line) for line in whole if line.startswith(b"{")]
