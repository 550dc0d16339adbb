"""Settings for all tests, and the watch over what each of them leaves behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.leaks import PATIENCE, Watch, close_processes

settings.register_profile("meshmend", deadline=None, print_blob=True)
settings.load_profile("meshmend")


def pytest_configure() -> None:
    """Have children start with the usual signals, also under nohup or in the background of a shell.

    There SIGHUP and SIGINT are ignored, and children would inherit that. A handler is not inherited.
    """
    os.environ["MESHMEND_LOG_EVERY"] = "0"  # tests wait for steps by their lines
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves processes, shared memory or namespaces, and remove them before the next."""
    watch = Watch()
    with watch.marking():
        yield
    failed = request.node.stash.get(FAILED, False)
    remains = watch.remains(patience=5.0 if failed else PATIENCE)
    if failed or remains:
        close_processes()
    assert not remains, "left behind: " + "; ".join(remains)
