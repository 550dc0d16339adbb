"""Serves the page until it is interrupted; the run does not notice."""

from __future__ import annotations

import ipaddress
import secrets
import socket

from meshmend.errors import JobError, MissingLibrary
from meshmend.report.history import Reading

SHORTEST = 16
"""Characters of a token that a user chooses."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str) -> str:
    """The token that the page asks for: none on loopback unless one was given, and a random one elsewhere."""
    if token and len(token) < SHORTEST:
        raise JobError(
            f"--token has {len(token)} characters: give {SHORTEST} or more, or leave it out for a random one"
        )
    return token or ("" if is_loopback(host) else secrets.token_urlsafe(24))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; what is in the way is told in a sentence."""
    if not 0 <= port <= 65535:
        raise JobError(f"--port {port}: expected 1 to 65535, or 0 for any free one")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(128)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise JobError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}): give another --host or --port; "
            "--port 0 takes any free one"
        ) from None
    return sock


def serve(run: str, *, host: str, port: int, token: str = "", allow_chaos: bool = False, metric: str = "") -> int:
    """Serve the page of a run; return when it is interrupted."""
    try:
        import uvicorn

        from meshmend.report.page.app import Page
        from meshmend.report.page.live import Live
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"meshmend watch needs {error.name}, which is not installed; run pip install 'meshmend[watch]' "
            "(--export FILE works without it)"
        ) from None
    token = check_token(host, token)
    live = Live(Reading(run, metric))
    live.refresh()
    page = Page(live, allow_chaos)
    sock = listen(host, port)
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    query = f"?token={token}" if token else ""
    print(f"meshmend: run {live.history.name} is at http://{name}:{sock.getsockname()[1]}/{query}", flush=True)
    print("meshmend: press Ctrl-C to close the page; that does not touch the run", flush=True)
    config = uvicorn.Config(page.app(token), log_level="error", timeout_graceful_shutdown=1, lifespan="off")
    with sock:
        uvicorn.Server(config).run(sockets=[sock])
    return 0
