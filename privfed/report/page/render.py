"""A page as one file of HTML, which asks for nothing else and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from privfed.report.page.blocks import Page
from privfed.visible import visible

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def render(page: Page) -> str:
    """The page; all text in it is made visible, and escaped."""
    templates = Environment(
        loader=PackageLoader("privfed.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _source("sort.js") if page.sortable else ""
    return templates.get_template("page.html").render(
        page=page,
        style=Markup(_source("page.css")),
        script=Markup(script),
        policy=_policy(script),
    )


def _policy(script: str) -> str:
    """What a browser may do for this page: of scripts, this one alone."""
    if not script:
        return _POLICY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_POLICY}; script-src 'sha256-{digest}'"


def _source(name: str) -> str:
    """A file beside the templates, as it is."""
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """Every text but what is HTML already, with no character hidden."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
