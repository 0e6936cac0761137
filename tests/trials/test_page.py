"""docs/reliability.md holds what docs/reliability.json measured."""

import importlib
import json

from trials.lives import LIVES
from trials.targets import TARGETS

main = importlib.import_module("trials.__main__")


def test_the_page_shows_what_was_measured():
    results = json.loads(main.RESULTS.read_text("utf-8"))
    assert main.page(results) in main.PAGE.read_text("utf-8")
    tried = {(row["trial"], row["what"]) for row in results["rows"]}
    assert {("crash", kind) for kind in LIVES} <= tried, "make reliability"
    assert {("spoiled files", name) for name in TARGETS} <= tried, "make reliability"
