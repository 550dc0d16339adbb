"""Lines for the user in a stream that other programs print to as well: a mark tells them apart."""

from __future__ import annotations

import sys

MARK = "meshmend: "


def print_marked(text: str) -> None:
    """Print a line for the user."""
    print(f"{MARK}{text}", file=sys.stderr, flush=True)


def marked(line: str) -> str | None:
    """Return what a line has for the user; None if it is not marked."""
    return line.removeprefix(MARK).rstrip() if line.startswith(MARK) else None
