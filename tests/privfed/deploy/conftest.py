"""What tests of several carriers begin with."""

import pytest
from commands import run

from privfed.deploy.files.keys import SiteKey


@pytest.fixture
def agreed(tmp_path):
    """A run file, a federation of two sites, and the coordinator's key next to it."""
    key = SiteKey.draw("coordinator")
    key.write(tmp_path / "key")
    federation = tmp_path / "federation.toml"
    assert run("federation", "new", federation, "--name", "stays", "--coordinator", key.public)
    for name in ("berlin", "paris"):
        site = ("--site", name, SiteKey.draw(name).public)
        assert run("federation", "add", federation, *site).exit_code == 0
    (tmp_path / "run.toml").write_text("[run]\nrounds = 3\n")
    return tmp_path
