"""Folders of runs: where they are, and whether this version of meshmend can read them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from meshmend.errors import FormatError

FORMAT = 2
"""Of everything in a run's folder. 1: events without epoch numbers. 2: every event has one."""
RUNS = "runs"
"""The folder that holds the folders of runs, in the working directory, unless MESHMEND_RUNS names another."""


def folder_of(run: str) -> Path:
    """Where a run keeps its files; a run that is given as a path is taken as it is."""
    if os.sep in run:
        return Path(run)
    return Path(os.environ.get("MESHMEND_RUNS", RUNS)) / run


def check_format(folder: Path) -> None:
    """Refuse the folder of a run that another version of meshmend has written; one without `run.json` passes."""
    try:
        found: Any = json.loads((folder / "run.json").read_text())["format"]
    except (OSError, ValueError, TypeError, KeyError):
        return  # whoever needs run.json says what is wrong with it
    if isinstance(found, int) and found != FORMAT:
        other = "an older" if found < FORMAT else "a newer"
        raise FormatError(
            f"the run in {str(folder)!r} was written in format {found} by {other} version of meshmend, and this "
            f"version reads format {FORMAT}: finish it with that version, or begin a new run"
        )
