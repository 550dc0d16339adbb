"""`meshmend watch --export page.html`: the page of a run as one file, to attach to a ticket."""

from __future__ import annotations

import json
import time
from pathlib import Path

from meshmend.errors import PictureError
from meshmend.report.history import Reading
from meshmend.report.page.document import document
from meshmend.report.page.snapshot import Snapshots, to_json


def export(run: str, path: str, metric: str = "") -> int:
    """Write the page; return how many bytes it has."""
    reading = Reading(run, metric)
    reading.poll()
    sections = Snapshots(reading.history).sections()
    state = "{" + ",".join(f'"{name}":{to_json(section)}' for name, section in sections.items()) + "}"
    settings = json.dumps({"live": False, "saved": round(time.time())})
    text = document(reading.history.name, state, settings).encode()
    try:
        Path(path).write_bytes(text)
    except OSError as error:
        raise PictureError(
            f"cannot write {path!r} ({error.strerror}): give a path in a folder that exists and can be written"
        ) from None
    return len(text)
