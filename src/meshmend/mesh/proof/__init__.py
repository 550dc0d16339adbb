"""Proof, independent of how a plan or a schedule was made."""

from meshmend.mesh.planners import Plan
from meshmend.mesh.proof.plan import verify_plan
from meshmend.mesh.proof.schedule import verify_schedule
from meshmend.mesh.schedule import Schedule


def verify(thing: Plan | Schedule) -> None:
    """Raise `VerifyError` with a counterexample, unless the plan or schedule sums every chip's part exactly once."""
    if isinstance(thing, Plan):
        verify_plan(thing)
    elif isinstance(thing, Schedule):
        verify_schedule(thing)
    else:
        raise TypeError(f"verify takes a Plan or a Schedule, not {type(thing).__name__}")
