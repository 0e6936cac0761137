"""A Sphinx extension: formulas as MathML, which browsers draw without a script or a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def _written(display: str) -> Any:
    """What writes a formula, "inline" or as a "block"."""

    def visit(translator: Any, node: Any) -> None:
        from docutils.nodes import SkipNode

        mathml = convert(node.astext(), display=display)
        if display == "block":
            mathml = f'<div class="math">{mathml}</div>'
        translator.body.append(mathml)
        raise SkipNode

    return visit


def setup(app: Sphinx) -> dict[str, Any]:
    """Make it the renderer; Sphinx calls this."""
    inline, block = _written("inline"), _written("block")
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
