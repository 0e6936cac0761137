"""Parts that an older version spelt by their place are still found, in run files and in ledgers."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest
from small import trained
from tables import people

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.config.population_identity import same_unit
from privfed.config.reading import load
from privfed.core.moved import MODULES, PARTS, former, moved
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.run.train import resume
from privfed.store.run_directory import RunDirectory
from privfed.trained.evaluate import evaluate

OLD = {
    "cohort.sampler": "privfed.samplers:Poisson",
    "data.source": "privfed.data.synthetic:Synthetic",
    "data.shift": "privfed.data.shift:NoShift",
    "data.partition": "privfed.data.partitions.basic:Natural",
    "model.name": "privfed.models:Logistic",
    "model.loss": "privfed.losses:CrossEntropy",
    "client.objective": "privfed.client.sgd:Sgd",
    "client.schedule": "privfed.schedule:Constant",
    "privacy.mechanism": "privfed.privacy.gaussian:CentralGaussian",
    "secure.protocol": "privfed.secure.plain:PlainSum",
    "cohort.availability": "privfed.availability:Always",
}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_part_is_found_where_it_was(kind):
    for name, target in BUILT_IN[kind].items():
        assert moved(target) == target
        places = former(target)
        assert places or not target.startswith("privfed.") or target.split(":")[0] in UNMOVED, name
        for place in places:
            assert find(kind, place, kind) is find(kind, name, kind)


UNMOVED = {
    *(f"privfed.data.sources.{name}" for name in ("folders", "hugging_face", "tff")),
    *(
        f"privfed.client.compression.{name}"
        for name in (
            *("none", "random_mask", "low_rank", "count_sketch"),
            *("power_sgd", "qsgd", "top_k", "sign"),
        )
    ),
    "privfed.client.dp_sgd",
    *(
        f"privfed.client.objectives.{name}"
        for name in (
            *("adaalter", "afl", "fedlin", "fedpa", "fedsplit", "group_clip", "qfedavg"),
            "worker_momentum",
        )
    ),
    *(
        f"privfed.client.objectives.personal.{name}"
        for name in ("ditto", "apfl", "ifca", "per_fedavg")
    ),
    "privfed.privacy.mechanisms.buffered",
    "privfed.privacy.mechanisms.pairwise_gaussian",
    "privfed.sampling.allocation",
    "privfed.secure.committee.protocol",
    *(
        f"privfed.server.{name}"
        for name in ("fedavg", "fedavgm", "adaptive", "lookahead", "slowmo")
    ),
    *(
        f"privfed.metrics.{name}"
        for name in (
            *("accuracy", "mean_loss", "auc", "calibration"),
            *("recall_at_k", "mean_absolute_error"),
        )
    ),
    *(f"privfed.run.watch.{name}" for name in ("csv_files", "tensorboard")),  # newer than the rooms
}


def test_what_parts_moved_to_is_there():
    for target in PARTS.values():
        module, _, name = target.partition(":")
        assert hasattr(import_module(module), name)
    for module in MODULES.values():
        import_module(module)


def test_a_run_that_spells_parts_by_their_former_places_is_resumed_and_audited(tmp_path):
    keys = [f"{key}={target}" for key, target in OLD.items()]
    trained(tmp_path / "run", *keys, "run.rounds=2", "run.randomness=seeded")
    stored = RunDirectory.open(tmp_path / "run").config.read()
    assert stored.names["sampler"] == OLD["cohort.sampler"]
    assert resume(tmp_path / "run", lambda stored: stored.with_run(rounds=3)).updates == 3
    assert audit(tmp_path / "run").problems == ()
    plain = trained(tmp_path / "plain", "run.rounds=3", "run.randomness=seeded")
    assert plain.guarantee == audit(tmp_path / "run").guarantee
    one, other = (
        Ledger.load(tmp_path / name / "ledger.jsonl").terms["population"]
        for name in ("run", "plain")
    )
    assert one == other, "the same people, however their source is spelt"


def test_a_run_of_the_version_before_the_rooms_goes_on(tmp_path):
    """Its ledger, checkpoint, client states and configuration were written by that version."""
    path = tmp_path / "run"
    shutil.copytree(Path(__file__).parent / "run_before_rooms", path)
    before = audit(path)
    assert before.problems == ()
    outcome = resume(path, lambda stored: stored.with_run(rounds=6))
    assert outcome.updates == outcome.charges == 6
    assert audit(path).problems == ()
    assert audit(path).guarantee.epsilon > before.guarantee.epsilon
    assert evaluate(path).measures["loss"] == outcome.measures["loss"]


def test_a_ledger_that_names_a_source_by_its_former_place_is_about_the_same_people(tmp_path):
    config = load(None, people(tmp_path / "a.csv"))
    assert same_unit(config, {"unit": "privfed.data.table:Table: person"})
    assert same_unit(config, {"unit": "privfed.data.sources.table:Table: person"})
    assert not same_unit(config, {"unit": "privfed.data.text:Text: person"})
