"""Where the tormented run lives: on this host, or on network namespaces that reach each other by a real sshd."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

from meshmend.base.processes import kill
from meshmend.errors import JobError
from meshmend.job.shm import home as shm
from meshmend.job.shm import open_to_read
from meshmend.job.shm.inspect import Member, members
from meshmend.job.shm.sharded_memory import held_in
from meshmend.testbed import namespaces
from meshmend.testbed.namespaces import space_of

RUN = "chaos"
QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
SSHD = "/usr/sbin/sshd"
PATIENCE = 20.0
SHELL = (".bashrc", ".bash_profile", ".profile")


class Bed:
    """One host: the room itself."""

    hosts: tuple[str, ...] = ("localhost",)

    def __init__(self, home: Path, workers: int) -> None:
        self.home, self.workers = home, workers
        self.disk = home / "disk"
        # Hosts behind ssh do not have what kernels are chosen by here, and lanes would have other last bits there.
        for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
            del os.environ[name]
        os.environ.update(MESHMEND_RUNS=str(self.disk), **QUIET)

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.disk / RUN

    @property
    def far(self) -> tuple[str, ...]:
        """Hosts that can be lost without the launcher."""
        return self.hosts[1:]

    def places(self) -> list[str]:
        """The options that say where workers run."""
        return ["-n", str(self.workers)]

    def line(self, words: list[str]) -> list[str]:
        """The command that runs a command beside the launcher; the process it becomes is that of the command."""
        return words

    def members(self) -> list[Member]:
        """All ranks of the run that have memory, on whatever host."""
        return [one for host in self.hosts for one in self.members_on(host)]

    def members_on(self, host: str) -> list[Member]:
        """Those of one host."""
        with self.seeing(host):
            return members(RUN)

    def held(self) -> dict[int, frozenset[int]]:
        """The slices that each rank holds, where updates are sharded."""
        found = {}
        for host in self.hosts:
            with self.seeing(host):
                for one in members(RUN):
                    with contextlib.suppress(JobError, OSError):
                        found[one.rank] = held_in(open_to_read(RUN, one.rank).courier)
        return found

    @contextlib.contextmanager
    def seeing(self, host: str) -> Iterator[None]:
        """Meanwhile, the shared memory of this process is that host's."""
        before, shm.MEMORY = shm.MEMORY, self.memory(host)
        try:
            yield
        finally:
            shm.MEMORY = before

    def memory(self, host: str) -> Path:
        """Where one finds the /dev/shm of a host."""
        del host
        return Path("/dev/shm")

    def processes(self) -> list[int]:
        """All processes of the run."""
        return running(RUN)

    def lose(self, host: str) -> None:
        """Everything on a host ends at once, and its memory is gone."""
        victims = self.victims(host)
        while victims:
            for process in victims:
                kill(process)
            victims = self.victims(host)
        for path in self.memory(host).iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def victims(self, host: str) -> list[int]:
        """What ends with a host."""
        del host
        return self.processes()

    def boot(self, host: str) -> None:
        """It answers again."""

    def cut(self, host: str) -> None:
        """It is cut off, and nobody is told."""
        raise NotImplementedError

    def mend(self, host: str) -> None:
        """It is connected again."""
        raise NotImplementedError

    def left(self) -> list[str]:
        """What is left behind when the run is over."""
        found = [f"process {one}: {command(one)}" for one in self.processes()]
        return found + [str(path) for host in self.hosts for path in self.memory(host).glob("*")]

    def close(self) -> None:
        """End what is left."""
        for process in self.processes():
            kill(process)


class Namespaces(Bed):
    """Several hosts, with memory and networks of their own; only files and process numbers are shared."""

    def __init__(self, home: Path, workers: int, count: int) -> None:
        super().__init__(home, workers)
        self.hosts = tuple(ascii_lowercase[:count])
        self.hub = space_of("hub")
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        (home / "memory").mkdir()
        namespaces.wire(home, {host: f"10.78.0.{number}" for number, host in enumerate(self.hosts, 1)})
        self._keys()
        size = max(64, 16 * workers // count)
        for host in self.hosts:
            own = self.memory(host)
            own.mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=1777", "tmpfs", own], check=True)
            self.boot(host)

    def _keys(self) -> None:
        if not Path(SSHD).exists():
            sys.exit(f"there is no {SSHD}: install openssh-server")
        folder = self.home / "ssh"
        folder.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "allowed")
        Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/allowed\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100\nPrintMotd no\nLogLevel ERROR\n"
            f"SetEnv {' '.join(f'{name}={value}' for name, value in QUIET.items())}\n"
        )
        (folder / "ssh_config").write_text(
            f"Host *\nIdentityFile {folder}/user\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\n"
            "LogLevel ERROR\nBatchMode yes\nConnectTimeout 5\n"
        )

        for name in SHELL:  # what a user's shell does when it starts is not the run's fault, nor for a host to die in
            if (Path.home() / name).exists():
                subprocess.run(["mount", "--bind", "/dev/null", Path.home() / name], check=True)

    def places(self) -> list[str]:
        each = self.workers // len(self.hosts)
        names = ",".join(f"{host}:{each}" for host in self.hosts)
        return ["--hosts", names, "--launch-agent", f"ssh -F {self.home}/ssh/ssh_config"]

    def line(self, words: list[str]) -> list[str]:
        return namespaces.line(self.home, self.hosts[0], *words)

    def memory(self, host: str) -> Path:
        return Path("/dev/shm") / self.home.name / host

    def victims(self, host: str) -> list[int]:
        return namespaces.processes(space_of(host))

    def lose(self, host: str) -> None:
        super().lose(host)
        if host in self._servers:
            self._servers.pop(host).wait()

    def boot(self, host: str) -> None:
        line = namespaces.line(self.home, host, SSHD, "-D", "-e", "-f", f"{self.home}/ssh/sshd_config")
        with (self.home / f"sshd-{host}.log").open("ab") as log:
            self._servers[host] = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )
        until = time.monotonic() + PATIENCE
        while b":0016 00000000:0000 0A" not in read_in(host, "/proc/net/tcp") and time.monotonic() < until:
            time.sleep(0.05)

    def cut(self, host: str) -> None:
        ip("hub", f"link set to-{host} nomaster")

    def mend(self, host: str) -> None:
        ip("hub", f"link set to-{host} master bridge")

    def close(self) -> None:
        super().close()
        for host in self.hosts:
            self.lose(host)
            subprocess.run(["umount", "-l", self.memory(host)], capture_output=True)
        namespaces.remove(self.hub, *map(space_of, self.hosts))


def ip(host: str, words: str) -> None:
    """Have `ip` do something in a namespace."""
    subprocess.run(["ip", "-n", space_of(host), *words.split()], check=True, capture_output=True, timeout=PATIENCE)


def read_in(host: str, path: str) -> bytes:
    """What a file says there."""
    words = ["ip", "netns", "exec", space_of(host), "cat", path]
    return subprocess.run(words, capture_output=True, timeout=PATIENCE).stdout


def running(run: str) -> list[int]:
    """Processes that name the run in their command line or, as its workers, in their environment."""
    found = []
    mark, named = f"MESHMEND_RUN={run}".encode(), run.encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            ours = b"meshmend" in b" ".join(words) and named in words
            if ours or mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return [process for process in found if process != os.getpid()]


def command(process: int) -> str:
    """The beginning of its command line."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "gone"


def stop_all(processes: list[int]) -> None:
    """SIGTERM to every one, as a scheduler does it."""
    for process in processes:
        kill(process, signal.SIGTERM)
