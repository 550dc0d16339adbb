"""Every exception meshmend raises on purpose.

    MeshmendError
    ├── MeshError            an invalid mesh: bad notation, a block outside, nothing alive
    │   └── Disconnected     the live chips are not connected; `.sizes` holds the size of each part
    ├── PlanError            a plan that cannot be made, or an invalid request for one
    │   └── NoRing           no ring exists (or none was found); `.proven` says which
    ├── VerifyError          a plan or schedule is wrong; `.chip`, `.chunk`, `.slot`, `.flow` say where
    ├── FormatError          a file with unexpected contents
    ├── SimulateError        an invalid simulation request: an unknown model, a rate below zero
    ├── PictureError         a picture that cannot be drawn
    ├── JobError             a training job that cannot start or continue
    │   ├── NotFinite        a sum holds NaN or Inf; `.step`, `.reason`
    │   └── SegmentGone      the shared memory of a rank has been removed
    ├── DeviceError          a device or its driver reports an error, or lacks what is needed
    ├── MissingLibrary       an optional library is not installed; also an ImportError
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
    """The requested plan does not exist on this mesh."""


class NoRing(PlanError):
    """No Hamiltonian ring: `proven` is True where the reason forbids one, False where a search gave up."""

    def __init__(self, message: str, *, proven: bool) -> None:
        super().__init__(message)
        self.proven = proven


class VerifyError(MeshmendError):
    """A counterexample: where a plan or schedule goes wrong."""

    def __init__(
        self,
        message: str,
        *,
        chip: tuple[int, ...] | None = None,
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
    """The job cannot start or continue."""


class SegmentGone(JobError):
    """The shared memory of a rank has been removed: its run has ended, or its worker is being replaced."""


class NotFinite(JobError):
    """A sum holds NaN or Inf, in float32 or in its leaf's own type."""

    def __init__(self, step: int, reason: str, advice: str, *, skips: bool = True) -> None:
        or_skip = ", or use mm.Job(nonfinite='skip') to leave such steps out" if skips else ""
        super().__init__(f"step {step}: {reason}; {advice}{or_skip}")
        self.step = step
        self.reason = reason
        self.advice = advice


class DeviceError(MeshmendError):
    """A device or its driver reports an error, or lacks what is needed: not a mistake in the user's request."""


class MissingLibrary(MeshmendError, ImportError):
    """A part of meshmend needs a library that is not installed."""


class TestbedError(MeshmendError, ValueError):
    """A testbed cannot be made, or cannot do what was asked."""


class SimulateError(MeshmendError, ValueError):
    """An invalid simulation request."""


class PictureError(MeshmendError, ValueError):
    """A picture cannot be drawn or written."""


class FormatError(MeshmendError, ValueError):
    """A file does not hold what was expected."""
