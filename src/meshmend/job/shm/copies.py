"""Copies of slices that pass from one worker of a host to another: a file that gets a second name, and loses its first.

2.copy-17   written by worker 2 for a new holder, complete before anybody hears of it
0.fill-17   the same file: worker 0 holds the slice from now on
"""

from __future__ import annotations

import os

from meshmend.job.shm.files import RankFiles


def hand_over(number: int, giver: RankFiles, taker: RankFiles) -> None:
    """Have a rank hold the copy that another one has exported; several may take the same one."""
    fresh = taker.path(f"fill-{number}.new")
    fresh.unlink(missing_ok=True)
    os.link(giver.path(f"copy-{number}"), fresh)
    os.replace(fresh, taker.path(f"fill-{number}"))
    fresh.unlink(missing_ok=True)  # replacing a file by itself leaves both names


def drop_copies(files: RankFiles) -> None:
    """Nobody needs the copies of a rank any more; one that is being written stays."""
    for path in files.folder.glob(f"{files.rank}.copy-*"):
        if path.suffix != ".new":
            path.unlink(missing_ok=True)
