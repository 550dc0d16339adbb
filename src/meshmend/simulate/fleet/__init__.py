"""Weeks of training under failures: what each policy makes of a fleet's chip-hours."""

from meshmend.simulate.fleet.fleet import Fleet as Fleet
from meshmend.simulate.fleet.fleet import Outcome as Outcome
from meshmend.simulate.fleet.fleet import Study as Study
from meshmend.simulate.fleet.fleet import study as study
from meshmend.simulate.fleet.policies import POLICIES as POLICIES
from meshmend.simulate.fleet.speeds import Step as Step
from meshmend.simulate.fleet.sweep import Sweep as Sweep
from meshmend.simulate.fleet.sweep import sweep as sweep
