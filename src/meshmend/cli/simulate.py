"""`meshmend simulate`: what an all-reduce, a training step, or weeks of a fleet would cost."""

from __future__ import annotations

from cyclopts import App

from meshmend.cli.app import app

simulate = App(name="simulate", help="What an all-reduce, a step, or weeks of a fleet would cost.")
app.command(simulate)
