"""What is in a file: the fields and columns of each kind of thing, all of them checked by type when they are read.

A **form** is a thing taken apart: its kind, its fields (texts, numbers, true or false) and its columns (arrays). Both
JSON and the binary form write forms, so that neither knows what a plan is. That a thing is *right* is for `verify` to
say; here it only has to be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import FormatError, MeshmendError
from meshmend.mesh import Fabric, read_mesh
from meshmend.mesh.collectives.bounds import CutBound
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.files import staged
from meshmend.mesh.planners.plan import Plan
from meshmend.mesh.schedule.schedule import Schedule
from meshmend.mesh.staged import StagedPlan, StagedSchedule

Thing = Fabric | Plan | Schedule | CollectivePlan | CollectiveSchedule | StagedPlan | StagedSchedule
Array = npt.NDArray[Any]
FORMAT = 1
WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
"""What messages call the types."""
MOST = 2**31 - 1
"""The largest whole number in a field."""
SOME_ROWS = 1 << 16
"""Flows and chunks that binary files of small meshes hold, too."""


@dataclass(frozen=True, eq=False)
class Form:
    """A thing taken apart."""

    kind: str
    fields: dict[str, Any]
    columns: dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of thing is taken apart and put together again."""

    made: type
    fields: dict[str, type]
    columns: dict[str, str]
    """The type of each array, as numpy writes it; those of `trees` have a row per flow and a column per chip."""
    apart: Callable[[Any], dict[str, Any]]
    """The fields of a thing that are not simply its attributes."""
    together: Callable[[Fabric, dict[str, Any], dict[str, Array]], Thing]
    trees: tuple[str, ...] = ()


def to_form(thing: Thing) -> Form:
    """Take a thing apart."""
    name, kind = next((name, kind) for name, kind in KINDS.items() if isinstance(thing, kind.made))
    special = {"mesh": (thing if isinstance(thing, Fabric) else thing.mesh).notation, **kind.apart(thing)}
    fields = {field: special[field] if field in special else getattr(thing, field) for field in kind.fields}
    columns = {
        column: special[column] if column in special else getattr(thing, column) for column in kind.columns
    }  # fmt: skip
    return Form(name, fields, {name: np.asarray(column) for name, column in columns.items()})


def from_form(form: Form) -> Thing:
    """Put a thing together again; a `FormatError` says what is missing or of another type."""
    kind = KINDS[form.kind]
    fields = {name: field(form.fields, name, expected) for name, expected in kind.fields.items()}
    try:
        mesh = read_mesh(fields["mesh"])
        columns = {name: _column(form, kind, name, mesh) for name in kind.columns}
        return kind.together(mesh, fields, columns)
    except MeshmendError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, ArithmeticError) as error:
        raise damaged(form.kind, f"{type(error).__name__}: {error}") from None


