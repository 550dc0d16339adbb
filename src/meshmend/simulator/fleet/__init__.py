"""Weeks of training under failures: what each policy makes of a fleet's chip-hours."""

from meshmend.simulator.fleet.fleet import Fleet as Fleet
from meshmend.simulator.fleet.fleet import Outcome as Outcome
from meshmend.simulator.fleet.fleet import Study as Study
from meshmend.simulator.fleet.fleet import study as study
from meshmend.simulator.fleet.policies import POLICIES as POLICIES
from meshmend.simulator.fleet.speeds import Step as Step
from meshmend.simulator.fleet.sweep import Sweep as Sweep
from meshmend.simulator.fleet.sweep import sweep as sweep
