"""The systemd unit of the page is one that systemd accepts."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from waiting import LONG

PAGE = Path(__file__).parents[3] / "docs/how-to/operate_a_site.md"


def verified(folder, text):
    path = folder / "privfed.service"
    path.write_text(text)
    words = ["systemd-analyze", "verify", "--recursive-errors=no", str(path)]
    return subprocess.run(words, capture_output=True, text=True, timeout=LONG)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit_and_would_not_accept_a_mistake(tmp_path):
    (block,) = re.findall(r"```text\n(# /etc/systemd.*?)```", PAGE.read_text(), re.DOTALL)
    here = block.replace("/opt/privfed/bin/privfed", shutil.which("true"))
    here = here.replace("User=privfed", "User=root")
    checked = verified(tmp_path, here)
    assert (checked.returncode, checked.stderr) == (0, "")
    wrong = verified(tmp_path, here.replace("MemoryMax=4G", "MemoryMax=much"))
    assert wrong.returncode != 0
