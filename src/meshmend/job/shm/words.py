"""What a record in shared memory is made of: typed words, and mailboxes of several words.

A word is an aligned 64-bit integer, so the processor writes it whole. A record is a class whose fields are its words:

    class WorkerRecord(Record):
        step = Int()
        saving = Flag()
        state_given = Mailbox(StateGiven)

Only a record that is also `Writable` can be written. Its owner opens it as such, all others open it read-only: the
type checker rejects a write to another process's record, and the memory under it is read-only, so the write raises.

A **mailbox** holds one message: several words that belong together, under a number that tells messages apart.

    │ number │ how many words follow │ body … │

The number is odd while the body is being written, and even afterwards. A reader that sees an odd number, or another
number after it has read the body than before, has no message. A writer that is killed halfway leaves an odd number, and
the next writer continues from there, so no two messages of a mailbox ever have the same number.

Stores become visible in the order they are made on x86-64; each one here is also a call into the interpreter.

Any process of the user may have written anything there, such as a program that writes past the end of its arrays. An
impossible word raises a `JobError`, and no word makes a reader take more time or memory than the record has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, get_origin, get_type_hints, overload

from meshmend.base.processes import Identity
from meshmend.errors import JobError
from meshmend.job.protocol.rounds import MOST_LANES

E = TypeVar("E", bound=IntEnum)


class Words(Protocol):
    """Storage for a record: a memoryview of shared memory, or a list in tests."""

    def __getitem__(self, place: int, /) -> int: ...
    def __setitem__(self, place: int, value: int, /) -> None: ...


class Record:
    """The words of one owner, as any process may read them."""

    __slots__ = ("_words",)
    fields: ClassVar[dict[str, Field[Any, Any]]] = {}
    size: ClassVar[int] = 0
    """Words in the record."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def __init_subclass__(cls) -> None:
        own = {name: field for name, field in vars(cls).items() if isinstance(field, Field)}
        cls.fields, place = {**cls.fields, **own}, cls.size
        for field in own.values():
            field.place, place = place, place + field.size
        cls.size = place

    @classmethod
    def initial(cls) -> list[int]:
        """Return the words of a record that has not been written to yet."""
        words = [0] * cls.size
        for field in cls.fields.values():
            words[field.place] = field.initial
        return words


Got = TypeVar("Got")
Put = TypeVar("Put", contravariant=True)


class Field(Generic[Got, Put]):
    """One field of a record; `place` is its first word."""

    size = 1
    initial = 0
    place = 0

    @overload
    def __get__(self, record: None, kind: type[Record]) -> Self: ...
    @overload
    def __get__(self, record: Record, kind: type[Record]) -> Got: ...
    def __get__(self, record: Record | None, kind: type[Record]) -> Self | Got:
        return self if record is None else self.load(record._words)

    def __set__(self, record: Writable, value: Put) -> None:
        self.store(record._words, value)

    def load(self, words: Words) -> Got:
        """Read it."""
        raise NotImplementedError

    def store(self, words: Words, value: Put) -> None:
        """Write it."""
        raise NotImplementedError


class Writable(Record):
    """A record in the hands of its owner."""

    __slots__ = ()


class Int(Field[int, int]):
    """A whole number."""

    def __init__(self, initial: int = 0) -> None:
        self.initial = initial

    def load(self, words: Words) -> int:
        return words[self.place]

    def store(self, words: Words, value: int) -> None:
        words[self.place] = value


class Flag(Field[bool, bool]):
    """Yes or no."""

    def load(self, words: Words) -> bool:
        return words[self.place] != 0

    def store(self, words: Words, value: bool) -> None:
        words[self.place] = 1 if value else 0


class Time(Field[float, float]):
    """Seconds on a clock, kept as nanoseconds; 0.0 means none."""

    def load(self, words: Words) -> float:
        return words[self.place] / 1e9

    def store(self, words: Words, value: float) -> None:
        words[self.place] = int(value * 1e9)


class Choice(Field[E, E]):
    """One of an enumeration, whose member 0 is the initial one."""

    def __init__(self, kind: type[E]) -> None:
        self.kind = kind

    def load(self, words: Words) -> E:
        return _member(self.kind, words[self.place])

    def store(self, words: Words, value: E) -> None:
        words[self.place] = int(value)


class Process(Field[Identity, Identity]):
    """Which process. Its number is 0 while the rest is being written, so no number ever has another one's birth."""

    size = 4

    def load(self, words: Words) -> Identity:
        place = self.place
        while True:
            number = words[place]
            found = Identity(number, words[place + 1], words[place + 2], words[place + 3])
            if words[place] == number:
                return found

    def store(self, words: Words, value: Identity) -> None:
        place = self.place
        words[place] = 0
        words[place + 1], words[place + 2], words[place + 3] = value.born, value.boot, value.space
        words[place] = value.number


