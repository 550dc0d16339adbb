"""Every exception meshmend raises on purpose.

    MeshmendError
    ├── MeshError            a mesh that cannot be: bad notation, a block outside, nothing alive
    │   └── Disconnected     the live chips fall apart; `.sizes` holds the size of each part
    ├── PlanError            a plan that cannot be made or asked for
    │   └── NoRing           no ring exists (or none was found); `.proven` says which
    ├── VerifyError          a plan or schedule is wrong; `.chip`, `.chunk`, `.slot`, `.flow` say where
    ├── FormatError          a file that is not what it should be
    ├── SimulateError        a simulation that cannot be: an unknown model, a rate below zero
    ├── PictureError         a picture that cannot be drawn
    ├── JobError             a training job that cannot start or go on
    └── TestbedError         a mesh of network namespaces that cannot be made

A message is one sentence or two: what was given, what was expected, what to do.
"""

from __future__ import annotations


class MeshmendError(Exception):
    """Base of all errors that meshmend raises on purpose."""


class MeshError(MeshmendError, ValueError):
    """The mesh or its notation is wrong."""


class Disconnected(MeshError):
    """The live chips do not form one connected mesh."""

    def __init__(self, message: str, sizes: tuple[int, ...]) -> None:
        super().__init__(message)
        self.sizes = sizes


class PlanError(MeshmendError, ValueError):
    """The plan asked for does not exist on this mesh."""


class NoRing(PlanError):
    """No Hamiltonian ring: `proven` is True where the reason forbids one, False where a search gave up."""

    def __init__(self, message: str, *, proven: bool) -> None:
        super().__init__(message)
        self.proven = proven


class VerifyError(MeshmendError):
    """A counterexample: the place where a plan or schedule goes wrong."""

    def __init__(
        self,
        message: str,
        *,
        chip: tuple[int, int] | None = None,
        flow: int | None = None,
        chunk: int | None = None,
        slot: int | None = None,
    ) -> None:
        super().__init__(message)
        self.chip = chip
        self.flow = flow
        self.chunk = chunk
        self.slot = slot


class JobError(MeshmendError, ValueError):
    """The job cannot start, or cannot go on."""


class TestbedError(MeshmendError, ValueError):
    """A testbed cannot be made, or not what was asked of it."""


class SimulateError(MeshmendError, ValueError):
    """What is to be simulated cannot be."""


class PictureError(MeshmendError, ValueError):
    """A picture cannot be drawn or written."""


class FormatError(MeshmendError, ValueError):
    """A file does not hold what was expected."""
