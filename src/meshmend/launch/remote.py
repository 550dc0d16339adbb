"""An agent on another host, as the launcher sees it: the same words as `Agent`, over the launch agent's pipes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from meshmend.launch.agent import View
from meshmend.launch.hosts import remote_line
from meshmend.launch.lines import read_lines, write_line

SILENCE = 10.0
"""Seconds without a word after which a host counts as lost; agents speak every second."""


class Remote:
    """The workers of another host."""

    def __init__(self, run: str, folder: Path, host: str, launch_agent: str) -> None:
        self.host = host
        here = ["cd", os.getcwd()]
        command = [sys.executable, "-m", "meshmend.launch.agent", run, str(folder)]
        line = remote_line(launch_agent, host, here, command)
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._views: list[View] = []
        self._lines: list[tuple[int, str]] = []
        self._heard = time.monotonic()
        self._asked = self._did = 0
        self._lock = threading.Lock()
        self.closed = False
        """The agent has ended, or the line to it has."""
        threading.Thread(target=self._listen, name=f"agent on {host}", daemon=True).start()

    def _listen(self) -> None:
        buffer = bytearray()
        while True:
            select.select([self._from], [], [])
            messages = read_lines(self._from, buffer)
            if messages is None:
                self.closed = True
                return
            with self._lock:
                self._heard = time.monotonic()
                for message in messages:
                    if "views" in message:
                        self._views = [View(**view) for view in message["views"]]
                    self._lines += [(seat, line) for seat, line in message.get("output", [])]
                    self._did += "did" in message

    @property
    def ready(self) -> bool:
        """Whether it has ever spoken."""
        return bool(self._views) or self._did > 0

    @property
    def silent(self) -> bool:
        """Whether nothing was heard of it for long."""
        return time.monotonic() - self._heard > SILENCE

    def do(self, command: str, **values: Any) -> None:
        """Have the agent do something, and wait until it has; a host that does not answer is lost, not waited for."""
        self._asked += 1
        try:
            write_line(self._to, {"command": command, **values})
        except BrokenPipeError:
            self.closed = True
        deadline = time.monotonic() + SILENCE
        while self._did < self._asked and not self.closed and time.monotonic() < deadline:
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
        """Close the line; the agent ends, workers do not."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(SILENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
