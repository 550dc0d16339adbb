"""Proof, independent of how a plan or a schedule was made."""

from meshmend.plan import Plan, Schedule
from meshmend.verify.plan import verify_plan
from meshmend.verify.schedule import verify_schedule


def verify(thing: Plan | Schedule) -> None:
    """Raise `VerifyError` with a counterexample, unless the plan or schedule sums every chip's part exactly once."""
    if isinstance(thing, Plan):
        verify_plan(thing)
    elif isinstance(thing, Schedule):
        verify_schedule(thing)
    else:
        raise TypeError(f"verify takes a Plan or a Schedule, not {type(thing).__name__}")
