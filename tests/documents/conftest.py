"""Pages run as their readers run them."""

import pytest


@pytest.fixture(autouse=True)
def every_spelling():
    """Plans of a page are made in one spelling only; other tests cover the other spellings."""
