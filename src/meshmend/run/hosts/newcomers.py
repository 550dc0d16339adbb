"""Hosts that join a live run: who asks for that, whether it is possible, and what the run remembers of it.

A host is announced at the door (door.py). If the run can have it, an agent is started there; once that has reported,
the host is in `run.json`, so that every later launcher knows it, and then the supervisor hears of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import replace

from meshmend.base.sockets import LOOPBACK, address_towards
from meshmend.errors import JobError
from meshmend.run.clusters.hosts import HERE, Host, address_of
from meshmend.run.door import Door
from meshmend.run.hosts.pool import Pool
from meshmend.run.news import HostRefused, News, NoAgentThere, StrangerRefused
from meshmend.run.spec import RunSpec


def refusal(spec: RunSpec, host: Host, invited: Collection[Host] = ()) -> str:
    """Say why a host cannot join a run after those that were invited before it; empty if it can."""
    again = f"stop the run and use --resume {spec.run} --hosts with all of them"
    names = [place.name for place in spec.places]
    if not spec.hosts or {HERE, "127.0.0.1"} & {*names}:
        return f"it runs on {names[0]!r}, which other hosts cannot reach by this name; {again}"
    if spec.mesh:
        return f"its workers are the chips of --mesh {spec.mesh}, and there are no more of those"
    if host.name in names:
        return f"host {host.name} is already part of it"
    if before := [one for one in invited if one.name == host.name]:
        return f"host {host.name} is being added to it already, with room for {before[0].slots}"
    if host.here:
        return f"{host.name} is its launcher's own host, which was not named in --hosts; {again}"
    if (left := spec.room - spec.ranks - sum(one.slots for one in invited)) < host.slots:
        return f"its messages have room for {left} more workers, and {host.name}:{host.slots} has more; {again}"
    return ""


class NewHosts:
    """The hosts that join one run."""

    def __init__(self, pool: Pool, tell: Callable[[News], None]) -> None:
        self._pool, self._tell = pool, tell
        self._door: Door | None = None

    def open(self) -> None:
        """Let hosts announce themselves, if the run's hosts have names by which others can reach this one."""
        spec = self._pool.spec
        if spec.hosts:
            with contextlib.suppress(OSError):  # no port, or no room for the note: then nobody can be announced
                self._door = Door(spec.folder, own_address(spec), self._refusal)

    def _refusal(self, host: Host, waiting: Collection[Host]) -> str:
        """As above, for the door, where these hosts wait to be invited."""
        return refusal(self._pool.spec, host, [*waiting, *self._pool.invited])

    def close(self) -> None:
        """Let no more hosts join."""
        if self._door is not None:
            self._door.close()

    def look(self) -> tuple[tuple[str, int], ...]:
        """Return the hosts that have become part of the run since the last call, and how many workers each has."""
        door = self._door
        while door is not None and door.strangers:
            self._tell(StrangerRefused(door.strangers.popleft()))
        while door is not None and door.hosts:
            self._pool.invite(door.hosts[0])
            door.hosts.popleft()  # after that, so that the door knows of it at any time
        arrived, failed = self._pool.arrivals()
        for host, why in failed:
            self._tell(NoAgentThere(host.name, why))
        return tuple((host.name, host.slots) for host in arrived if self._remember(host))

    def _remember(self, host: Host) -> bool:
        """Write a host down for later launchers; return whether it can join now."""
        spec = self._pool.spec
        why = refusal(spec, host)  # another one may have taken the room meanwhile
        spec = replace(spec, added=[*spec.added, host])
        if not why:
            try:
                spec.save()
            except JobError as error:
                why = str(error)
        if why:
            self._tell(HostRefused(host.name, why))
            self._pool.dismiss(host.name)
            return False
        self._pool.spec = spec
        return True


def own_address(spec: RunSpec) -> str:
    """Return an address of this host at which the others can reach it."""
    named = [address_of(host.name) for host in spec.places if host.here]
    # Many systems have their own name on loopback (Debian: 127.0.1.1), where no other host can reach it.
    routes = [address_towards(address_of(host.name)) for host in spec.places if not host.here]
    return next((one for one in [*named, *routes] if one and not one.startswith(LOOPBACK)), "127.0.0.1")
