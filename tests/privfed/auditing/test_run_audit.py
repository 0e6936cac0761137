"""An audit re-computes epsilon from the ledger alone, and notices every edit."""

import json
import math
import shutil

import pytest
from click.testing import CliRunner
from lanes import every_case
from safetensors.torch import load_file, save_file
from small import trained

from accounting import chain, durable
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from privfed.auditing.run_audit import audit, opacus_epsilon
from privfed.cli.main import main
from privfed.store.round_logs import Releases
from privfed.store.run_files import CheckpointFile


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "run"
    trained(path)
    return path


@pytest.fixture
def copy(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def lines(path):
    return (path / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def edit(copy):
    text = (copy / "ledger.jsonl").read_text()
    (copy / "ledger.jsonl").write_text(
        text.replace('"noise_multiplier":2.0', '"noise_multiplier":9.0')
    )


def cut_in_the_middle(copy):
    kept = lines(copy)
    (copy / "ledger.jsonl").write_bytes(b"".join(kept[:4] + kept[5:]))


def reorder(copy):
    kept = lines(copy)
    kept[3], kept[4] = kept[4], kept[3]
    (copy / "ledger.jsonl").write_bytes(b"".join(kept))


def cut_at_the_end(copy):
    (copy / "ledger.jsonl").write_bytes(b"".join(lines(copy)[:-1]))


def rewrite_the_whole_chain(copy):
    """An editor who knows the format and re-computes every hash, with more noise."""
    previous, content = chain.START, b""
    for line in lines(copy):
        body = json.loads(line)
        del body["hash"]
        if body["type"] == "define":
            body["event"]["release"]["of"]["noise_multiplier"] = 9.0
        sealed, link = chain.sealed(previous, body)
        content, previous = content + sealed, link["hash"]
    (copy / "ledger.jsonl").write_bytes(content)


def empty(copy):
    (copy / "ledger.jsonl").write_bytes(b"")


def remove(copy):
    (copy / "ledger.jsonl").unlink()


def other_configuration(copy):
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("size = 4", "size = 2"))


def remove_checkpoint(copy):
    (copy / "checkpoint.safetensors").unlink()


def spoil_checkpoint(copy):
    (copy / "checkpoint.safetensors").write_bytes(b"not a checkpoint")


def change_summary(copy, **changes):
    path = copy / "report/summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def lower_claim(copy):
    change_summary(copy, epsilon=0.1)


def lower_claim_of_fewer_rounds(copy):
    change_summary(copy, epsilon=0.1, charges=6)


def claim_that_is_no_number(copy):
    change_summary(copy, epsilon=math.nan)


def claim_at_another_delta(copy):
    change_summary(copy, delta=1e-9)


def claim_of_another_unit(copy):
    change_summary(copy, unit="example")


def lower_claim_in_the_metrics(copy):
    path = copy / "metrics.jsonl"
    *lines, last = path.read_text().splitlines()
    line = json.loads(last) | {"epsilon": 0.1}
    path.write_text("\n".join([*lines, json.dumps(line)]) + "\n")


def remove_configuration(copy):
    (copy / "config.toml").unlink()


def ledger_that_is_a_folder(copy):
    (copy / "ledger.jsonl").unlink()
    (copy / "ledger.jsonl").mkdir()


def terms_of_other_types(copy):
    """A whole chain re-computed, a checkpoint that agrees, and a delta that is text."""
    previous, content = chain.START, b""
    for line in lines(copy):
        body = json.loads(line)
        del body["hash"]
        if body["type"] == "open":
            body["terms"]["delta"] = "0.001"
        sealed, link = chain.sealed(previous, body)
        content, previous = content + sealed, link["hash"]
    (copy / "ledger.jsonl").write_bytes(content)
    spoil_metadata(copy, {"ledger_head": previous})


def ledger_of_deep_nesting(copy):
    (copy / "ledger.jsonl").write_text("[" * 100_000 + "\n")


def checkpoint_without_a_head(copy):
    spoil_metadata(copy, {})


def checkpoint_with_a_strange_head(copy):
    spoil_metadata(copy, {"ledger_head": "zz"})


def spoil_metadata(copy, head):
    path = copy / "checkpoint.safetensors"
    about = {"format": 1, "round": 7, "updates": 7, **head}
    save_file(load_file(path), path, metadata={"privfed": json.dumps(about)})


CLAIMS = (
    lower_claim,
    lower_claim_of_fewer_rounds,
    claim_that_is_no_number,
    claim_at_another_delta,
    claim_of_another_unit,
    lower_claim_in_the_metrics,
)


@pytest.mark.parametrize(
    "tamper",
    [
        edit,
        cut_in_the_middle,
        reorder,
        cut_at_the_end,
        rewrite_the_whole_chain,
        empty,
        remove,
        other_configuration,
        remove_checkpoint,
        spoil_checkpoint,
        remove_configuration,
        ledger_that_is_a_folder,
        terms_of_other_types,
        ledger_of_deep_nesting,
        checkpoint_without_a_head,
        checkpoint_with_a_strange_head,
        *CLAIMS,
    ],
    ids=lambda tamper: tamper.__name__,
)
def test_every_edit_is_reported_with_exit_code_5_and_no_epsilon_is_claimed(copy, tamper):
    tamper(copy)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    result = CliRunner().invoke(main, ["audit", str(copy), "--json"])
    assert result.exit_code == 5, result.output
    found = json.loads(result.stdout)
    assert found["ledger_ok"] is False
    assert found["problems"]
    if tamper not in CLAIMS:
        assert found["epsilon"] == "inf"
    shown = CliRunner().invoke(main, ["audit", str(copy)])
    assert shown.exit_code == 5
    assert "BROKEN" in shown.stdout
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_the_untouched_run_is_fine(copy):
    audited = audit(copy)
    assert audited.problems == ()
    event = Event(PoissonSampled(4 / 12, Gaussian(2.0)), "poisson")
    assert audited.guarantee == guarantee({event: 7}, 1e-3)


def test_an_audit_of_a_run_that_goes_on_finds_nothing_wrong(tmp_path, monkeypatch):
    """Audited at every durable write of a run, as another process might."""
    path, found = tmp_path / "run", []
    real = durable.write_parts_atomically

    def audited(target, content):
        real(target, content)
        if (path / "checkpoint.safetensors").exists():
            found.append(audit(path).problems)

    monkeypatch.setattr("accounting.durable.write_parts_atomically", audited)
    trained(path)
    assert len(found) > 8
    assert set(found) == {()}


def test_an_audit_reads_the_ledger_after_what_cites_it(copy, monkeypatch):
    """A run may charge and release between an audit's two reads."""
    order = []
    reads = ((CheckpointFile, "head"), (Releases, "rounds"), (Ledger, "load"))
    for owner, name in reads:
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, real=real, name=name: (order.append(name), real(*args))[1]
        )
    audit(copy)
    assert order[-1] == "load"
    assert {"head", "rounds"} <= set(order[:-1])


