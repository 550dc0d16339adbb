"""What a run's events prove and show: the audit of its ledger, its incidents, and pictures of both."""

from meshmend.report.audit import Account as Account
from meshmend.report.audit import check as check
from meshmend.report.audit import compare as compare
from meshmend.report.fold import Level as Level
from meshmend.report.fold import State as State
from meshmend.report.fold import fold as fold
from meshmend.report.incidents import Incident as Incident
from meshmend.report.incidents import found as found
from meshmend.report.incidents import incidents as incidents
from meshmend.report.jobs import jobs as jobs
from meshmend.report.loss_plot import draw_loss as draw_loss
from meshmend.report.text import render as render
from meshmend.report.text import to_dict as to_dict
from meshmend.report.text import to_json as to_json
