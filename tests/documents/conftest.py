"""Pages run as their readers run them."""

import pytest


@pytest.fixture(autouse=True)
def every_spelling():
    """Whatever a page plans is planned once: other tests ask in other spellings."""
