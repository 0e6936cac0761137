"""Every block of every page runs, and prints what the page shows."""

import pytest
from documents import lookups, pages
from documents.blocks import blocks, spans
from documents.page import check, parse


@pytest.mark.parametrize("page", pages.first(), ids=pages.name)
def test_what_newcomers_read_runs(page):
    check(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages.others(), ids=pages.name)
def test_all_other_pages_run(page):
    check(page)


@pytest.mark.parametrize("page", pages.studies(), ids=pages.name)
def test_studies_name_commands_that_there_are(page):
    for block in blocks(page):
        parse(block)


@pytest.mark.parametrize("page", pages.every(), ids=pages.name)
def test_commands_and_options_within_lines_are_there(page):
    named = [(line, span) for line, span in spans(page.read_text("utf-8"))]
    ours = [(line, lookups.wrong_names(span)) for line, span in named if is_command(span)]
    assert [f"{page}:{line}: {gone}" for line, gone in ours if gone] == []


def is_command(span):
    return span.startswith("privfed ")
