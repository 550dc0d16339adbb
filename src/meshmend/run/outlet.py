"""Where the lines of a run go: to the terminal or pipe that the launcher was given, and always to a file too.

Nothing that a reader does may end a run or block it. A reader that is gone (EPIPE, EIO) gets nothing more. A thread
waits for a reader that does not read (a stopped `less`, a terminal after Ctrl-S), so the launcher need not: lines queue
up, lines that find no room are skipped with a note, and the file has them all, the oldest compressed
(base/log_files.py).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from typing import TextIO

from meshmend.base.clocks import READER
from meshmend.base.log_files import FULL, pack_away

ROOM = 10_000
"""How many writes may wait for a reader."""
KEPT = 1 << 20
"""How many bytes may wait for room on the disk."""


class Outlet:
    """The output of one launcher."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        """The file that keeps every line."""
        self._file = -1
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._news = threading.Condition()
        self._written = self._left_out = 0
        self._unread = False
        """The reader has stopped reading, and nothing more is written to it."""
        self._unkept = bytearray()
        """What is not in the file yet, because the disk is full."""
        self._thread: threading.Thread | None = None
        self._packer: threading.Thread | None = None
        self._packed = 0
        """Pieces of the file that have been compressed, or are being compressed."""

    def write(self, stream: TextIO | None, text: str) -> None:
        """Write whole lines, to the file immediately and to the stream as soon as its reader takes them."""
        with self._news:
            if len(self._unkept) < KEPT:
                self._unkept += text.encode(errors="replace")
            self.flush()
        if stream is None or self._unread:
            return
        try:
            number = stream.fileno()
        except (OSError, ValueError, AttributeError):  # not a real file: writing to it cannot block
            stream.write(text)
            stream.flush()
            return
        data = text.encode(stream.encoding or "utf-8", "replace")
        with self._news:
            if self._left_out and len(self._waiting) < ROOM // 2:
                note = f"meshmend: skipped {self._left_out} lines that were not read in time; they are in {self.path}\n"
                self._waiting.append((number, note.encode()))
                self._left_out = 0
            if self._left_out or len(self._waiting) >= ROOM:
                self._left_out += text.count("\n")
                return
            self._waiting.append((number, data))
            self._news.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="output", daemon=True)
            self._thread.start()
            atexit.register(self.drain)

    def drain(self) -> None:
        """Wait until everything is written, as long as the reader reads; write no more to a reader that does not."""
        with self._news:
            written, since = self._written, time.monotonic()
            while self._waiting:
                self._news.wait(READER / 10)
                if self._written != written:
                    written, since = self._written, time.monotonic()
                elif time.monotonic() - since > READER:
                    for number, _ in self._waiting:
                        _cut(number)
                    self._waiting.clear()
                    self._unread = True

    def flush(self) -> OSError | None:
        """Write to the file what was held back; return why that is not possible, if it is not."""
        with self._news:
            if self.path is None:
                self._unkept.clear()
            try:
                if self._unkept and self._file < 0 and self.path is not None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                while self._unkept:
                    del self._unkept[: os.write(self._file, self._unkept)]
                    self._pack(os.fstat(self._file).st_size)
            except OSError as error:
                return error
            return None

    def _pack(self, size: int) -> None:
        """Compress a file that has become long, in a thread, so that the launcher does not wait."""
        if size // FULL > self._packed and self.path is not None and not (self._packer and self._packer.is_alive()):
            self._packer = threading.Thread(target=pack_away, args=(self.path, size), name="log files", daemon=True)
            with contextlib.suppress(RuntimeError):  # no room for another thread: try later
                self._packer.start()
                self._packed = size // FULL

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._waiting:
                    self._news.wait()
                number, data = self._waiting[0]
            written = _write(number, data)
            with self._news:
                if self._unread:
                    return  # the reader was given up meanwhile: the number may belong to another file by now
                if not written:
                    _cut(number)
                self._waiting.popleft()
                self._written += 1
                self._news.notify_all()


def _write(number: int, data: bytes) -> bool:
    """Write to a file that may be a terminal or a pipe; return whether its reader is still there."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view) :]
        except BlockingIOError:  # another process that shares the pipe has made it non-blocking
            select.select([], [number], [], READER)
        except OSError:
            return False
    return True


def _cut(number: int) -> None:
    """Redirect a file to /dev/null: nothing that others print there, or Python at its exit, may fail or block."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
