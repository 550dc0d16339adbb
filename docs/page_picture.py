"""Draws docs/pictures/watch.png: the page of a run, photographed in Chromium.

    meshmend run -n 4 --name shown --checkpoint-every 3s tests/jobs/regression.py steps=900 pause=0.02
    meshmend chaos shown --every 3 --count 5 --kinds kill,courier,mpirun,hang     # meanwhile, in another shell
    python docs/page_picture.py shown

A real run with real failures, so no two pictures are alike, and `make pictures` does not draw it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from meshmend.report.page import export

FLAGS = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]


def main(run: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        page = Path(folder) / "page.html"
        export(run, str(page))
        alone = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS, *alone])
        view = browser.new_page(viewport={"width": 1400, "height": 1000})
        view.goto(page.as_uri())
        view.screenshot(path=out, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else str(Path(__file__).parent / "pictures" / "watch.png"))
