"""Run pages, and write what their blocks print into them: `python -m documents PAGE… [--write]`.

Pages are Markdown or notebooks. Sizes are as readers see them with `--write`, and made small
without it. It needs `PYTHONPATH` to
hold the repository and its folder `tests`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from documents import notebooks
from documents.blocks import Block, Failure
from documents.outputs import difference, for_a_page
from documents.page import check, play


def rewritten(text: str, outputs: list[tuple[Block, str]]) -> str:
    """Returns the text of a page with shown outputs replaced where the printed ones differ."""
    lines = text.splitlines(keepends=True)
    for block, printed in reversed(outputs):
        asked = block.directions
        if difference(block.text, printed, asked.output == "shape", asked.exact):
            first, last = block.line - 1, block.line - 1 + len(block.text.splitlines())
            lines[first:last] = [f"{line}\n" for line in for_a_page(printed)]
    return "".join(lines)


def run_notebook(path: Path, write: bool) -> None:
    """Runs a notebook, and stores its outputs if requested. Raises `Failure`."""
    with tempfile.TemporaryDirectory() as folder:
        ran = notebooks.execute(notebooks.read(path), Path(folder))
    text = notebooks.text_to_ship(ran)
    for reason in notebooks.shipped_wrongly(ran):
        raise Failure(f"{path}: {reason}")
    if write:
        path.write_text(text, encoding="utf-8")


def run_page(page: Path, write: bool) -> None:
    """Runs a Markdown page, and replaces its outputs if requested. Raises `Failure`."""
    if write:
        text = rewritten(page.read_text("utf-8"), play(page, small=False))
        page.write_text(text, encoding="utf-8")
    else:
        check(page)


def main(words: list[str]) -> int:
    """Runs the pages named by `words`; returns 0 if all outputs agree."""
    parser = argparse.ArgumentParser(prog="python -m documents", description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="replace outputs that differ")
    asked, failures = parser.parse_args(words), 0
    for page in asked.pages:
        try:
            run = run_notebook if page.suffix == ".ipynb" else run_page
            run(page, asked.write)
            print(f"{page}: runs")
        except Failure as failure:
            print(failure, file=sys.stderr)
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
