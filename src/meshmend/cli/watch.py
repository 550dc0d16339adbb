"""`meshmend watch`: a run as one page."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from meshmend.base.units import size_text
from meshmend.cli.app import app


@app.command
def watch(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8642,
    token: str = "",
    export: str | None = None,
    metric: str = "",
    allow_chaos: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Show a run on one page: workers, loss and step time, incidents, checkpoints and the proof so far, live.

    The page is made from the run's folder alone and does not touch the run; finished runs can be opened too. It also
    serves /metrics for Prometheus.

    Parameters
    ----------
    run
        The run's name, or its folder.
    host
        The address to listen on, such as 0.0.0.0 for all; then the page asks for a token, which is in the address that
        is printed.
    port
        The port to listen on; 0 for any free one.
    token
        The token to ask for, 16 characters or more, instead of a random one.
    export
        Write the page to this HTML file, with everything in it, and exit.
    metric
        The metric to draw; by default the loss, or else the first one that the script commits.
    allow_chaos
        Show a button on every worker that kills it, to see that the run survives.

    """
    if export:
        from meshmend.report.page import export as write

        print(f"{export}: {size_text(write(run, export, metric))}")
        return 0
    from meshmend.report.page.server import serve

    return serve(run, host=host, port=port, token=token, allow_chaos=allow_chaos, metric=metric)
