"""Several hosts on one machine: network namespaces, as the testbed makes them, joined by a bridge.

Their memory and their processes are not apart as on real hosts: an agent must touch its own ranks only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from meshmend.testbed import namespaces
from meshmend.testbed.namespaces import space_of
from tests.jobs import distant
from tests.jobs.jobs import wait_for

AGENT = f"{sys.executable} {distant.__file__}"


class Hosts:
    """Hosts of these names, while it is open."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names = names
        self._home = folder
        self._log = folder / "hosts.log"
        self.temporary = folder / "tmp"
        """What /tmp is on real hosts."""
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Hosts:
        namespaces.remove_stale()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        namespaces.wire(self._home, {name: self.address(name) for name in self.names})
        for name in self.names:
            self.boot(name)

    def address(self, host: str, network: int = 0) -> str:
        """That of a host, in the network of its name or in another one."""
        return f"10.{77 + network}.0.{self.names.index(host) + 1}"

    def join_another_network(self) -> None:
        """Give each host an address in another network, and the hub one in both."""
        for name in self.names:
            _ip(name, f"link add eth1 type veth peer name other-{name} netns {space_of('hub')}")
            _ip(name, f"addr add {self.address(name, 1)}/24 dev eth1")
            _ip(name, "link set eth1 up")
            _ip("hub", f"link set other-{name} master bridge up")
        for network in (77, 78):
            _ip("hub", f"addr add 10.{network}.0.250/24 dev bridge")

    def run(self, space: str, *command: str) -> str:
        """What a command prints that runs in the network of a host, or of the hub."""
        line = ["ip", "netns", "exec", space_of(space), *command]
        return subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def popen(self, space: str, *command: str) -> subprocess.Popen[str]:
        """Start a command there."""
        line = ["ip", "netns", "exec", space_of(space), *command]
        return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self, host: str, *command: str) -> list[str]:
        """The words that run a command as on that host."""
        return namespaces.line(self._home, host, *command)

    def boot(self, host: str) -> None:
        """Make a host reachable for the launch agent; its environment is bare, as with ssh, but for where we are."""
        self.temporary.mkdir(exist_ok=True)
        kept = ("PATH", "HOME", "PYTHONPATH", "OPENBLAS_CORETYPE")  # the last, or its products have other bits there
        bare = {name: os.environ[name] for name in kept if name in os.environ}
        bare["TMPDIR"] = str(self.temporary)
        with self._log.open("ab") as log:
            self._servers[host] = subprocess.Popen(
                self.line(host, sys.executable, distant.__file__, "serve"), env=bare, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        wait_for(lambda: self._listens(host))

    def _listens(self, host: str) -> bool:
        found = subprocess.run(["ip", "netns", "exec", space_of(host), "cat", "/proc/net/tcp"], capture_output=True)
        return f":{distant.PORT:04X} 00000000:0000 0A" in found.stdout.decode()

    def cut(self, host: str) -> None:
        """Cut a host off; as when a cable breaks far away, nobody is told."""
        _ip("hub", f"link set to-{host} nomaster")

    def mend(self, host: str) -> None:
        """Connect it again."""
        _ip("hub", f"link set to-{host} master bridge")

    def crash(self, host: str) -> None:
        """Lose a host with all that runs on it."""
        self.cut(host)
        self._end(host)

    def reboot(self, host: str) -> None:
        """End all that runs on a host, which then answers again at once."""
        self._end(host)
        self.boot(host)

    def processes(self, host: str) -> list[int]:
        """What runs on a host."""
        return namespaces.processes(space_of(host))

    def _end(self, host: str) -> None:
        while found := self.processes(host):  # also what is started meanwhile
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        if host in self._servers:
            self._servers.pop(host).wait()

    def close(self) -> None:
        for name in self.names:
            self._end(name)
        namespaces.remove(*(space_of(name) for name in (*self.names, "hub")))


def _ip(host: str, words: str) -> None:
    subprocess.run(["ip", "-n", space_of(host), *words.split()], check=True, capture_output=True, text=True)
