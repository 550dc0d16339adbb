"""Which hosts a run is on, and how commands are started there."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from meshmend.errors import JobError

HERE = "localhost"


@dataclass(frozen=True)
class Host:
    """A host, and how many workers it has room for."""

    name: str
    slots: int

    @property
    def here(self) -> bool:
        """Whether it is the launcher's own."""
        return self.name in (HERE, "127.0.0.1", socket.gethostname())


def parse_hosts(text: str) -> list[Host]:
    """Read "a:4,b:4"."""
    hosts = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z0-9_.@-]+)(?::(\d+))?\s*", word)
        if not match or match[2] == "0" or match[1].startswith("-"):
            raise JobError(f"cannot read {word!r} in --hosts {text!r}: expected name:workers, such as a:4,b:4")
        hosts.append(Host(match[1], int(match[2] or 1)))
    names = [host.name for host in hosts]
    double = {name for name in names if names.count(name) > 1}
    if double:
        raise JobError(f"--hosts {text!r} names {sorted(double)[0]!r} twice: give each host once, with all its workers")
    return hosts


def remote_line(launch_agent: str, host: str, *commands: Sequence[str]) -> list[str]:
    """The words that run commands on a host: the launch agent's, the host, and the rest in one word, as ssh has it."""
    return [*shlex.split(launch_agent), host, " && ".join(shlex.join(command) for command in commands)]


def spread(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """The host of each rank: filled in order, and spares one by one from the last host back."""
    places = [host for host in hosts for _ in range(host.slots)]
    extra = ranks - len(places)
    return places[:ranks] + [hosts[-1 - i % len(hosts)] for i in range(max(0, extra))]
