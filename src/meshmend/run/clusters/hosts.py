"""The hosts of a run: their names, how many workers each has room for, and which rank goes where."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from meshmend.errors import JobError

HERE = "localhost"


@dataclass(frozen=True)
class Host:
    """A host and the number of workers it has room for."""

    name: str
    slots: int

    @property
    def here(self) -> bool:
        """True for the host that the launcher runs on."""
        return self.name in (HERE, "127.0.0.1", socket.gethostname())


def parse_hosts(text: str) -> list[Host]:
    """Parse "a:4,b:4"; without a number, a host has room for one worker."""
    hosts = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z0-9_.@-]+)(?::(\d+))?\s*", word)
        if not match or match[2] == "0" or match[1].startswith("-"):
            raise JobError(f"cannot read {word!r} in --hosts {text!r}: expected name:workers, such as a:4,b:4")
        hosts.append(Host(match[1], int(match[2] or 1)))
    names = [host.name for host in hosts]
    double = {name for name in names if names.count(name) > 1}
    if double:
        raise JobError(f"--hosts {text!r} names {sorted(double)[0]!r} twice: name each host once, with all its workers")
    return hosts


@cache
def address_of(host: str) -> str:
    """Return the address to which a host's name resolves here, IPv4 if possible; empty if it does not resolve."""
    try:
        found = socket.getaddrinfo(host.rpartition("@")[2], None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return min(((family != socket.AF_INET, str(address[0])) for family, *_, address in found), default=(True, ""))[1]


def spread(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """Return the host of each rank: hosts are filled in order; spares go one per host, from the last host backwards."""
    places = [host for host in hosts for _ in range(host.slots)]
    extra = ranks - len(places)
    return places[:ranks] + [hosts[-1 - i % len(hosts)] for i in range(max(0, extra))]
