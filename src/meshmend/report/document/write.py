"""Writes a report as Markdown or as one self-contained HTML file, with the loss curve if matplotlib is there."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from meshmend.errors import JobError, PictureError
from meshmend.report.document.blocks import Block, Paragraph, Picture
from meshmend.report.document.story import story
from meshmend.report.history import History
from meshmend.report.loss_plot import draw_loss

STYLE = """
:root { color-scheme: light dark; --ink: #1f2733; --muted: #667085; --faint: #e4e7ec; --paper: #fff; --good: #1f8a70; --bad: #d92d20; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --muted: #98a2b3; --faint: #2b323d; --paper: #14181f; --good: #4cc3a5; --bad: #f97066; } }
body { margin: 0 auto; max-width: 900px; padding: 32px 24px 60px; background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 8px; } h2 { font-size: 19px; margin: 34px 0 8px; padding-top: 14px; border-top: 1px solid var(--faint); } h3 { font-size: 15px; margin: 26px 0 4px; }
h1, h2, h3, p, li, td { overflow-wrap: anywhere; }
p.good { color: var(--good); font-weight: 600; } p.bad { color: var(--bad); font-weight: 600; }
ul { padding-left: 20px; } li { margin: 2px 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--muted); font-weight: 500; } th, td { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--faint); vertical-align: top; } .number { text-align: right; white-space: nowrap; padding-right: 0; padding-left: 10px; }
.bars { display: grid; grid-template-columns: 100px 1fr 70px; gap: 3px 12px; align-items: center; font-size: 13px; margin: 8px 0; }
.bars span:nth-child(3n) { text-align: right; font-variant-numeric: tabular-nums; } .bars span:nth-child(3n+1) { color: var(--muted); }
.lane { position: relative; height: 11px; background: linear-gradient(var(--faint), var(--faint)) center / 100% 1px no-repeat; } .lane i { position: absolute; height: 11px; border-radius: 2px; }
.phase0 { background: #98a2b3; } .phase1 { background: #c9777b; } .phase2 { background: #e8862c; } .phase3 { background: #c2188b; } .phase4 { background: #8a6d1f; } .phase5 { background: #7048a8; } .phase6 { background: #31638c; } .phase7 { background: #389c8a; } .phase8 { background: #88cd8a; }
figure { margin: 10px 0; background: #fcfcfd; border-radius: 8px; padding: 6px; } figure svg { max-width: 100%; height: auto; display: block; } figcaption { color: #667085; font-size: 12px; }
"""  # noqa: E501


def as_markdown(blocks: Sequence[Block]) -> str:
    """The document as Markdown."""
    return "\n\n".join(block.markdown() for block in blocks) + "\n"


def as_html(blocks: Sequence[Block], title: str) -> str:
    """The document as one HTML file."""
    body = "\n".join(block.html() for block in blocks)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def write_report(history: History, path: str, job: int | None = None) -> int:
    """Write the report of a run to a .md or .html file; return how many bytes it has."""
    where = Path(path)
    kind = where.suffix.lower()
    if kind not in (".md", ".html"):
        raise PictureError(f"cannot write a report to {path!r}: give a path that ends in .md or .html")
    beside = where.with_suffix(".svg")
    drawn = draw(history, beside.name, job)
    blocks = story(history, drawn if isinstance(drawn, Picture) else None, job)
    blocks += [Paragraph(drawn)] if isinstance(drawn, str) and drawn else []
    text = as_html(blocks, f"Run {history.name}") if kind == ".html" else as_markdown(blocks)
    try:
        if kind == ".md" and isinstance(drawn, Picture):
            beside.write_text(drawn.svg, encoding="utf-8")
        return where.write_bytes(text.encode())
    except OSError as error:
        raise PictureError(
            f"cannot write {path!r} ({error.strerror}): give a path in a folder that exists and can be written"
        ) from None


def draw(history: History, name: str, job: int | None) -> Picture | str:
    """The loss with the incidents marked; why there is none, in a sentence."""
    jobs = [number for number, one in history.jobs.items() if one.audit.ledger.is_open]
    if not jobs:
        return ""
    number = max(jobs) if job is None else job
    metric = history.job(number).metric
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loss.svg"
        try:
            draw_loss(history.events(number), path, metric)
        except (PictureError, JobError) as error:
            return f"There is no curve in this report: {error}."
        return Picture(path.read_text(encoding="utf-8"), name, f"{metric} over the steps, with the incidents")
