"""A process that does not feed its watchdog is killed, also when it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.processes import DEADLINE

BEGIN = """
import ctypes, os, signal, time
from meshmend.base import watchdog
from meshmend.base.watchdog import Watchdog

def left(dog):
    setting = watchdog._Setting()
    failed = ctypes.CDLL(None).timer_gettime(dog._timer, ctypes.byref(setting))
    return None if failed else setting.first[0]
"""
STUCK = {
    "stopped": "Watchdog(0.2); os.kill(os.getpid(), signal.SIGSTOP)",
    "waiting": "Watchdog(0.2); time.sleep(1000)",
    "ignoring": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 14, 15)]; Watchdog(0.2); time.sleep(1000)",
}


def ended(code: str) -> int:
    with subprocess.Popen([sys.executable, "-c", BEGIN + code]) as child:
        try:
            return child.wait(DEADLINE)
        finally:
            child.kill()


@pytest.mark.parametrize("how", STUCK)
def test_one_that_does_not_feed_it_is_killed(how: str) -> None:
    assert ended(STUCK[how]) == -signal.SIGKILL


def test_food_lasts_as_long_each_time_and_a_fork_has_no_watchdog() -> None:
    code = """
dog = Watchdog(1000)
watchdog._set(dog._timer, 500)
assert left(dog) <= 500
dog.feed()
assert left(dog) > 500
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
assert left(dog) is None
"""
    assert ended(code) == 0


def test_where_the_system_has_no_such_timer_an_alarm_takes_its_place() -> None:
    assert ended("watchdog._create = lambda: None; Watchdog(0.2); time.sleep(1000)") == -signal.SIGALRM
