"""`meshmend export`: the weights of a run as a file that others read."""

from __future__ import annotations

from pathlib import Path

from meshmend.base.units import plural
from meshmend.cli.app import app


@app.command
def export(run: str, out: Path, *, checkpoint: str = "", job: int | None = None, every: bool = False) -> int:
    """Write the weights of a run's last state as a safetensors file.

    Parameters
    ----------
    run
        The name of a run, its folder, or a checkpoint.
    out
        The file to write, such as weights.safetensors.
    checkpoint
        The name of a checkpoint that the script made with job.save, instead of the last one.
    job
        The job to take it from, if the script has several, one after another; by default the last.
    every
        Write all arrays of the state, including the optimizer's, if it was shared as PyTorch objects.

    """
    from meshmend.job.loading import checkpoint_of
    from meshmend.job.loading import export as write

    count, nbytes = write(run, out, checkpoint, every=every, job=job)
    print(f"{out}: {plural(count, 'array')}, {nbytes / 1e6:.6g} MB, from {checkpoint_of(run, checkpoint, job)}")
    return 0
