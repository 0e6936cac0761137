"""An HTML page as tests read it: its elements, their attributes, and their text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "img", "br", "hr", "input"})


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parents: tuple[str, ...]
    text: str = ""
    open: bool = True


@dataclass
class Document(HTMLParser):
    """All elements of a page, in order; raises if tags do not match."""

    html: str
    elements: list[Element] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.feed(self.html)
        self.close()
        assert self._open == []

    def all(self, *tags):
        return [element for element in self.elements if element.tag in tags]

    def texts(self, *tags):
        return [element.text.strip() for element in self.all(*tags)]

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        names = {name: value or "" for name, value in attrs}
        element = Element(tag, names, tuple(parent.tag for parent in self._open))
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag

    def handle_data(self, data):
        for element in self._open:
            element.text += data
