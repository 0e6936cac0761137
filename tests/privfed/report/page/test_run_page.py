"""The page of a run: what it says, what it keeps to itself, and that it asks for nothing."""

import functools
import itertools
import json
import re
import shutil
import stat
import sys
from html import unescape

import pytest
from commands import run
from html_page import Document
from small import trained

import privfed
from privfed.auditing.canaries import power
from privfed.core.errors import Broken, Refused
from privfed.report.page import checked, learning, run_page
from privfed.report.page.blocks import Banner, BulletList, Chapter, Facts, Figures, Page, Paragraph
from privfed.report.page.drawing import Axes, Line, lines_picture
from privfed.report.page.write import render, write_run_page

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\"'&$\\frac{x"
SIMULATED = ("run.simulation_metrics=true", "run.checkpoint_every=2")
ATTACKED = ("attack.name=alie", "attack.fraction=0.25")
ROWS = ("aggregation.rule=median", "privacy.mechanism=local_gaussian")


@pytest.fixture(scope="module", autouse=True)
def drawn_once():
    """A picture is drawn once, as copies of a run show the same; and canaries notice one fault."""
    drawn = {}

    def picture(*shown):
        if (key := repr(shown)) not in drawn:
            drawn[key] = lines_picture(*shown)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(power, "_SHARES", (0.5,))
        for module in (checked, learning, run_page):
            patched.setattr(module, "lines_picture", picture)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A plain run, one with canaries, and one whose attackers read raw updates."""
    folder = tmp_path_factory.mktemp("pages")
    trained(folder / "plain")
    # Of 60 coins five fall either way, as evidence needs; of 20, one in 85 times they do not.
    trained(folder / "canaries", "data.clients=64", "audit.canaries=60")
    trained(folder / "void", *SIMULATED, *ATTACKED, *ROWS)
    return folder


@functools.cache
def page(path, simulation=False):
    return Document(write_run_page(path, None, simulation).path.read_text("utf-8"))


@pytest.fixture(scope="module")
def plain(runs):
    return page(runs / "plain")


def test_headings_and_landmarks_are_in_order(plain):
    levels = [int(heading.tag[1]) for heading in plain.all("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert [len(plain.all(tag)) for tag in ("header", "nav", "main", "footer")] == [1, 1, 1, 1]
    assert plain.all("html")[0].attributes["lang"] == "en"
    assert plain.all("title")[0].text.startswith("plain")


def test_names_are_unique_and_every_reference_is_met(plain):
    names = [e.attributes["id"] for e in plain.elements if "id" in e.attributes]
    assert len(names) == len(set(names))
    links = [e.attributes["href"] for e in plain.elements if "href" in e.attributes]
    assert all(link.startswith("#") for link in links)
    labels = [e.attributes.get("aria-labelledby", "") for e in plain.elements]
    clips = re.findall(r"url\(#([^)]+)\)", plain.html)
    wanted = {link[1:] for link in links} | {*" ".join(labels).split()} | {*clips}
    assert wanted <= set(names)


def test_pictures_and_tables_are_described(plain):
    drawings = [svg for svg in plain.all("svg") if "aria-labelledby" in svg.attributes]
    assert len(drawings) == len(plain.all("svg")) >= 4
    assert all(svg.attributes["role"] == "img" for svg in drawings)
    assert len(plain.all("desc")) == len(drawings)
    assert len(plain.all("caption")) == len(plain.all("table")) > 0
    assert all(cell.attributes.get("scope") in ("col", "row") for cell in plain.all("th"))


def test_text_of_pictures_stays_text(plain):
    texts = [element.text for element in plain.all("text")]
    assert {"charged rounds", "ε", "δ", "baseline"} <= {t.strip() for t in texts}


@pytest.mark.parametrize("name", ["plain", "canaries", "void"])
def test_no_page_asks_for_anything(runs, name):
    document = page(runs / name, simulation=True)
    policy = document.all("meta")[1].attributes["content"]
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    assert document.all("script", "link", "iframe", "object", "embed", "form", "base") == []
    for element in document.elements:
        for attribute, value in element.attributes.items():
            assert not attribute.startswith("on")
            assert not re.search(r"https?:|//", value), (element.tag, attribute)
    style = document.all("style")[0].text
    assert "@import" not in style
    assert "url(" not in style


def test_the_guarantee_is_never_without_what_it_means(runs, plain):
    (quoted,) = plain.texts("blockquote")
    bound = privfed.load(runs / "plain").guarantee
    for word in ("δ = 0.001", "client", "add/remove", "poisson", "tightest", "7 rounds"):
        assert word in quoted
    assert bound.sentence in quoted
    headline = next(e.text for e in plain.all("p") if e.attributes.get("class") == "headline")
    for word in ("ε = ", "δ = ", "client", "add/remove", "poisson", "tightest"):
        assert word in headline


def test_what_differs_from_the_default_is_said_in_words(plain):
    marked = [e.text for e in plain.all("tr") if e.attributes.get("class") == "marked"]
    rows = {row.split()[0]: " ".join(row.split()) for row in marked}
    assert rows["run.rounds"] == "run.rounds 7 changed; default 120"
    assert "run.seed" not in rows
    assert "privfed audit" in plain.texts("pre")[-2]
    assert "--claim claim.json" in plain.texts("pre")[-1]


def test_the_audit_says_what_was_claimed_proved_and_tested_and_with_which_power(runs):
    """Who is responsible for the data reads this chapter alone."""
    plain, tested = ("".join(page(runs / name).texts("section")) for name in ("plain", "canaries"))
    for text in (plain, tested):
        assert "re-computed from the ledger alone" in text
    assert "not in this run: it had no canaries" in plain
    assert "Largest probability" not in plain
    for words in (
        "were in the population",
        "by 60 canaries",
        "with 90% confidence. The canaries do not contradict the claim",  # of two at 95 %
        "if only 0.5 of the charged noise were added (a true ε of",
        "Largest probability with which 60 canaries detect that ε exceeds the claim",
    ):
        assert words in tested
    assert "dominated by chance" in tested
    assert "estimate, final model" not in tested  # of so few it is not drawn beside the claim


def test_simulations_stay_out_unless_asked_for(runs):
    for name, private in (("void", "median norm"), ("void", "attacking clients")):
        assert private not in page(runs / name).html
        assert private in page(runs / name, simulation=True).html
    assert "Not covered by any ε" in page(runs / "void", simulation=True).html
    assert (runs / "void/private/simulation.html").is_file()


def test_a_void_run_says_so_first_whatever_was_asked(runs):
    for simulation in (False, True):
        document = page(runs / "void", simulation)
        titles = [t for t, e in zip(document.texts("strong"), document.all("strong"), strict=True)]
        assert titles[:2] == ["No guarantee.", "Simulation."]
        assert document.texts("blockquote")[0].startswith("Nothing is guaranteed: void")
        assert "differentially private" not in document.html


def test_both_guarantees_of_distributed_noise_are_quoted(tmp_path):
    masks = ("secure.protocol=masks", "cohort.sampler=full", "cohort.size=0", "data.clients=8")
    trained(tmp_path / "run", *masks, "privacy.mechanism=skellam", "secure.simulate=arithmetic")
    quoted = page(tmp_path / "run").texts("blockquote")
    assert ["against the server" in text for text in quoted] == [True, False]
    assert "against readers" in quoted[1]


def test_who_sees_what_of_noise_that_each_site_adds(tmp_path):
    """The server is shown noised sums of sites, and no row, though there is no protocol."""
    trained(tmp_path / "run", "data.sites=5", "privacy.mechanism=local_gaussian")
    said = unescape(page(tmp_path / "run").html)
    assert "the server sees each site's sum with that site's noise" in said
    assert "sees every client" not in said


def test_a_broken_ledger_has_no_page(runs, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "edited")
    ledger = tmp_path / "edited/ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"delta":0.001', '"delta":0.1'))
    (tmp_path / "edited/report/page.html").unlink(missing_ok=True)
    with pytest.raises(Broken, match="no page is written"):
        write_run_page(tmp_path / "edited")
    answer = run("report", tmp_path / "edited", "--json")
    assert answer.exit_code == 5
    assert json.loads(answer.stdout)["error"]["kind"] == "broken"
    assert not (tmp_path / "edited/report/page.html").exists()


def test_a_run_that_has_not_ended_says_so(runs, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "run")
    (tmp_path / "run/report/summary.json").unlink()
    assert "Not ended." in page(tmp_path / "run").texts("strong")


def test_command_and_python_write_the_same_page(runs, tmp_path):
    answer = run("report", runs / "plain", "--out", tmp_path / "a.html", "--json")
    assert answer.exit_code == 0
    assert json.loads(answer.stdout)["page"] == str(tmp_path / "a.html")
    path = privfed.load(runs / "plain").report(tmp_path / "b.html")
    assert path.read_bytes() == (tmp_path / "a.html").read_bytes()


@pytest.mark.parametrize("out", [".", "nowhere/page.html"])
def test_where_no_page_can_be_written_is_refused(runs, tmp_path, out):
    with pytest.raises(Refused, match="out is"):
        write_run_page(runs / "plain", tmp_path / out)
    assert run("report", tmp_path / "none").exit_code == 2


def test_hostile_names_are_shown_and_not_obeyed():
    picture = lines_picture("drawn", HOSTILE, Axes(HOSTILE, HOSTILE), [Line(HOSTILE, [(1, 2.0)])])
    table = Figures(HOSTILE, [HOSTILE], [[HOSTILE]], sortable=True)
    blocks = [Paragraph(HOSTILE), BulletList([HOSTILE]), Facts({HOSTILE: HOSTILE}), table, picture]
    chapter = Chapter("c", HOSTILE, blocks, Banner(HOSTILE, HOSTILE))
    document = Document(render(Page(HOSTILE, HOSTILE, [Banner(HOSTILE, HOSTILE)], [chapter], "x")))
    assert len(document.all("script")) == 1  # that of sorting, which the policy names
    assert "script-src 'sha256-" in document.all("meta")[1].attributes["content"]
    assert not re.search("[\x1b\u202e]", document.html)
    shown = "<script>alert(1)</script>\\x1b[31m\\u202e\"'&$\\frac{x"
    assert shown in document.all("h1")[0].text
    assert shown in [text.strip() for text in document.texts("text")]


def test_a_hostile_folder_is_a_name_like_any_other(runs, tmp_path):
    folder = tmp_path / '<b onclick="x">&$'
    shutil.copytree(runs / "plain", folder)
    document = page(folder)
    assert document.all("h1")[0].text == folder.name
    assert document.all("b") == []


def test_nothing_finite_is_no_picture():
    assert lines_picture("none", "none", Axes("x", "y"), [Line("a", [(1, float("inf"))])]) is None


def test_an_open_run_promises_nothing(tmp_path):
    trained(tmp_path / "run", "privacy.mechanism=none", "run.rounds=2")
    document = page(tmp_path / "run")
    assert "othing is promised about any one client" in document.texts("blockquote")[0]


def test_without_a_part_that_is_named_the_rest_is_still_said(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "passing.py").write_text(
        "from privfed.models.recipes import Logistic\nclass Model(Logistic): pass\n"
    )
    trained(tmp_path / "run", "model.name=passing:Model", "run.rounds=2")
    (tmp_path / "passing.py").unlink()
    sys.modules.pop("passing")
    document = page(tmp_path / "run")
    assert document.html.count("Parts that the configuration names are not available") == 2
    assert "differentially private" in document.texts("blockquote")[0]


def test_a_page_replaces_nothing_but_a_page_of_its_kind(runs, tmp_path):
    run_path = tmp_path / "run"
    shutil.copytree(runs / "plain", run_path)
    before = {p: p.read_bytes() for p in run_path.rglob("*") if p.is_file()}
    for name in ("ledger.jsonl", "config.toml", "checkpoint.safetensors", "report/summary.json"):
        with pytest.raises(
            Refused, match="is not a page that this command wrote; nothing was changed"
        ):
            write_run_page(run_path, run_path / name)
    assert all(path.read_bytes() == content for path, content in before.items())
    ours = write_run_page(run_path).path
    assert write_run_page(run_path).path == ours == run_path / "report/page.html"
    with pytest.raises(Refused, match="is not a page that this command wrote"):
        write_run_page(run_path, ours, simulation=True)


def test_what_only_a_simulation_may_know_is_for_nobody_else_to_read(runs, tmp_path):
    run_path = tmp_path / "run"
    shutil.copytree(runs / "canaries", run_path)
    path = write_run_page(run_path, simulation=True).path
    assert path == run_path / "private/simulation.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    elsewhere = write_run_page(run_path, tmp_path / "s.html", simulation=True).path
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600


def test_a_page_is_written_into_the_run_and_nowhere_else(runs, tmp_path):
    run_path, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(runs / "plain", run_path)
    victim.write_text("mine")
    (run_path / "report/.page.html.tmp").symlink_to(victim)
    assert not write_run_page(run_path).path.is_symlink()
    assert victim.read_text() == "mine"
    shutil.rmtree(run_path / "report")
    assert write_run_page(run_path).path.is_file()  # an empty folder is easily lost
    shutil.rmtree(run_path / "report")
    (run_path / "report").symlink_to(tmp_path)
    with pytest.raises(Refused, match="is a link, which may point outside the run"):
        write_run_page(run_path)


@pytest.mark.parametrize(
    "edit",
    [
        {"constant": [1]},
        {"constant": {"accuracy": "x"}},
        {"accuracy": "high"},
        {"loss": None},
        {"accuracy": 1e308},
        {"loss": 10**400},
    ],
)
def test_what_no_run_writes_is_left_out(runs, tmp_path, edit):
    run_path = tmp_path / "run"
    shutil.copytree(runs / "plain", run_path)
    summary = json.loads((run_path / "report/summary.json").read_text())
    (run_path / "report/summary.json").write_text(json.dumps({**summary, **edit}))
    lines = (run_path / "metrics.jsonl").read_text().splitlines()
    last = {**json.loads(lines[-1]), **{k: v for k, v in edit.items() if k != "constant"}}
    (run_path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert write_run_page(run_path).path.is_file()


def test_an_old_summary_is_no_end_of_a_run_that_went_on(runs, tmp_path):
    run_path = tmp_path / "run"
    shutil.copytree(runs / "plain", run_path)
    summary = json.loads((run_path / "report/summary.json").read_text())
    summary |= {"ledger_head": "0" * 64, "accuracy": 0.9876}
    (run_path / "report/summary.json").write_text(json.dumps(summary))
    text = write_run_page(run_path).path.read_text("utf-8")
    assert "has not ended" in text
    assert "98.76" not in text
