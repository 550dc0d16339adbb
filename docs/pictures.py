"""Draws the pictures of README and docs again: `make pictures`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import api_page  # beside this script
import rank_states

import meshmend as mm
from meshmend.demo import demo

HERE = Path(__file__).parent


def main() -> None:
    folder = HERE / "pictures"
    folder.mkdir(exist_ok=True)
    for name, text, flow in (
        ("host-missing", "16x32 -4x2@6,12", 60),
        ("torus", "8x8 wrap=xy -chip@2,5 -link@5,1:5,2", 3),
    ):
        plan = mm.plan(text, algorithm="trees")
        mm.verify(plan)
        plan.draw(str(folder / f"{name}.svg"), flow=flow)
        print(f"drew {folder.relative_to(HERE.parent) / name}.svg")
    (folder / "rank-states.svg").write_text(rank_states.draw())
    print("drew docs/pictures/rank-states.svg")
    api_page.PAGE.write_text(api_page.page())
    print("wrote docs/api.md")
    with tempfile.TemporaryDirectory() as place:
        if demo(place):
            raise SystemExit("the demo did not keep its promises")
        shutil.copy(Path(place) / "demo.png", folder)


if __name__ == "__main__":
    main()
