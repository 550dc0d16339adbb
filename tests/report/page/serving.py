"""A page that is served in this process, for tests."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from meshmend.report.history import Reading
from meshmend.report.page.app import Page
from meshmend.report.page.live import Live
from meshmend.report.page.server import listen
from tests.processes import wait_for


@dataclass
class Served:
    port: int
    page: Page

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, names)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}

    def events(self) -> Iterator[dict[str, Any]]:
        """What the stream sends, event by event."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/stream")
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        try:
            while True:
                line = answer.readline().decode()
                if line.startswith("data: "):
                    yield json.loads(line[6:])
        finally:
            answer.close()
            connection.close()


@contextmanager
def served(run: str, token: str = "", *, allow_chaos: bool = False) -> Iterator[Served]:
    live = Live(Reading(run))
    live.refresh()
    page = Page(live, allow_chaos)
    sock = listen("127.0.0.1", 0)
    config = uvicorn.Config(page.app(token), log_level="error", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield Served(sock.getsockname()[1], page)
    finally:
        server.should_exit = True
        thread.join(60)
        sock.close()
