"""Families by name: planners, links, models, policies. A registry maps a name to a class, a function or a value.

    PLANNERS = Registry("algorithm", PlanError, {"trees": TREES, "ring": RING})
    PLANNERS["ring"]                                     # as in a dictionary
    PLANNERS.find("rnig")                                # PlanError: unknown algorithm 'rnig'; choose from …
    PLANNERS.where(lambda planner: not planner.needs_intact)

What a member can do (its capabilities) are attributes of the member, so that callers ask for a capability and never
compare names. Names keep the order of registration, which is the order in which choices are shown and tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TypeVar

from meshmend.errors import MeshmendError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """The members of one family, in order of registration."""

    def __init__(self, kind: str, error: type[MeshmendError], members: Mapping[str, T] | None = None) -> None:
        """`kind` is what a member is called in messages; `error` is raised for an unknown name."""
        self.kind = kind
        self._error = error
        self._members: dict[str, T] = {}
        for name, member in (members or {}).items():
            self.register(name, member)

    def register(self, name: str, member: T) -> T:
        """Add a member under a name that is still free."""
        if name in self._members:
            raise ValueError(f"{self.kind} {name!r} is already registered")
        self._members[name] = member
        return member

    def __getitem__(self, name: str) -> T:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"Registry({self.kind}: {', '.join(self)})"

    def find(self, name: str, *, also: tuple[str, ...] = (), instead: str = "") -> T:
        """The member of that name, or an error with the choices and the name that was probably meant.

        `also` are further choices that the caller handles itself; `instead` is what else could be given.
        """
        if name in self._members:
            return self._members[name]
        choices = [*also, *self]
        more = f", or give {instead}" if instead else ""
        raise self._error(
            f"unknown {self.kind} {name!r}; choose from {', '.join(choices)}{more}{did_you_mean(name, choices)}"
        )

    def where(self, test: Callable[[T], bool]) -> tuple[str, ...]:
        """The names of the members that have a capability."""
        return tuple(name for name, member in self._members.items() if test(member))


def did_you_mean(name: str, choices: list[str]) -> str:
    """`; did you mean resnet50?` for ResNet-50, or nothing if no choice is close."""
    plain = "".join(letter for letter in str(name).lower() if letter.isalnum())
    close = get_close_matches(plain, choices, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""
