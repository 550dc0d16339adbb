"""Several hosts on one machine: Linux network namespaces with names and addresses of their own, joined by a bridge.

A host is a namespace `meshmend-PID-HOST` with one device; PID is the test's, so that what a killed test has left can be
told and removed. Processes and files are not apart as on real hosts: an agent must touch its own seats only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from meshmend.train.processes import kill, lives
from tests.launch import distant
from tests.launch.jobs import wait_for

PREFIX = "meshmend-"
ETC = Path("/etc/netns")
"""`ip netns exec` shows what lies here in the place of /etc."""
AGENT = f"{sys.executable} {distant.__file__}"


def why_not() -> str:
    """Why there can be no such hosts here; empty where there can."""
    if not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        return "needs ip (iproute2), unshare and hostname"
    name = f"{PREFIX}{os.getpid()}-probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"may not make network namespaces: {tried.stderr.strip()}"
    tried = subprocess.run(
        ["ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two"], capture_output=True, text=True
    )
    _ip("netns", "del", name)
    return f"cannot make veth pairs: {tried.stderr.strip()}" if tried.returncode else ""


class Hosts:
    """Hosts of these names, while it is open."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names = names
        self._log = folder / "hosts.log"
        self.temporary = folder / "tmp"
        """What /tmp is on real hosts."""
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Hosts:
        remove_stale()
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
        hub = _space("hub")
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(self.names, 1)}
        known = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())
        for name, address in addresses.items():
            space = _space(name)
            _ip("netns", "add", space)
            (ETC / space).mkdir(parents=True, exist_ok=True)
            (ETC / space / "hosts").write_text(known)
            _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", f"to-{name}", "netns", hub)
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", hub, "link", "set", f"to-{name}", "master", "bridge", "up")
        for name in self.names:
            self.boot(name)

    def line(self, host: str, *command: str) -> list[str]:
        """The words that run a command as on that host."""
        named = f'hostname {host} && exec "$@"'
        return ["ip", "netns", "exec", _space(host), "unshare", "--uts", "sh", "-c", named, "sh", *command]

    def boot(self, host: str) -> None:
        """Make a host reachable for the launch agent; its environment is bare, as with ssh."""
        self.temporary.mkdir(exist_ok=True)
        bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        bare["TMPDIR"] = str(self.temporary)
        with self._log.open("ab") as log:
            self._servers[host] = subprocess.Popen(
                self.line(host, sys.executable, distant.__file__, "serve"), env=bare, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        wait_for(lambda: self._listens(host))

    def _listens(self, host: str) -> bool:
        found = subprocess.run(["ip", "netns", "exec", _space(host), "cat", "/proc/net/tcp"], capture_output=True)
        return f":{distant.PORT:04X} 00000000:0000 0A" in found.stdout.decode()

    def cut(self, host: str) -> None:
        """Cut a host off; as when a cable breaks far away, nobody is told."""
        _ip("-n", _space("hub"), "link", "set", f"to-{host}", "nomaster")

    def mend(self, host: str) -> None:
        """Connect it again."""
        _ip("-n", _space("hub"), "link", "set", f"to-{host}", "master", "bridge")

    def crash(self, host: str) -> None:
        """Lose a host with all that runs on it."""
        self.cut(host)
        self._end(host)

    def processes(self, host: str) -> dict[int, str]:
        """What runs on a host: command lines by number."""
        found = {}
        for process in _processes(_space(host)):
            try:
                found[process] = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def _end(self, host: str) -> None:
        _empty(_space(host))
        if host in self._servers:
            self._servers.pop(host).wait()

    def close(self) -> None:
        for name in self.names:
            self._end(name)
        for name in (*self.names, "hub"):
            _remove(_space(name))


def remove_stale() -> None:
    """Remove the hosts of tests that were killed."""
    for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines():
        space = line.split()[0]
        number = space.removeprefix(PREFIX).partition("-")[0]
        if space.startswith(PREFIX) and number.isdigit() and not lives(int(number)):
            _empty(space)
            _remove(space)


def _space(name: str) -> str:
    return f"{PREFIX}{os.getpid()}-{name}"


def _processes(space: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout
    return [int(number) for number in found.split()]


def _empty(space: str) -> None:
    """Kill what runs there, also what is started meanwhile."""
    for _ in range(100):
        left = _processes(space)
        if not left:
            return
        for process in left:
            kill(process, signal.SIGKILL)


def _remove(space: str) -> None:
    subprocess.run(["ip", "netns", "del", space], capture_output=True)
    shutil.rmtree(ETC / space, ignore_errors=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
