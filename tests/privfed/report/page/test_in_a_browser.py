"""Pages in a headless browser: no complaint, nothing wider than a phone, sorting, accessibility."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from grids import BASE, in_process, write
from small import trained
from waiting import LONG

from privfed.grid.engine import run_grid
from privfed.grid.load import load_grid
from privfed.grid.results import Files
from privfed.report.page.write import write_grid_page, write_run_page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=10000"),
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason="no Chromium is installed"),
]
NARROW = 390
ASK = """
<body><iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>
<pre id="answer"></pre><script>
addEventListener("load", async () => {{
  const view = document.querySelector("iframe").contentWindow;
  const answer = await (async () => {{ {script} }})();
  document.getElementById("answer").textContent = JSON.stringify(answer);
}});
</script></body>
"""
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of a run with simulation-only chapters, and that of a grid."""
    folder = tmp_path_factory.mktemp("browser")
    trained(folder / "run", "run.simulation_metrics=true", "run.checkpoint_every=2")
    figure = '\n[[figure]]\nname = "map"\nkind = "heat"\nx = "client.lr"\nby = "cohort.size"\n'
    varied = '[grid]\n"client.lr" = [0.1, 0.5]\n"cohort.size" = [4, 6]\n'
    grid = write(folder / "grid", f'base = "base.toml"\nseeds = [0]\n{varied}{figure}', BASE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privfed.grid.engine.work", in_process)
        run_grid(Files(grid, grid.parent), load_grid(grid), 1, False, _Silent())
    return {
        "run": write_run_page(folder / "run", simulation=True).path,
        "grid": write_grid_page(grid).path,
    }


class _Silent:
    def __getattr__(self, name):
        return lambda *_, **__: None


def browse(path, folder, *flags):
    """What the browser made of the page, and what it wrote on its console."""
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom"]
    done = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, timeout=LONG, check=True
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def ask(page, folder, script, width=NARROW, *flags):
    """What `script` returns in a frame that shows the page; its policy is left out."""
    text = POLICY.sub("", page.read_text("utf-8"))
    file = folder / "ask.html"
    shown = ASK.format(width=width, page=html.escape(text), script=script)
    file.write_text(f'<!doctype html><meta charset="utf-8">{shown}', "utf-8")
    dom, _ = browse(file, folder, *flags)
    answer = re.search(r'<pre id="answer">(.*?)</pre>', dom, re.DOTALL)
    return json.loads(html.unescape(answer[1]))


@pytest.mark.parametrize("name", ["run", "grid"])
def test_the_console_stays_silent(pages, tmp_path, name):
    _, complaints = browse(pages[name], tmp_path)
    assert complaints == []


def test_a_complaint_would_be_seen(pages, tmp_path):
    other = tmp_path / "other.html"
    other.write_text(pages["grid"].read_text("utf-8").replace("use strict", "use  strict"), "utf-8")
    _, complaints = browse(other, tmp_path)
    assert any("Content Security Policy" in line for line in complaints)


@pytest.mark.parametrize("name", ["run", "grid"])
def test_nothing_is_wider_than_a_phone(pages, tmp_path, name):
    script = "return view.document.documentElement.scrollWidth;"
    assert ask(pages[name], tmp_path, script) <= NARROW


@pytest.mark.parametrize("name", ["run", "grid"])
def test_tables_of_up_to_four_columns_need_no_scrolling_on_a_phone(pages, tmp_path, name):
    """Nor does anything else that may scroll, except pictures of a fixed size."""
    script = """
    view.document.querySelectorAll("details").forEach((each) => (each.open = true));
    const boxes = [...view.document.querySelectorAll(".scroll, pre")];
    const few = (box) => box.querySelectorAll("thead th").length <= 4;
    const named = (box) => box.ariaLabel || box.textContent;
    return [boxes.filter(few).length,
            boxes.filter((box) => few(box) && box.scrollWidth > box.clientWidth).map(named)];
    """
    seen, cut = ask(pages[name], tmp_path, script)
    assert seen > 1
    assert cut == []


def test_tables_sort_by_their_headings(pages, tmp_path):
    script = """
    const table = view.document.querySelector("table.sortable");
    const column = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent.trim());
    const heading = table.tHead.rows[0].cells[0];
    const orders = [];
    for (let press = 0; press < 2; press += 1) {
      heading.querySelector("button").click();
      orders.push([heading.getAttribute("aria-sort"), ...column()]);
    }
    return orders;
    """
    up, down = ask(pages["grid"], tmp_path, script, 1200)
    assert up == ["ascending", "0.1", "0.1", "0.5", "0.5"]
    assert down == ["descending", "0.5", "0.5", "0.1", "0.1"]


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: npm install --no-save axe-core")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
@pytest.mark.parametrize("name", ["run", "grid"])
def test_an_accessibility_checker_objects_to_nothing(pages, tmp_path, name, scheme):
    (tmp_path / "axe.js").write_bytes(AXE.read_bytes())
    script = """
    const tag = view.document.createElement("script");
    tag.src = "axe.js";
    await new Promise((done) => { tag.onload = done; view.document.head.append(tag); });
    const { violations } = await view.axe.run(view.document);
    return violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 160))]);
    """
    scheme_flag = f"--blink-settings=preferredColorScheme={scheme}"
    assert ask(pages[name], tmp_path, script, 1200, scheme_flag) == []
