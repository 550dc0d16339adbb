"""The picture of the rank states in the docs is that of the table."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from meshmend.run.supervisor.ranks import TRANSITIONS, RankState

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("rank_states")


def test_the_picture_is_up_to_date(script: ModuleType) -> None:
    assert (DOCS / "pictures" / "rank-states.svg").read_text() == script.draw(), "run make pictures"


def test_the_picture_shows_every_state_and_every_move(script: ModuleType) -> None:
    words = [text.text for text in ElementTree.fromstring(script.draw()).iter("{http://www.w3.org/2000/svg}text")]
    assert {state.name.replace("_", " ") for state in RankState} <= {*words}
    moves = {(state, sign) for (state, sign), into in TRANSITIONS.items() if state is not into}
    assert {(state, sign) for state, sign, _ in script.shown()} == moves
