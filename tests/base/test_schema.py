"""JSON against types: what fits is read, and what does not is named."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.base.schema import Count, Range, Real, Rule, checked, loads
from meshmend.errors import FormatError
from tests.strategies import damaged, damaged_bytes


class Colour(Enum):
    RED = auto()


class Pair(NamedTuple):
    low: int
    high: Count = 0


@dataclass(frozen=True)
class Inner:
    name: str


@dataclass(frozen=True)
class Thing:
    flag: bool
    number: Annotated[int, Range(-1, 9)]
    share: float
    loss: Real
    colour: Colour
    pair: Pair
    inner: list[Inner]
    by: Annotated[list[list[int]], Rule("pairs", lambda by: all(len(run) == 2 for run in by))]
    times: dict[str, float] = field(default_factory=dict)


GOOD: dict[str, Any] = {
    "flag": True, "number": 9, "share": 1, "loss": float("nan"), "colour": "RED", "pair": [1, 2],
    "inner": [{"name": "a"}], "by": [[0, 1]], "times": {"a": 0.5},
}  # fmt: skip


def test_what_fits_is_read() -> None:
    found = checked(Thing, GOOD)
    assert found.pair == Pair(1, 2) and found.inner == [Inner("a")] and found.colour is Colour.RED
    assert type(found.share) is float


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flag", 1), ("number", True), ("number", 10), ("number", "9"), ("number", 1.0), ("share", float("inf")),
        ("share", 10**400), ("share", None), ("loss", "nan"), ("colour", "BLUE"), ("colour", ["RED"]), ("pair", [1]),
        ("pair", [1, -1]), ("pair", {"low": 1}), ("inner", [{}]), ("inner", [{"name": "a", "more": 1}]), ("by", [[0]]),
        ("inner", "a"), ("times", []), ("times", {"a": "b"}), ("number", 2**70), ("pair", [2**63, 0]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(field: str, value: object) -> None:
    with pytest.raises(FormatError, match=field):
        checked(Thing, {**GOOD, field: value})


def test_fields_may_be_missing_or_unknown_only_where_that_is_said() -> None:
    assert checked(Thing, {name: value for name, value in GOOD.items() if name != "times"}).times == {}
    with pytest.raises(FormatError, match="flag is missing"):
        checked(Thing, {name: value for name, value in GOOD.items() if name != "flag"})
    with pytest.raises(FormatError, match="more"):
        checked(Thing, {**GOOD, "more": 1})
    assert checked(Thing, {**GOOD, "more": 1}, others=True).flag


@given(st.data())
def test_any_damage_is_a_sentence_or_a_value_of_the_type(data: st.DataObject) -> None:
    try:
        found = checked(Thing, data.draw(damaged(GOOD)))
    except FormatError as error:
        assert "\n" not in str(error) and "\0" not in str(error) and len(str(error)) < 200
    else:
        assert isinstance(found.number, int) and -1 <= found.number <= 9 and isinstance(found.flag, bool)


@given(st.data())
def test_text_is_json_or_a_sentence(data: st.DataObject) -> None:
    try:
        loads(data.draw(damaged_bytes(json.dumps(GOOD).encode())))
    except FormatError as error:
        assert "\n" not in str(error)