class Stamp(Field[tuple[int, int, int], tuple[int, int, int]]):
    """A round (or -1 for none), a world and a shrink in one word, so that nobody ever reads two of them torn apart."""

    widths = (31, 20, 12)
    """Bits of each."""

    def load(self, words: Words) -> tuple[int, int, int]:
        _, world, shrink = self.widths
        word = words[self.place]
        return (word >> world + shrink) - 1, word >> shrink & (1 << world) - 1, word & (1 << shrink) - 1

    def store(self, words: Words, value: tuple[int, int, int]) -> None:
        word, (round, *rest) = 0, value
        for number, width in zip((round + 1, *rest), self.widths, strict=True):
            if not 0 <= number < 1 << width:
                raise JobError(f"round, world or shrink counter overflow {value}; resume the run to reset the counters")
            word = word << width | number
        words[self.place] = word


LAST = (1 << 63) - 1
"""The largest number of a word."""
LANES_PER_WORD = 32


@dataclass(frozen=True)
class Message:
    """The body of a mailbox: a word for each field, and more for the last one if that is a tuple.

    A tuple is a bitmap of lanes, unless the message has `room` for that many plain numbers.
    """

    kinds: ClassVar[list[type[Any]]]
    has_tuple: ClassVar[bool]
    room: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        kinds = [kind for kind in get_type_hints(cls).values() if get_origin(kind) is not ClassVar]
        cls.has_tuple = bool(kinds) and not isinstance(kinds[-1], type)
        cls.kinds = kinds[:-1] if cls.has_tuple else kinds

    @classmethod
    def most(cls) -> int:
        """Words it takes at most."""
        return len(cls.kinds) + (cls.room or MOST_LANES // LANES_PER_WORD if cls.has_tuple else 0)

    def words(self) -> list[int]:
        """The message as words."""
        values = list(vars(self).values())
        more = values.pop() if self.has_tuple else ()
        return [*map(int, values), *(more if self.room else pack_lanes(more))]

    @classmethod
    def of(cls, words: Sequence[int]) -> Self:
        """The message that was written as these words."""
        if len(words) < len(cls.kinds):
            raise damaged(len(words), f"at least {len(cls.kinds)} words of a {cls.__name__}")
        values: list[Any] = [
            _member(kind, word) if issubclass(kind, IntEnum) else kind(word)
            for kind, word in zip(cls.kinds, words, strict=False)
        ]
        if cls.has_tuple:
            more = words[len(values) :]
            values.append(tuple(more) if cls.room else unpack_lanes(more))
        make: Callable[..., Self] = cls
        return make(*values)


M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Mail(Generic[M]):
    """A message and its number, by which the receiver refers to it."""

    number: int
    body: M


class Mailbox(Field["Mail[M] | None", M], Generic[M]):
    """A message of the record's owner; posting replaces the one before."""

    def __init__(self, kind: type[M]) -> None:
        self.kind = kind
        self.size = 2 + kind.most()

    def load(self, words: Words) -> Mail[M] | None:
        place = self.place
        while True:
            number = words[place]
            if number == 0 or number & 1:
                return None
            count = min(words[place + 1], self.size - 2)
            body = [words[place + 2 + i] for i in range(count)]
            if words[place] == number:
                return Mail(number, self.kind.of(body))

    def store(self, words: Words, value: M) -> None:
        place, body = self.place, value.words()
        writing = words[place] | 1
        words[place] = writing
        words[place + 1] = len(body)
        for i, word in enumerate(body):
            words[place + 2 + i] = word
        words[place] = writing + 1 if writing < LAST else 2  # damage can leave any number there


def damaged(found: int, what: str) -> JobError:
    """Return the error for a word that no process of ours has written."""
    return JobError(f"the shared memory of a rank is damaged: it has {found}, expected {what}")


def _member(kind: type[E], word: int) -> E:
    try:
        return kind(word)
    except ValueError:
        raise damaged(word, f"one of {', '.join(kind.__members__)}") from None


def pack_lanes(lanes: Iterable[int]) -> list[int]:
    """Lanes as a bitmap, no longer than the highest lane needs."""
    words: list[int] = []
    for lane in lanes:
        word, bit = divmod(lane, LANES_PER_WORD)
        if word >= len(words):
            words += [0] * (word + 1 - len(words))
        words[word] |= 1 << bit
    return words


def unpack_lanes(words: Sequence[int]) -> tuple[int, ...]:
    """The lanes of a bitmap, in order."""
    found = []
    for place, word in enumerate(words):
        if word >> LANES_PER_WORD:  # a negative one would never end
            raise damaged(word, f"{LANES_PER_WORD} lanes")
        while word:
            low = word & -word
            found.append(place * LANES_PER_WORD + low.bit_length() - 1)
            word ^= low
    return tuple(found)
