"""An agent on another host, as the launcher sees it: the interface of `Agent`, over the launch agent's pipes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from meshmend.base.clocks import ANSWER_POLL, BEAT, HOST_QUIET, HOST_SILENCE
from meshmend.base.waiting import readable
from meshmend.errors import FormatError, JobError
from meshmend.run.agent.messages import (
    VERSION,
    Beat,
    Command,
    Hello,
    Notice,
    Secret,
    misunderstood,
    pack,
    read_lines,
    refusal,
    unpack,
    write_line,
)
from meshmend.run.clusters.hosts import address_of
from meshmend.run.clusters.ssh import Ssh
from meshmend.run.probe import Probe
from meshmend.run.supervisor.observations import RankSeen


@dataclass
class NoAgent:
    """Stands in for an agent that could not even be called: a full process table, no launch agent."""

    called: float
    reason: str
    ready: ClassVar[bool] = False
    closed: ClassVar[bool] = True
    first: ClassVar[None] = None

    def why(self) -> str:
        """Say why there is no agent."""
        return self.reason

    def drop(self) -> None:
        """Do nothing: there is no connection."""


UNSTOPPED = ["sh", "-c", 'trap "" INT TERM HUP; exec "$@"', "sh"]
"""Runs a command that ignores signals meant for the launcher. Not with `preexec_fn`: a fork of a process with a
framework's threads in it may hang."""


class Remote:
    """The workers of another host."""

    def __init__(self, run: str, folder: Path, host: str, launch_agent: str, secret: bytes) -> None:
        self.host, self._secret = host, secret
        self._known = address_of(host)
        """The address to which its name resolves here."""
        here = ["cd", os.getcwd()]
        command = [sys.executable, "-P", "-m", "meshmend.run.agent", run, str(folder), self._known or host]
        line = Ssh(launch_agent).run_on(host, here, command)
        self._errors = folder / "output" / f"agent-{host}.log"
        with _appending(self._errors) as errors:
            self._said = errors.tell()
            if not shutil.which(line[0]):
                raise JobError(f"the launch agent {launch_agent!r} cannot be run (there is no program {line[0]!r})")
            self._process = subprocess.Popen(
                [*UNSTOPPED, *line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._seen: list[RankSeen] = []
        self._lines: list[tuple[int, str]] = []
        self._asked = self._did = 0
        self._lock, self._mouth = threading.Lock(), threading.Lock()
        self.called = self._heard = time.monotonic()
        """When the agent was started."""
        self.ready = False
        """It has reported."""
        self.closed = False
        """The agent or its connection has ended, does not answer, or has another version."""
        self._refused = ""
        self._port = 0
        self._listens = ""
        self.living: Sequence[int] = ()
        """Processes of workers that were alive there before it."""
        self.attempt = 0
        """The latest attempt of which it has found workers there, alive or dead."""
        self.first: Probe | None = None
        """Whether the host could be reached over the network that sums use when the agent came up."""
        threading.Thread(target=self._listen, name=f"agent on {host}", daemon=True).start()

    def _listen(self) -> None:
        """Read what the agent reports, and tell it every second that the launcher is alive."""
        buffer, spoken = bytearray(), 0.0
        while not self.closed:
            if readable([self._from], BEAT):
                try:
                    messages = read_lines(self._from, buffer)
                    if messages is None:
                        break
                    self._hear(messages)
                except FormatError as error:
                    self._refused = misunderstood(self.host, error)
                    break
            if self.ready and time.monotonic() - spoken > BEAT:
                self._say(Beat())
                spoken = time.monotonic()
        self.closed = True
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _hear(self, lines: list[dict[str, Any]]) -> None:
        with self._lock:
            for message in map(unpack, lines):
                self._heard = time.monotonic()
                if isinstance(message, Hello):
                    if message.version != VERSION:
                        self._refused, self.closed = refusal(self.host, message.version), True
                        return
                    self._port, self._listens, self.living = message.port, message.address, message.living
                    self.attempt = message.attempt
                    self._say(Secret(secret=self._secret.hex()))
                    self.first, self.ready = self.probe(), True
                    continue
                if message.observations is not None:
                    self._seen = list(message.observations)
                self._lines += message.output
                self._did += message.did  # the observations in the same message show the effects

    def _say(self, command: Notice) -> None:
        with self._mouth:
            try:
                if not self.closed:
                    write_line(self._to, pack(command))
            except OSError:
                self.closed = True

    @property
    def lost(self) -> bool:
        """Whether the host needs another agent."""
        return self.closed or time.monotonic() - self._heard > HOST_SILENCE

    @property
    def quiet(self) -> bool:
        """Whether it has missed a report or two: the reason is not known yet."""
        return not self.closed and time.monotonic() - self._heard > HOST_QUIET

    def probe(self) -> Probe:
        """Probe the host."""
        return Probe(self.host, self._port, self._secret, self._known)

    @property
    def address(self) -> str:
        """An address of the host at which its agent was reached; empty if there is none, or it is not known yet."""
        return self._listens if self.first is not None and self.first.answer else ""

    def why(self) -> str:
        """Say why there is no agent: the last line that the launch agent printed."""
        if self._refused:
            return self._refused
        text = self._errors.read_bytes() if self._errors.exists() else b""
        said = text[self._said :].decode(errors="replace").strip().splitlines()
        ended = self._process.poll()
        return said[-1] if said else "it does not answer" if ended is None else f"it ended with status {ended}"

    def act(self, command: Command) -> None:
        """Have the agent carry out a command, and wait until it has; give up an agent that does not answer."""
        if self.closed:
            return
        self._asked += 1
        self._say(command)
        deadline = time.monotonic() + HOST_SILENCE
        while self._did < self._asked and not self.closed:
            if time.monotonic() > deadline:
                self.closed = True
            time.sleep(ANSWER_POLL)

    def look(self) -> list[RankSeen]:
        """Return the ranks of that host, as the agent last reported them."""
        with self._lock:
            return list(self._seen)

    def output(self) -> list[tuple[int, str]]:
        """Return the lines that workers have printed since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """Stop the agent, but not its workers, and wait for it: it exits when its input ends."""
        if not self.closed:
            self.closed = True
            self._hang_up()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(HOST_SILENCE)
        self.drop()

    def drop(self) -> None:
        """Cut the connection immediately: the other end may be gone."""
        self.closed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._process.stdin is not None and self._mouth.acquire(
            timeout=HOST_SILENCE
        ):  # a beat may be stuck in the pipe
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._mouth.release()


def _appending(path: Path) -> IO[bytes]:
    """Open the file for a launch agent's output; /dev/null if there is no room for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError:
        return open(os.devnull, "ab")
