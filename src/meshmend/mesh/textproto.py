"""Protocol buffers as text: a reader of messages, without a schema.

    name: "M0"  device_topology { dims: [ 8, 4 ] }

A message is a dictionary from each field to all its values, in order; a value is a word or again a message. The
functions at the top say which of the two a caller needs, and refuse the other in a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn, TypeVar, Union

from meshmend.errors import MeshError

Some = TypeVar("Some")
Value = Union[str, "Message"]
Message = dict[str, list[Value]]
"""Each field with all its values, in order."""
DEEPEST = 50
"""Messages within messages: far more than any descriptor has, and few enough for the stack."""
_TOKEN = re.compile(r"#[^\n]*|\s+|(?P<token>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[\w.+-]+|[{}\[\]:,;<>])")


def read(text: str) -> Message:
    """The message that a text holds."""
    return _message(_tokens(text), "", 0)


def messages(message: Message, field: str) -> list[Message]:
    """All values of a field, which are messages."""
    values = message.get(field, [])
    return [value if isinstance(value, dict) else _other(field, "a message in brackets") for value in values]


def words(message: Message, field: str) -> list[str]:
    """All values of a field, which are words or numbers."""
    return [value if isinstance(value, str) else _other(field, "a plain value") for value in message.get(field, [])]


def message_in(message: Message, field: str) -> Message:
    """The one message in a field."""
    return _only(messages(message, field), field)


def word_in(message: Message, field: str) -> str:
    """The one word in a field."""
    return _only(words(message, field), field)


def count(value: str, field: str, least: int = 1) -> int:
    """A word as a whole number."""
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
        raise MeshError(f"{field} has {value!r}, expected a whole number, {least} or more")
    return int(value)


def count_in(message: Message, field: str, least: int = 1) -> int:
    """The one whole number in a field."""
    return count(word_in(message, field), field, least)


def _only(values: list[Some], field: str) -> Some:
    if len(values) != 1:
        raise MeshError(f"the field {field} is missing or given twice")
    return values[0]


def _other(field: str, expected: str) -> NoReturn:
    raise MeshError(f"the field {field} needs {expected}")


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            line = text.count("\n", 0, at) + 1
            raise MeshError(f"line {line} is not textproto, at {text[at : at + 20].splitlines()[0]!r}")
        if match["token"]:
            yield match["token"]
        at = match.end()


def _message(tokens: Iterator[str], end: str, depth: int) -> Message:
    """Fields up to the closing bracket; names of fields are not checked, as newer descriptors may have more."""
    found: Message = {}
    for name in tokens:
        if name == end:
            return found
        if name in ",;":
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            _stop(name, "the name of a field")
        value = next(tokens, "")
        if value == ":":
            value = next(tokens, "")
        elif value not in ("{", "<"):
            _stop(value, f"a colon or a bracket after {name}")
        found.setdefault(name, []).extend(_values(value, tokens, depth + 1))
    if end:
        _stop("", end)
    return found


def _values(first: str, tokens: Iterator[str], depth: int) -> list[Value]:
    if depth > DEEPEST:
        raise MeshError(f"its brackets are nested more than {DEEPEST} deep")
    if first in ("{", "<"):
        return [_message(tokens, "}" if first == "{" else ">", depth)]
    if first != "[":
        if not first or first in "}]>:,;":
            _stop(first, "a value")
        return [first[1:-1] if first[0] in "\"'" else first]
    values: list[Value] = []
    for token in tokens:
        if token == "]":
            return values
        if token != ",":
            values += _values(token, tokens, depth + 1)
    _stop("", "]")


def _stop(token: str, expected: str) -> NoReturn:
    raise MeshError(f"{token!r} was found where {expected} was expected" if token else f"it ends before {expected}")
