"""What launcher and agent say to each other may be anything: a message or a `FormatError`, and never a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.base.proofs import new_secret
from meshmend.errors import FormatError
from meshmend.job.shm import leave, ranks_of
from meshmend.run.agent import messages
from meshmend.run.agent.messages import (
    LONGEST,
    VERSION,
    Hello,
    Notice,
    Report,
    pack,
    read_lines,
    reports,
    unpack,
    unpack_command,
)
from meshmend.run.hosts.remote import Remote
from meshmend.run.supervisor.observations import Cause, RankSeen, WorkerError
from meshmend.telemetry import Epoch
from tests.processes import wait_for
from tests.run.test_agent import COMMANDS
from tests.strategies import damaged, damaged_bytes, modest

RUN = f"test-messages-{os.getpid()}"
WAIT = 60.0
SEEN = RankSeen(3, status=-9, cause=Cause.HANG, error=WorkerError(1, "e", "t", True))
FROM_AGENT = [pack(Hello(port=5, version=VERSION)), pack(Report(observations=[SEEN], did=2, output=[(3, "line")]))]
FROM_LAUNCHER = [pack(command) for command in COMMANDS]


def read_all(data: bytes) -> list[dict[str, object]]:
    """What a line of bytes says, however it is cut."""
    into, out = os.pipe()
    buffer, found = bytearray(), []
    writer = threading.Thread(target=lambda: (os.write(out, data), os.close(out)))
    writer.start()
    try:
        while (some := read_lines(into, buffer)) is not None:
            found += some
    finally:
        while os.read(into, 1 << 20):
            pass
        writer.join()
        os.close(into)
    return found


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_object_is_a_message_or_a_sentence(data: st.DataObject) -> None:
    agent = data.draw(st.booleans())
    values = data.draw(st.sampled_from(FROM_AGENT if agent else FROM_LAUNCHER).flatmap(damaged))
    try:
        found = unpack(values) if agent else unpack_command(values)
        assert isinstance(found, Hello | Report | Notice)
        assert json.loads(json.dumps(pack(found)))
    except FormatError as error:
        assert "\n" not in str(error) and len(str(error)) < 500


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_messages_or_a_sentence(data: st.DataObject) -> None:
    good = b"".join(json.dumps(json.loads(json.dumps(one, default=str))).encode() + b"\n" for one in FROM_LAUNCHER)
    changed = data.draw(damaged_bytes(good))
    try:
        with modest(16 << 20):
            for values in read_all(changed):
                unpack_command(values)
    except FormatError as error:
        assert "\n" not in str(error)


def test_a_line_without_an_end_is_given_up() -> None:
    with pytest.raises(FormatError), modest(4 * LONGEST):
        read_all(b"{" + b"x" * (LONGEST + (1 << 20)))


@pytest.mark.parametrize("lines", [0, 1, 1000])
def test_much_output_goes_in_messages_that_are_not_too_long(lines: int) -> None:
    """As of a worker that printed for long and then died; each character may take six bytes."""
    output = [(number % 4, "\0" * 5000) for number in range(lines)] + [(0, "\0" * (1 << 20))] * (lines > 1)
    sent = list(reports(output, Epoch(1)))
    assert [one for report in sent for one in report.output] == output
    assert all(len(json.dumps(pack(report))) < LONGEST for report in sent)


@contextmanager
def remote(tmp_path: Path, says: bytes) -> Iterator[Remote]:
    """An agent that says this, and then waits for its input to end."""
    (tmp_path / "says").write_bytes(says)
    script = tmp_path / "agent"
    script.write_text(f"#!/bin/sh\ncat {tmp_path / 'says'}\nexec cat > /dev/null\n")
    script.chmod(0o700)
    made = Remote(RUN, tmp_path, "far", str(script), new_secret())
    try:
        yield made
    finally:
        made.drop()
        for thread in threading.enumerate():
            if thread.name == "agent on far":
                thread.join(WAIT)


def test_an_agent_takes_no_modules_from_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started there, and in a folder that everybody may write to they are another user's."""
    shared, mark = tmp_path / "shared", tmp_path / "taken"
    shared.mkdir()
    for name in ("xxhash", "meshmend", "numpy", "sitecustomize"):
        (shared / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('taken')")
    script = tmp_path / "agent"
    script.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    script.chmod(0o700)
    monkeypatch.chdir(shared)
    made = Remote(RUN, tmp_path, "far", str(script), new_secret())
    try:
        wait_for(lambda: made.ready or made.closed)
        assert made.ready and not mark.exists(), made.why()
    finally:
        made.drop()
        for thread in threading.enumerate():
            if thread.name == "agent on far":
                thread.join(WAIT)


NONSENSE = [b"{\n", b'{"port": "x"}\n', b'{"did": 1e400}\n', b'{"port": 1' + b"9" * 5000 + b"}\n"]


@pytest.mark.parametrize("says", NONSENSE)
def test_an_agent_that_says_what_is_no_message_is_given_up_with_a_sentence(tmp_path: Path, says: bytes) -> None:
    with remote(tmp_path, b"Welcome to far!\n" + says) as agent:
        deadline = time.monotonic() + WAIT
        while not agent.closed and time.monotonic() < deadline:
            time.sleep(0.005)
        assert agent.closed and agent.lost and "far" in agent.why() and "\n" not in agent.why()
        assert agent.look() == [] and agent.output() == []


@pytest.mark.parametrize("says", [b'{"command": "Start"}\n', b'{"command": "Kill", "rank": 0, "cause": "X"}\n', b"{\n"])
def test_an_agent_that_is_told_what_is_no_command_ends_with_a_sentence(tmp_path: Path, says: bytes) -> None:
    line = [sys.executable, "-P", "-m", "meshmend.run.agent", RUN, str(tmp_path), "127.0.0.1"]
    secret = json.dumps(pack(messages.Secret(secret=new_secret().hex()))).encode() + b"\n"
    ended = subprocess.run(line, input=secret + says, capture_output=True, timeout=WAIT)
    assert ended.returncode == 1 and ended.stderr.count(b"\n") == 1 and b"Traceback" not in ended.stderr, ended.stderr
    assert isinstance(unpack(json.loads(ended.stdout.splitlines()[0])), Hello)
    assert ranks_of(RUN) == [] and leave(RUN)


@pytest.mark.parametrize("secret", ["", "xy", "00" * 200])
def test_a_secret_that_is_none_is_refused(secret: str) -> None:
    with pytest.raises(FormatError):
        unpack_command({"command": "Secret", "secret": secret})
