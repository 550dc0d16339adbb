"""Failures on purpose: one registry of kinds for tests, chaos and the command line."""

from meshmend.job.faults import kinds as kinds  # registers them
from meshmend.job.faults.base import KINDS as KINDS
from meshmend.job.faults.base import Fault as Fault
from meshmend.job.faults.base import FaultKind as FaultKind
from meshmend.job.faults.base import Point as Point
from meshmend.job.faults.base import Target as Target
from meshmend.job.faults.base import chaos_kinds as chaos_kinds
from meshmend.job.faults.base import default_kinds as default_kinds
from meshmend.job.faults.inject import Faults as Faults
from meshmend.job.faults.inject import fail_at as fail_at
