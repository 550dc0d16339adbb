"""Settings for all tests, and the watch over what each of them leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.leaks import Watch

settings.register_profile("meshmend", deadline=None, print_blob=True)
settings.load_profile("meshmend")


def pytest_configure() -> None:
    """Have children start with the usual signals, also under nohup or in the background of a shell.

    There SIGHUP and SIGINT are ignored, and children would inherit that. A handler is not inherited.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Fail the test that leaves processes, shared memory or namespaces, and remove them before the next."""
    watch = Watch()
    with watch.marking():
        yield
    remains = watch.remains()
    assert not remains, "left behind: " + "; ".join(remains)
