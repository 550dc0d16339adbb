"""`meshmend report`: what happened in a run, as a document for people."""

from meshmend.report.document.story import story as story
from meshmend.report.document.write import write_report as write_report
