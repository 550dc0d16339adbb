"""The web application: the page, a stream of what changes, `/metrics` for Prometheus, and the button of chaos.

    GET  /            the page                     GET  /state.json   all sections once
    GET  /stream      server-sent events           GET  /metrics      for Prometheus
    POST /kill        {"rank": 2}, with --allow-chaos

Reading needs the token, where there is one: in the query (`?token=…`), which the page's cookie then replaces, or as
`Authorization: Bearer …`. On loopback, where there is none, a request must name a loopback host: otherwise any web page
could have a browser read this one under a name of its own (DNS rebinding). Killing also needs the key that only
the page knows, in a header that other sites cannot send.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from meshmend.errors import MeshmendError
from meshmend.report.metrics.prometheus import CONTENT_TYPE, exposition
from meshmend.report.page.document import document
from meshmend.report.page.kill import kill
from meshmend.report.page.live import EVERY, Live

HEARTBEAT = 15.0
"""Seconds after which a stream without news sends an empty comment, so that nobody on the way closes it."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
COOKIE = "meshmend"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
           "X-Frame-Options": "DENY"}  # fmt: skip


@dataclass(frozen=True)
class Page:
    """The requests of one run's page."""

    live: Live
    allow_chaos: bool = False
    key: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    """What a request to kill must bring."""

    def app(self, token: str = "") -> ASGIApp:
        """The application, behind its guard."""
        routes = [
            Route("/", self.page),
            Route("/stream", self.stream),
            Route("/state.json", self.state),
            Route("/metrics", self.metrics),
            Route("/kill", self.kill, methods=["POST"]),
        ]
        return Guard(Starlette(routes=routes), token)

    async def page(self, request: Request) -> Response:
        """The page itself; its cookie spares the token from standing in further addresses."""
        settings = {"live": True, "chaos": self.allow_chaos, "key": self.key if self.allow_chaos else ""}
        text = document(self.live.history.name, "{}", json.dumps(settings))
        response = HTMLResponse(text, headers=HEADERS)
        if token := request.query_params.get("token"):
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response

    async def stream(self, request: Request) -> Response:
        """What changes, as it changes: each event is a JSON object of sections."""
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(request), media_type="text/event-stream", headers=headers)

    async def _events(self, request: Request) -> AsyncIterator[str]:
        known: dict[str, int] = {}
        quiet = 0.0
        while not await request.is_disconnected():
            await run_in_threadpool(self.live.refresh)
            if text := self.live.changes(known):
                quiet = 0.0
                yield f"data: {text}\n\n"
            elif quiet >= HEARTBEAT:
                quiet = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(EVERY)
            quiet += EVERY

    async def state(self, request: Request) -> Response:
        """All sections at once, for scripts."""
        del request
        await run_in_threadpool(self.live.refresh)
        return Response(self.live.changes({}), media_type="application/json", headers=HEADERS)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        del request
        await run_in_threadpool(self.live.refresh)
        text = await run_in_threadpool(exposition, self.live.history)
        return Response(text, headers={**HEADERS, "Content-Type": CONTENT_TYPE})

    async def kill(self, request: Request) -> Response:
        """Kill a worker, if that was allowed."""
        if not self.allow_chaos:
            return _refused(403, "this page was opened without --allow-chaos, so it kills nothing")
        if not hmac.compare_digest(request.headers.get("x-meshmend-key", "").encode(), self.key.encode()):
            return _refused(403, "only the page itself can kill workers: use its button")
        try:
            rank = (await request.json())["rank"]
            if type(rank) is not int:
                raise ValueError(rank)
        except (ValueError, KeyError, TypeError):
            return _refused(400, 'expected a JSON object such as {"rank": 2}')
        history = self.live.history
        try:
            return JSONResponse({"done": await run_in_threadpool(kill, history.name, history.folder, rank)})
        except MeshmendError as error:
            return _refused(409, str(error))


@dataclass(frozen=True)
class Guard:
    """Lets only those through who know the token or, where there is none, who are on this machine."""

    app: ASGIApp
    token: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        if self.token and not self._knows(request):
            refused = PlainTextResponse("meshmend: this page needs its token: open the address that was printed\n", 401)
            await refused(scope, receive, send)
        elif not self.token and request.url.hostname not in LOOPBACK:
            await PlainTextResponse("meshmend: this page answers to loopback names only\n", 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _knows(self, request: Request) -> bool:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = (request.query_params.get("token", ""), request.cookies.get(COOKIE, ""), bearer)
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in given)


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"why": why}, status)
