"""`meshmend chaos`: random failures in a run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from meshmend.cli.app import app
from meshmend.run.chaos import KINDS


@app.command
def chaos(
    run: str,
    *,
    every: float = 5.0,
    kinds: Annotated[
        str,
        Parameter(
            help=f"Which, separated by commas: {', '.join(KINDS)}. flip needs 3 workers: where only "
            "two states differ, neither is known to be right."
        ),
    ] = "kill,hang,courier,mpirun",
    count: int | None = None,
    seed: int = 0,
) -> int:
    """Inject random failures into a run on this host, to see that it survives them.

    Parameters
    ----------
    run
        The run's name.
    every
        Seconds between two failures, on average.
    count
        How many failures; by default until the run ends.
    seed
        Seed of the random choices.

    """
    from meshmend import run as launch

    return launch.wreak(run, every=every, kinds=kinds.split(","), count=count, seed=seed)
