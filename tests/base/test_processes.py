"""A process is seen to end before its parent hears of it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

from meshmend.base.processes import ExitProbe, Identity, born, is_alive, is_exiting, is_here, running
from tests.processes import wait_for


def test_one_that_has_begun_to_end_is_told_from_one_that_lives() -> None:
    child = subprocess.Popen(["sleep", "60"])
    since = born(child.pid)
    who = Identity.of(child.pid)
    watch, other = ExitProbe(who), ExitProbe(replace(who, born=since + 1))
    assert not watch.is_exiting()
    assert is_alive(child.pid, since) and not is_exiting(child.pid, since)
    assert is_exiting(child.pid, since + 1)  # that one is gone, and its number is another's
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked yet
    assert is_exiting(child.pid, since) and watch.is_exiting()
    child.wait()
    assert is_exiting(child.pid, since) and watch.is_exiting()
    assert not other.is_exiting()  # it cannot be seen from here (another container's), so it is not known to end


def test_a_process_is_more_than_its_number() -> None:
    child = subprocess.Popen(["sleep", "60"])
    who = Identity.of(child.pid)
    assert (who.number, who.alive, who.visible, who.exiting) == (child.pid, True, True, False)
    for field in ("born", "boot", "space"):
        other = replace(who, **{field: getattr(who, field) + 1})
        other.kill()
        assert not other.alive and other.exiting and other.visible == (field == "born")
    assert child.poll() is None
    who.kill(signal.SIGTERM)
    assert child.wait(60) == -signal.SIGTERM
    assert not who.alive and who.exiting and Identity.of(child.pid) == Identity() != who
    who.kill()
    assert not Identity().alive


def test_a_group_outlives_its_leader_and_is_killed_by_who_that_was() -> None:
    line = ["sh", "-c", "sleep 60 & echo $!; exec cat"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdin is not None and leader.stdout is not None
        member, who = Identity.of(int(leader.stdout.readline())), Identity.of(leader.pid)
        leader.kill()
    assert member.alive and not who.alive
    replace(who, space=who.space + 1).kill_group()
    assert member.alive
    who.kill_group()
    wait_for(lambda: not member.alive)


def test_processes_are_found_by_their_words_on_this_host_alone() -> None:
    first, second = "61.5", f"61.{os.getpid()}"
    with subprocess.Popen(["sleep", first, second]) as child:
        wait_for(lambda: running(first, second) == [child.pid])  # its words are there a moment after it is
        assert is_here(child.pid)
        assert running(second, first) == [] == running(first, second[:-1])
        child.kill()
    assert not is_here(child.pid)
