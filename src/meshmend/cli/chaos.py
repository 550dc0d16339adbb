"""`meshmend chaos`: random failures in a run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from meshmend.cli.app import app
from meshmend.job.faults import KINDS, chaos_kinds, default_kinds


def _kinds_help() -> str:
    """What `--kinds` may be, from the registry."""
    known = "; ".join(f"{name}: {KINDS[name].what}" for name in chaos_kinds())
    few = ", ".join(f"{name} needs {KINDS[name].members} workers" for name in chaos_kinds() if KINDS[name].members > 2)
    return f"Kinds of failure, separated by commas. {known}. {few}."


@app.command
def chaos(
    run: str,
    *,
    every: float = 5.0,
    kinds: Annotated[str, Parameter(help=_kinds_help())] = ",".join(default_kinds()),
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

    return launch.inject_failures(run, every=every, kinds=kinds.split(","), count=count, seed=seed)
