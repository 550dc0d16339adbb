"""The page as one HTML document: style, script and, in a file, the state of the run. Nothing comes from elsewhere.

A policy in its head keeps it that way: the browser runs this script and no other, and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files


def document(name: str, state: str, settings: str) -> str:
    """The page of a run; `state` is JSON to show at once, `settings` is JSON that says how to continue from there."""
    place = files("meshmend.report.page") / "static"
    html, style, script = ((place / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    values = {"policy": policy, "title": escape(name), "style": style, "state": state, "settings": settings}
    for key, value in {**values, "script": script}.items():
        html = html.replace(f"<!--{key}-->", value, 1)
    return html