def test_a_metrics_line_torn_by_a_crash_is_no_edit(copy):
    path = copy / "metrics.jsonl"
    path.write_text(path.read_text() + '{"format": 1, "rou')
    assert audit(copy).problems == ()


def test_an_audit_imports_nothing_that_the_directory_names(copy, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace('"fedavgm"', '"evil:X"'))
    assert "config.toml" in audit(copy).problems[0]


def test_keys_that_a_later_version_adds_do_not_break_an_old_run(copy, monkeypatch):
    """Its digest is over what config.toml says, not over today's defaults."""
    from privfed.config import sections
    from privfed.run.train import resume

    class Later(sections.Secure):
        bits: int = 32

    later = {
        **sections.SECTIONS,
        "secure": sections.Section("secure", Later, {"protocol": ("protocol", "none")}),
    }
    for module in ("config", "assembly", "overrides", "reading"):
        monkeypatch.setattr(f"privfed.config.{module}.SECTIONS", later)
    assert audit(copy).problems == ()
    assert resume(copy, lambda stored: stored.with_run(rounds=9)).updates == 9
    assert audit(copy).problems == ()


def test_a_run_in_progress_with_a_torn_charge_counts_it(copy):
    """Cut inside the line of a charge that no checkpoint has seen."""
    whole = lines(copy)
    head = json.loads(whole[-1])["hash"]
    line, _ = chain.sealed(head, {"type": "charge", "round": 8, "event": 0})
    (copy / "ledger.jsonl").write_bytes(b"".join(whole) + line[:20])
    audited = audit(copy)
    assert audited.problems == ()
    assert audited.guarantee.rounds == 8


@every_case(
    "q, z, rounds, delta", [(0.1, 1.25, 100, 1e-4), (0.01, 0.9, 1000, 1e-6), (0.3, 3.0, 120, 1e-4)]
)
def test_opacus_agrees(q, z, rounds, delta):
    spending = {Event(PoissonSampled(q, Gaussian(z)), "poisson"): rounds}
    ours = guarantee(spending, delta).by_accountant
    assert opacus_epsilon(spending, delta, "opacus_rdp") == pytest.approx(ours["rdp"], rel=2e-3)
    assert opacus_epsilon(spending, delta, "opacus_prv") == pytest.approx(ours["pld"], abs=0.02)


def test_opacus_would_notice_a_wrong_event():
    """The cross-check is independent enough to tell one noise multiplier from another."""
    right = {Event(PoissonSampled(0.1, Gaussian(1.25)), "poisson"): 100}
    wrong = {Event(PoissonSampled(0.1, Gaussian(1.3)), "poisson"): 100}
    ours = guarantee(right, 1e-4).by_accountant["rdp"]
    assert opacus_epsilon(wrong, 1e-4, "opacus_rdp") != pytest.approx(ours, rel=2e-3)


def test_opacus_is_beside_the_headline_never_in_it(copy):
    plain, checked = audit(copy), audit(copy, "opacus_prv")
    assert checked.guarantee == plain.guarantee
    assert checked.accountants.keys() == {"rdp", "pld", "opacus_prv"}


def test_opacus_on_noiseless_or_unsampled_events():
    assert (
        opacus_epsilon(
            {Event(PoissonSampled(0.1, Gaussian(0.0)), "poisson"): 1}, 1e-5, "opacus_prv"
        )
        == math.inf
    )
    plain = opacus_epsilon({Event(Gaussian(1.0), "full"): 1}, 1e-5, "opacus_rdp")
    assert plain == pytest.approx(4.7285, abs=1e-3)
    assert opacus_epsilon({}, 1e-5, "opacus_rdp") == 0.0
