"""An agent on another host, as the launcher sees it: the same words as `Agent`, over the launch agent's pipes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from meshmend.errors import JobError
from meshmend.run.agent.messages import (
    BEAT,
    VERSION,
    Beat,
    Command,
    Hello,
    command,
    pack,
    read_lines,
    refusal,
    unpack,
    write_line,
)
from meshmend.run.agent.observation import Observation as View
from meshmend.run.hosts.hosts import remote_line
from meshmend.run.hosts.probe import Probe

SILENCE = 10.0
"""Seconds without a word after which a host counts as lost; agents speak every second."""
QUIET = 2.5
"""Seconds without a word after which nothing is decided about a host until it speaks again, or is lost."""


class Remote:
    """The workers of another host."""

    def __init__(self, run: str, folder: Path, host: str, launch_agent: str) -> None:
        self.host = host
        here = ["cd", os.getcwd()]
        command = [sys.executable, "-m", "meshmend.run.agent", run, str(folder)]
        line = remote_line(launch_agent, host, here, command)
        self._errors = folder / "output" / f"agent-{host}.log"
        self._errors.parent.mkdir(parents=True, exist_ok=True)
        with self._errors.open("ab") as errors:
            self._said = errors.tell()
            try:
                self._process = subprocess.Popen(
                    line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
                )
            except OSError as error:
                raise JobError(f"the launch agent {launch_agent!r} cannot be run ({error.strerror})") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._views: list[View] = []
        self._lines: list[tuple[int, str]] = []
        self._asked = self._did = 0
        self._lock, self._mouth = threading.Lock(), threading.Lock()
        self.called = self._heard = time.monotonic()
        """When the agent was sent for."""
        self.ready = False
        """It has spoken."""
        self.closed = False
        """The agent has ended, or the line to it has, or it does not answer, or it is of another version."""
        self._refused = ""
        self._port = 0
        self.first: Probe | None = None
        """Whether the host was there, on the network that sums take, when the agent came."""
        threading.Thread(target=self._listen, name=f"agent on {host}", daemon=True).start()

    def _listen(self) -> None:
        """Hear the agent, and let it know every second that it is still wanted."""
        buffer, spoken = bytearray(), 0.0
        while not self.closed:
            if select.select([self._from], [], [], BEAT)[0]:
                messages = read_lines(self._from, buffer)
                if messages is None:
                    break
                self._hear(messages)
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
                    self._port, self.ready = message.port, True
                    self.first = self.knock()
                    continue
                if message.observations is not None:
                    self._views = list(message.observations)
                self._lines += message.output
                self._did += message.did  # what was done is seen in the observations of the same message

    def _say(self, message: Command) -> None:
        with self._mouth:
            try:
                if not self.closed:
                    write_line(self._to, pack(message))
            except OSError:
                self.closed = True

    @property
    def lost(self) -> bool:
        """Whether another agent is needed there."""
        return self.closed or time.monotonic() - self._heard > SILENCE

    @property
    def quiet(self) -> bool:
        """Whether it has missed a word or two: then it is not known yet what is wrong there."""
        return not self.closed and time.monotonic() - self._heard > QUIET

    def knock(self) -> Probe:
        """Probe at the host's door."""
        return Probe(self.host, self._port)

    def why(self) -> str:
        """What the launch agent said last, in an error."""
        if self._refused:
            return self._refused
        said = self._errors.read_bytes()[self._said :].decode(errors="replace").strip().splitlines()
        ended = self._process.poll()
        return said[-1] if said else "it does not answer" if ended is None else f"it ended with status {ended}"

    def do(self, name: str, **values: Any) -> None:
        """Have the agent carry out a command, and wait until it has; one that does not answer is not asked again."""
        self.act(command(name, values))

    def act(self, message: Command) -> None:
        """Have the agent carry out a command, and wait until it has."""
        if self.closed:
            return
        self._asked += 1
        self._say(message)
        deadline = time.monotonic() + SILENCE
        while self._did < self._asked and not self.closed:
            if time.monotonic() > deadline:
                self.closed = True
            time.sleep(0.001)

    def look(self) -> list[View]:
        """How everyone was when the agent last spoke."""
        with self._lock:
            return list(self._views)

    def output(self) -> list[tuple[int, str]]:
        """Lines that workers have printed since the last time."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """End the agent, not its workers, and see it end: it does when its input does."""
        if not self.closed:
            self.closed = True
            self._hang_up()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SILENCE)
        self.drop()

    def drop(self) -> None:
        """End the line at once: there may be nobody at the other end of it."""
        self.closed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._process.stdin is not None and self._mouth.acquire(timeout=SILENCE):  # a beat may be stuck in the pipe
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._mouth.release()
