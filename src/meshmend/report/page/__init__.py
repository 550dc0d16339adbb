"""`meshmend watch`: a run as one page, live or saved to a file, made from its folder alone."""

from meshmend.report.page.export import export as export
