"""Keeps the run alive: whatever ends its launcher, another one attaches to the workers or resumes the run."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bed import RUN, Bed

MESHMEND = [sys.executable, "-m", "meshmend", "run"]
DONE, ABANDONED, HALTED, REFUSED = 0, 70, 75, 2
NEXT = {-signal.SIGKILL: "--attach", 128 + signal.SIGKILL: "--attach", ABANDONED: "--attach", HALTED: "--resume"}
"""What follows the launcher's end, by its status."""
TRIES = 8
"""Lives in a row that may end within a few seconds."""
SHORT = 5.0


@dataclass(frozen=True)
class Life:
    """One launcher."""

    how: str
    status: int
    seconds: float

    @property
    def expected(self) -> bool:
        """Whether it ended as one may that was struck; one that could not attach since all are dead is refused."""
        return self.status in (DONE, *NEXT) or (self.status == REFUSED and self.how in ("--attach", "--resume"))


class Keeper(threading.Thread):
    """Runs `meshmend run`, with whatever follows it, until it is done or hopeless."""

    def __init__(self, bed: Bed, words: list[str], log: Path) -> None:
        super().__init__(name="keeper", daemon=True)
        self.bed, self.words, self.log = bed, words, log
        self.lives: list[Life] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.deaf = threading.Event()
        """Set: nobody reads what this launcher prints any more."""
        self.closing = False
        """Whether a halted run is to stay so."""

    def run(self) -> None:
        words, short = self.words, 0
        while True:
            how, began = words[0], time.monotonic()
            status = self._live(words)
            self.lives.append(Life(how, status, time.monotonic() - began))
            short = short + 1 if self.lives[-1].seconds < SHORT and status not in NEXT else 0
            if status == REFUSED and words is self.words:
                return  # nothing has struck it yet: it cannot begin, and would not if it were asked again
            if status == DONE or short > TRIES or (self.closing and status == HALTED):
                return
            other = "--resume" if how == "--attach" else "--attach"
            words = [NEXT.get(status, other), RUN]

    def _live(self, words: list[str]) -> int:
        line = self.bed.line([*MESHMEND, *words])
        self.deaf.clear()
        with self.log.open("ab") as log:
            log.write(f"== meshmend run {' '.join(words)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
            assert self.process.stdout is not None
            self._read(self.process.stdout, log)
            status = self.process.wait()
            log.write(f"== status {status}\n".encode())
        return status

    def _read(self, output: IO[bytes], log: IO[bytes]) -> None:
        """Keep what is printed, but for the steps."""
        with output:
            for line in iter(output.readline, b""):
                if b" step " not in line:
                    log.write(line)
                    log.flush()
                if self.deaf.is_set():
                    return  # closes the pipe

    @property
    def launcher(self) -> int:
        """The process that supervises the run now."""
        return self.process.pid if self.process is not None else 0

    @property
    def hopeless(self) -> bool:
        """Whether it has given up."""
        return not self.is_alive() and (not self.lives or self.lives[-1].status != DONE)
