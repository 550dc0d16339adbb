"""`meshmend demo`: a training that survives three kills."""

from __future__ import annotations

from meshmend.cli.app import app


@app.command
def demo() -> int:
    """Train on digits with 4 workers, kill some, and show that nothing is lost."""
    from meshmend.demo import demo as play

    return play()
