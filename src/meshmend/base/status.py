"""Exit statuses of a run and of its workers."""

from __future__ import annotations

DONE = 0
FAILED = 1
MISUSED = 2
"""A mistake in the script's use of meshmend, or in the command line."""
KILLED = -9
"""Of a worker: it was killed (SIGKILL), or its exit status is unknown."""
HALTED = 75
"""Stopped early with a checkpoint (EX_TEMPFAIL: try again later)."""
ABANDONED = 70
"""The launcher itself failed and left its workers alive, to be attached to (EX_SOFTWARE)."""
