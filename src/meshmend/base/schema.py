"""Untrusted JSON, checked against Python types: a `FormatError` says what is wrong.

    @dataclass(frozen=True)
    class Host:
        name: str
        slots: Annotated[int, Range(1)]

    checked(Host, {"name": "a", "slots": "4"})      FormatError: slots is "4", expected a whole number

Known types: bool, int, float, str, enums (by name), lists and sequences, dicts with text as keys, tuples (as lists),
dataclasses (as objects), and each of these or None. A whole number fits in 64 bits and a float is finite, unless
`Annotated` says otherwise. Nothing here copies more than the text holds.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from meshmend.errors import FormatError

T = TypeVar("T")
Reader = Callable[[Any, str], Any]
"""Turns a JSON value into one of a type; the text says where the value is."""
SHOWN = 60
"""Characters of a wrong value that an error shows."""


@dataclass(frozen=True)
class Range:
    """The least and the most that a whole number may be."""

    least: int = -(1 << 63)
    most: int = (1 << 63) - 1


@dataclass(frozen=True)
class Rule:
    """What else must hold of a value, in words and as a function."""

    what: str
    holds: Callable[[Any], object]


Count = Annotated[int, Range(0)]
"""A whole number that is not negative."""
Real = Annotated[float, "may be NaN or infinite"]
"""A float that may also be NaN or infinite."""


def loads(text: str | bytes) -> Any:
    """JSON; text that is none, or is nested too deeply, is a `FormatError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise FormatError("its JSON is nested too deeply") from None
    except ValueError as error:  # includes text that is not UTF-8, and numbers of thousands of digits
        raise FormatError(f"it is not JSON ({error})") from None


def checked(kind: type[T], values: Any, *, others: bool = False) -> T:
    """A dataclass from a JSON object; with `others`, fields that the class does not have are ignored."""
    if not isinstance(values, dict):
        raise FormatError(f"it is {shown(values)}, expected an object")
    found: T = kind(**field_values(kind, values, others=others))
    return found


def field_values(kind: type, values: Mapping[str, Any], *, others: bool = False) -> dict[str, Any]:
    """The checked values for the fields of a dataclass."""
    readers, needed = _fields(kind)
    if not needed <= values.keys():
        raise FormatError(f"{sorted(needed - values.keys())[0]} is missing")
    if not others and not values.keys() <= readers.keys():
        raise FormatError(f"{shown(sorted(values.keys() - readers.keys())[0])} is unknown")
    return {name: readers[name](value, name) for name, value in values.items() if name in readers}


@cache
def _fields(kind: type) -> tuple[dict[str, Reader], frozenset[str]]:
    hints = get_type_hints(kind, include_extras=True)
    known = [entry for entry in fields(kind) if entry.init]
    needed = (one.name for one in known if one.default is MISSING and one.default_factory is MISSING)
    return {entry.name: reader(hints[entry.name]) for entry in known}, frozenset(needed)


def reader(hint: Any) -> Reader:
    """What checks values of this type."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(*inside)
    if origin in (list, Sequence):
        return _items(reader(inside[0]))
    if origin is UnionType and len(inside) == 2 and inside[1] is NoneType:
        return _optional(reader(inside[0]))
    if origin is tuple and inside[1:] == (...,):
        items = _items(reader(inside[0]))
        return lambda value, where: tuple(items(value, where))
    if origin is tuple:
        return _tuple(lambda *found: found, [reader(one) for one in inside])
    if origin is dict:
        return _values(reader(inside[1]))
    if hint is bool or hint is str:
        return _plain(hint, {bool: "true or false", str: "text"}[hint])
    if hint is Any:
        return lambda value, _: value
    if hint is int:
        return _whole(Range())
    if hint is float:
        return _float(finite=True)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _name(hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _tuple(hint, [reader(one) for one in get_type_hints(hint, include_extras=True).values()])
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value, where: _inner(hint, value, where)
    raise TypeError(f"no reader for {hint}")


def _annotated(hint: Any, note: Any) -> Reader:
    if isinstance(note, Range):
        return _whole(note)
    return _ruled(reader(hint), note) if isinstance(note, Rule) else _float(finite=False)


def _ruled(inside: Reader, rule: Rule) -> Reader:
    def read(value: Any, where: str) -> Any:
        found = inside(value, where)
        if not rule.holds(found):
            raise wrong(where, value, rule.what)
        return found

    return read


def _plain(kind: type, what: str) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise wrong(where, value, what)
        return value

    return read


def _whole(limits: Range) -> Reader:
    def read(value: Any, where: str) -> int:
        if type(value) is not int:
            raise wrong(where, value, "a whole number")
        if not limits.least <= value <= limits.most:
            raise wrong(where, value, f"a number from {limits.least} to {limits.most}")
        return value

    return read


def _float(*, finite: bool) -> Reader:
    def read(value: Any, where: str) -> float:
        if type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if type(value) is not float or (finite and not math.isfinite(value)):
            raise wrong(where, value, "a finite number" if finite else "a number")
        return value

    return read


def _name(kind: type[Enum]) -> Reader:
    def read(value: Any, where: str) -> Enum:
        if type(value) is not str or value not in kind.__members__:
            raise wrong(where, value, f"one of {', '.join(kind.__members__)}")
        return kind[value]

    return read


def _items(inside: Reader) -> Reader:
    def read(value: Any, where: str) -> list[Any]:
        if type(value) is not list:
            raise wrong(where, value, "a list")
        return [inside(one, where) for one in value]

    return read


def _values(inside: Reader) -> Reader:
    def read(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(where, value, "an object")
        return {name: inside(one, where) for name, one in value.items()}

    return read


def _optional(inside: Reader) -> Reader:
    return lambda value, where: None if value is None else inside(value, where)


def _tuple(kind: Callable[..., tuple[Any, ...]], inside: Sequence[Reader]) -> Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(inside):
            raise wrong(where, value, f"a list of {len(inside)}")
        return kind(*(read(one, where) for read, one in zip(inside, value, strict=True)))

    return read


def _inner(kind: type[T], value: Any, where: str) -> T:
    try:
        return checked(kind, value)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None


def wrong(where: str, value: Any, what: str) -> FormatError:
    """The error for a value that is not what it should be."""
    return FormatError(f"{where} is {shown(value)}, expected {what}")


def shown(value: Any) -> str:
    """A value of JSON, short enough for a sentence and without control characters."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, int) and abs(value) >> 128:
        return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
