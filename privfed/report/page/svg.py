"""A drawing of matplotlib's as part of a page: its colours follow the page, its names are unique.

Text stays text. Nothing in it names another resource, and a style that would reach the rest of the
page is taken out.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from privfed.grid.pictures.style import COLOURS
from privfed.visible import visible

_PIXELS = 1.45
"""The most pixels that a point of a drawing becomes."""
_PROLOGUE = re.compile(r"\A.*?(?=<svg\b)", re.DOTALL)
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style\b.*?</style>|<!--.*?-->", re.DOTALL)
_OPENING = re.compile(r"\A<svg\b[^>]*>", re.DOTALL)
_BOX = re.compile(r'viewBox="([\d. -]+)"')
_NAME = re.compile(r'(\bid="|href="#|url\(#)')
_THEMED = {
    **{colour.lower(): f"var(--series-{place})" for place, colour in enumerate(COLOURS[:-1])},
    "#000000": "currentColor",
    "#ffffff": "var(--page)",
    "#dddddd": "var(--rule)",
    "#888888": "var(--quiet)",
}
"""Colours of the page in the place of the house's."""
_COLOUR = re.compile("|".join(_THEMED), re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")


def inline(svg: bytes, name: str, title: str, description: str, *, themed: bool = True) -> Markup:
    """The drawing as an element named `name`, which says what it shows.

    A `themed` one takes the colours of the page, and has no background of its own.
    """
    text = _LEFT_OUT.sub("", _PROLOGUE.sub("", visible(svg.decode())))
    opening = _OPENING.match(text)
    box = _BOX.search(opening[0]) if opening else None
    if opening is None or box is None:
        raise ValueError("no drawing in SVG")
    inside = text[opening.end() :].replace("xlink:href=", "href=")
    inside = _NAME.sub(rf"\g<1>{name}-", inside)
    if themed:
        inside = _TAG.sub(lambda tag: _COLOUR.sub(_in_theme, tag[0]), inside)
    wide = float(box[1].split()[2]) * _PIXELS
    head = (
        f'<svg class="drawing" viewBox="{box[1]}" style="max-width: {wide:.0f}px" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(visible(title))}</title>'
        f'<desc id="{name}-desc">{escape(visible(description))}</desc>'
    )
    return Markup(head + inside)


def _in_theme(colour: re.Match[str]) -> str:
    return _THEMED[colour[0].lower()]
