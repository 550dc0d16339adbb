"""Network namespaces by name: made, entered and removed, including those that a killed process has left behind.

A namespace is called `meshmend-PID-NAME`; PID is the process that owns it, so that stale ones can be told from those in
use. Unlike real machines, they share processes and files: only the network and the host's name are separate.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshmend.base.processes import is_alive, kill
from meshmend.errors import TestbedError

PREFIX = "meshmend-"
RUN = Path("/var/run/netns")
"""Where `ip netns` keeps them."""
MEMORY = Path("/dev/shm")
TOOLS = ("ip", "tc", "unshare", "mount", "hostname")
ENTER = str(Path(__file__).with_name("enter.sh"))


def space_of(name: str) -> str:
    """The namespace that this process calls so."""
    return f"{PREFIX}{os.getpid()}-{name}"


def why_not() -> str:
    """Say in a sentence why there can be no such namespaces here; empty if there can."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"{' and '.join(missing)} cannot be found: install iproute2 and util-linux"
    probe = space_of("probe")
    veth = ["link", "add", "one", "netns", probe, "type", "veth", "peer", "name", "two", "netns", probe]
    tbf = ["-n", probe, "qdisc", "add", "dev", "one", "root", "tbf", "rate", "1mbit", "burst", "4k", "limit", "4k"]
    try:
        for command in (["ip", "netns", "add", probe], ["ip", *veth], ["tc", *tbf]):
            tried = subprocess.run(command, capture_output=True, text=True)
            if tried.returncode:
                said = tried.stderr.strip().splitlines()
                return f"{shlex.join(command)!r} is refused here ({said[-1] if said else tried.returncode})"
    finally:
        remove(probe)
    return ""


def agent(home: Path) -> list[str]:
    """The words that, before a host and a command, run it in that host's namespace; `enter.sh` says what is in home."""
    return ["sh", ENTER, space_of(""), str(home)]


def line(home: Path, host: str, *command: str) -> list[str]:
    """The words that run a command as on that host; the process that they become is the command's own."""
    return [*agent(home), host, f"exec {shlex.join(command)}"]


def ip(lines: Sequence[str]) -> None:
    """Have `ip` do these things one after another."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"the namespaces could not be made: {done.stderr.strip()}")


def shell(space: str, text: str) -> None:
    """Have a shell do this in a namespace."""
    line = ["ip", "netns", "exec", space, "sh", "-e"]
    done = subprocess.run(line, input=text, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"the namespace {space} could not be set up: {done.stderr.strip()}")


def wire(home: Path, addresses: Mapping[str, str]) -> None:
    """Make a namespace for each host, with an address in a network of 254, and a bridge in `hub` that connects them."""
    hub = space_of("hub")
    ip([f"netns add {hub}", *(f"netns add {space_of(host)}" for host in addresses)])
    shell(hub, "ip link add bridge type bridge\nip link set bridge up")
    known = "".join(f"{address} {host}\n" for host, address in addresses.items())
    (home / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
    for host, address in addresses.items():
        end = f"ip link add eth0 type veth peer name to-{host} netns {hub}\nip addr add {address}/24 dev eth0"
        shell(space_of(host), f"{end}\nip link set lo up\nip link set eth0 up")
        shell(hub, f"ip link set to-{host} master bridge up")


def processes(*spaces: str) -> list[int]:
    """What runs in these."""
    return _running(_inodes(*spaces))


def _inodes(*spaces: str) -> set[int]:
    return {_inode(RUN / space) for space in spaces} - {0}


def _running(inside: set[int]) -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if inside and _inode(path / "ns" / "net") in inside]


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def remove(*spaces: str) -> None:
    """Remove namespaces with everything that runs in them, and the devices; missing ones do no harm.

    The name goes first: a process that entered after all were killed would keep the namespace alive.
    """
    inside = _inodes(*spaces)
    lines = "".join(f"netns del {space}\n" for space in spaces)
    subprocess.run(["ip", "-force", "-batch", "-"], input=lines, capture_output=True, text=True)
    _kill_all(inside)


def _kill_all(inside: set[int]) -> None:
    for _ in range(100):
        left = _running(inside)
        for process in left:
            kill(process, signal.SIGKILL)
        if not left:
            return


def existing(owner: int | None = None) -> list[str]:
    """The namespaces of one process, or of all, in our way of naming."""
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    names = [line.split()[0] for line in found.splitlines() if line.startswith(PREFIX)]
    return [name for name in names if owner_of(name) > 0 and owner in (None, owner_of(name))]


def owner_of(name: str) -> int:
    """The process in a namespace's or a folder's name; 0 if it has none."""
    number = name.removeprefix(PREFIX).partition("-")[0]
    return int(number) if number.isdigit() else 0


def make_home() -> Path:
    """A folder for a testbed's files, and one for its hosts' memory."""
    home = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-testbed-"))
    (home / "memory").mkdir()
    (MEMORY / home.name).mkdir()
    return home


def remove_home(home: Path) -> None:
    """Remove these again."""
    for path in (home, MEMORY / home.name):
        shutil.rmtree(path, ignore_errors=True)


def homes(owner: int | None = None) -> list[Path]:
    """The folders of one process's testbeds, or of all."""
    found = [path for place in (tempfile.gettempdir(), MEMORY) for path in Path(place).glob(f"{PREFIX}*-testbed-*")]
    return [path for path in found if owner_of(path.name) > 0 and owner in (None, owner_of(path.name))]


def remove_stale() -> list[str]:
    """Remove what killed processes have left, and say what it was."""
    stale = [space for space in existing() if not is_alive(owner_of(space))]
    remove(*stale)
    for home in homes():
        if not is_alive(owner_of(home.name)):
            remove_home(home)
    return stale
