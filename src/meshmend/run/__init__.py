"""`meshmend run` and its company: workers and couriers on one host or several, started, watched and kept going."""

from meshmend.run.chaos import inject_failures as inject_failures
from meshmend.run.clusters import text_for as text_for
from meshmend.run.clusters.hosts import parse_hosts as parse_hosts
from meshmend.run.doctor.checks import findings as findings
from meshmend.run.doctor.checks import line as line
from meshmend.run.doctor.checks import verdict as verdict
from meshmend.run.entry import attach as attach
from meshmend.run.entry import launch as launch
from meshmend.run.entry import resume as resume
from meshmend.run.spec import RunSpec as RunSpec
from meshmend.run.spec import begun as begun
from meshmend.run.spec import load_spec as load_spec
from meshmend.run.spec import working_folder as working_folder