class Room:
    """How large columns may be: a small file could unpack to a thousand times its size, and hold nothing right."""

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        self.kind, self.mesh = kind, read_mesh(field(fields, "mesh", str))
        chips, links = self.mesh.size, self.mesh.link_numbers
        chunks = SOME_ROWS + 64 * chips**2  # an all_to_all has some for each pair of chips
        sent = min(chunks, field(fields, "chunks", int)) if "chunk" in KINDS[kind].columns else 0
        rows = {
            **dict.fromkeys(("group", "part"), chips),
            **dict.fromkeys(_FLOWS, SOME_ROWS + 64 * chips),
            **dict.fromkeys(("owner", "to"), chunks),
            **dict.fromkeys(_TRANSFERS, 2 * links * sent),  # a chunk crosses a link as a part, and as a sum
            **staged.rows(self.mesh, sent),
        }
        if KINDS[kind].made is StagedSchedule:
            rows |= dict.fromkeys(_TRANSFERS, staged.transfers(self.mesh, sent))
        self.most = {name: rows[name] for name in KINDS[kind].columns}
        """Rows of each column."""

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Refuse a column that nothing right on this mesh has."""
        if shape[0] > self.most[name]:
            raise damaged(self.kind, f"{name} has shape {tuple(shape)}, too large for a mesh of {self.mesh.size} chips")
        if list(shape[1:]) != [self.mesh.size] * (name in KINDS[self.kind].trees):
            raise damaged(self.kind, f"{name} has shape {tuple(shape)} on a mesh of {self.mesh.size} chips")


def field(fields: dict[str, Any], name: str, expected: type) -> Any:
    """A field of this type; `"no"` is not false, and `true` is not a number."""
    if name not in fields:
        raise FormatError(f"the field {name!r} is missing: create the file again")
    value: Any = fields[name]
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise FormatError(f"{name} holds half of a surrogate pair: create the file again")
    if not isinstance(value, expected) or (expected is not bool and isinstance(value, bool)):
        raise FormatError(f"{name} is {str(value)[:40]!r}, expected {WORDS[expected]}: create the file again")
    if isinstance(value, int) and expected is int and not 0 <= value <= MOST:
        raise FormatError(f"{name} is {value}, expected 0 to {MOST}: create the file again")
    return value


def damaged(kind: str, why: str) -> FormatError:
    """What is said of a file that makes no sense."""
    return FormatError(f"the {kind} is damaged ({why}): create the file again")


def _column(form: Form, kind: Kind, name: str, mesh: Fabric) -> Array:
    if name not in form.columns:
        raise damaged(form.kind, f"the column {name!r} is missing")
    array, dtype = form.columns[name], np.dtype(kind.columns[name])
    if array.dtype.kind != dtype.kind:
        raise damaged(form.kind, f"{name} holds {array.dtype}, expected {dtype}")
    if array.ndim != 1 + (name in kind.trees) or (array.ndim == 2 and array.shape[1] != mesh.size):
        raise damaged(form.kind, f"{name} has shape {array.shape} on a mesh of {mesh.size} chips")
    cast = np.ascontiguousarray(array, dtype)
    if dtype.kind == "i" and not np.array_equal(cast, array):
        raise damaged(form.kind, f"a number in {name} does not fit {dtype}")
    return cast


def _bound_apart(plan: CollectivePlan) -> dict[str, Any]:
    fraction = plan.bound.fraction
    return {"bound": "" if fraction is None else str(fraction), "reason": plan.bound.reason, "part": plan.bound.part}


def _plan(mesh: Fabric, fields: dict[str, Any], columns: dict[str, Array]) -> Plan:
    share, root, up, down = (columns[name] for name in _FLOWS)
    return Plan(mesh, fields["algorithm"], share, root, up, down, fields["overlap"], fields["why"])


def _collective_plan(mesh: Fabric, fields: dict[str, Any], columns: dict[str, Array]) -> CollectivePlan:
    if len(columns["part"]) != mesh.size:
        raise ValueError(f"part has {len(columns['part'])} chips, but the mesh has {mesh.size}")
    fraction = _fraction(fields["bound"]) if fields["bound"] else None
    bound = CutBound(mesh, fraction, columns["part"], fields["reason"])
    group, share, root, up, down = (columns[name] for name in ("group", *_FLOWS))
    return CollectivePlan(mesh, fields["collective"], group, share, root, up, down, fields["cut"], bound, fields["why"])


def _fraction(text: str) -> Fraction:
    """A bound above 0, as `str(Fraction)` writes it: `1e999999999` would fill the memory."""
    if not re.fullmatch(r"[0-9]{1,40}(/[0-9]{1,40})?", text) or not (found := Fraction(text)):
        raise ValueError(f"the bound {text[:40]!r} is not a fraction above 0")
    return found


def _table(mesh: Fabric, fields: dict[str, Any], columns: dict[str, Array]) -> Schedule:
    slot, link, chunk, copy = (columns[name] for name in _TRANSFERS)
    return Schedule(mesh, fields["chunks"], fields["hop"], slot, link, chunk, copy, fields["pace"])


def _table_apart(schedule: CollectiveSchedule | StagedSchedule) -> dict[str, Any]:
    return {name: getattr(schedule.table, name) for name in (*_CLOCK, *_TRANSFERS)}


def _nothing(_: Any) -> dict[str, Any]:
    return {}


_FLOWS = {"share": "f8", "root": "i4", "up": "i1", "down": "i1"}
_CLOCK = {"chunks": int, "hop": int, "pace": int}
_TRANSFERS = {"slot": "i4", "link": "i4", "chunk": "i4", "copy": "?"}

KINDS: dict[str, Kind] = {
    "plan": Kind(
        made=Plan,
        fields={"mesh": str, "algorithm": str, "overlap": bool, "why": str},
        columns=_FLOWS,
        trees=("up", "down"),
        apart=_nothing,
        together=_plan,
    ),
    "schedule": Kind(
        made=Schedule, fields={"mesh": str, **_CLOCK}, columns=_TRANSFERS, apart=_nothing, together=_table
    ),
    "collective plan": Kind(
        made=CollectivePlan,
        fields={"mesh": str, "collective": str, "cut": int, "bound": str, "reason": str, "why": str},
        columns={"group": "i4", "part": "i4", **_FLOWS},
        trees=("up", "down"),
        apart=_bound_apart,
        together=_collective_plan,
    ),
    "collective schedule": Kind(
        made=CollectiveSchedule,
        fields={"mesh": str, "collective": str, "cut": int, **_CLOCK},
        columns={"group": "i4", "owner": "i4", "to": "i4", **_TRANSFERS},
        apart=_table_apart,
        together=lambda mesh, fields, columns: CollectiveSchedule(
            fields["collective"], columns["group"], fields["cut"], columns["owner"], columns["to"],
            _table(mesh, fields, columns),
        ),
    ),
    "staged plan": Kind(
        made=StagedPlan,
        fields={"mesh": str, "label": str, "why": str},
        columns=staged.PLAN,
        trees=("down", "layers"),
        apart=staged.plan_apart,
        together=staged.plan_together,
    ),
    "staged schedule": Kind(
        made=StagedSchedule,
        fields={"mesh": str, **_CLOCK},
        columns={**staged.CELLS, **_TRANSFERS},
        apart=lambda schedule: {**_table_apart(schedule), **staged.cells_apart(schedule)},
        together=lambda mesh, fields, columns: staged.cells_together(_table(mesh, fields, columns), columns),
    ),
    "mesh": Kind(made=Fabric, fields={"mesh": str}, columns={}, apart=_nothing, together=lambda mesh, *_: mesh),
}  # fmt: skip
"""Every kind of thing that files hold."""
