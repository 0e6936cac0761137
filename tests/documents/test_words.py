"""The documentation, docstrings and messages use the terms of the field."""

import ast
import re

import pytest
from house import PACKAGES, ROOT, modules, written_pages

WORDS = {
    r"(nobody|somebody|everybody|anybody)": ("no client, a client, all clients", 2.0),
    r"(whom|of which)": ("a sentence of its own", 7.0),
    r"besides?": ("also, in addition to, next to", 2.0),
    r"(tells?|told)": ("reveals, distinguishes, reports, states", 2.0),
    r"(so many|as ever|at hand|but for)": ("n, as usual, available, except", 2.0),
    r"(?<![Ss]tandard )(?<![Aa]bsolute )deviations?": ("standard deviation", 5.0),
    r"coins?": ("Bernoulli draw, sampled independently, inclusion bit", 2.0),
    r"(liars?|hostile)": ("Byzantine client, malicious server", 2.0),
    r"made-up": ("synthetic", 1.0),
    r"(dearest|loud|louder)": ("most expensive; signal-to-noise ratio", 1.0),
}
"""A private word, what to write instead, and how often it may stand in 10,000 lines."""
QUESTIONS = {"What", "Which", "Who", "Whom", "Whose", "How", "Where", "Why", "When", "Those"}


def texts_of(source):
    """Docstrings and messages of a module, with their lines; words in backticks are names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"`[^`]*`", "", node.value)


def text_of_page(page):
    """The prose of a page: without code blocks, comments, names in backticks and links."""
    without = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`|\]\([^)]*\)", "", page, flags=re.DOTALL)
    return [(1, without)]


@pytest.fixture(scope="module")
def prose():
    code = [path for package in PACKAGES for path in modules(package).values()]
    sources = {path: path.read_text("utf-8") for path in [*code, *written_pages()]}
    texts = [
        (path.relative_to(ROOT), line, text)
        for path, source in sources.items()
        for line, text in (texts_of(source) if path.suffix == ".py" else text_of_page(source))
    ]
    return texts, sum(source.count("\n") for source in sources.values())


def places(texts, pattern):
    return [
        f"{path}:{line}: {found.group(0)}"
        for path, line, text in texts
        for found in re.finditer(rf"\b{pattern}\b", text)
    ]


@pytest.mark.parametrize("pattern", WORDS)
def test_private_words_are_rare(prose, pattern):
    texts, lines = prose
    instead, most = WORDS[pattern]
    found = places(texts, pattern)
    rate = 1e4 * len(found) / lines
    assert rate <= most, f"{rate:.1f} of at most {most}; write {instead}: {found[:20]}"


def test_docstrings_of_functions_define_and_do_not_ask():
    functions = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", text)
        for package in PACKAGES
        for path in modules(package).values()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node))
    ]
    asking = [place for place, text in functions if text.split()[0].strip("`\"'") in QUESTIONS]
    assert len(asking) <= len(functions) / 100, asking


def test_the_search_sees_words_and_skips_names():
    texts = list(texts_of('"""Nobody tells `inclusion`."""\nx = "a coin of somebody"\n'))
    assert places([("a", *each) for each in texts], r"coins?") == ["a:2: coin"]
    assert len(places([("a", *each) for each in texts], r"(tells?|told)")) == 1
