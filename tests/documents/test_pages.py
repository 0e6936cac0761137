"""Every block of every page runs, and prints what the page shows."""

import pytest
from documents import lookups, pages
from documents.blocks import blocks, spans
from documents.keys import NO_KEYS, wrong_key
from documents.page import check, parse

README, *TUTORIALS = pages.first()


@pytest.mark.parametrize(
    "page",
    [README, *(pytest.param(page, marks=pytest.mark.slow) for page in TUTORIALS)],
    ids=pages.name,
)
def test_what_newcomers_read_runs(page):
    check(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages.others(), ids=pages.name)
def test_all_other_pages_run(page):
    check(page)


def test_studies_name_commands_that_there_are():
    for page in pages.studies():
        for block in blocks(page):
            parse(block)  # which names the page and the line of what is wrong


def test_commands_and_options_within_lines_are_there():
    wrong = []
    for page in pages.every():
        for line, span in spans(page.read_text("utf-8")):
            if is_command(span) and (gone := lookups.wrong_names(span)):
                wrong.append(f"{page}:{line}: {gone}")
    assert wrong == []


def test_keys_within_lines_are_keys_of_the_run_file():
    """Code like `section.key`, in pages for users."""
    written = [
        (f"{page}:{line}", span)
        for page in (*pages.first(), *pages.others())
        for line, span in spans(page.read_text("utf-8"))
    ]
    assert [f"{place}: {gone}" for place, span in written if (gone := wrong_key(span))] == []
    assert NO_KEYS.keys() <= {span for _, span in written}, "remove what no page writes"


def is_command(span):
    return span.startswith("privfed ")
