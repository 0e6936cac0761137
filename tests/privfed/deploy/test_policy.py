"""A site's policy: its defaults, its mistakes, and what it makes of a run."""

from dataclasses import replace

import pytest
from lanes import every_case

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.deploy.files.federation_file import agreed
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.site.policy import TEXT, Code, LocalPolicy
from privfed.deploy.site.policy_check import refusal
from privfed.deploy.site.user_modules import file_digest, outside_part, unlisted_model_refusal

RUN = (
    "data.sites=3",
    "privacy.mechanism=skellam",
    "privacy.epsilon=2",
    "privacy.delta=1e-5",
    "secure.protocol=masks",
    "secure.threat=malicious",
    "data.clients=40",
    "cohort.size=10",
)


def federation(sites=3, **changes):
    keys = {f"s{number}": str(SiteKey.draw("x").public) for number in range(sites)}
    coordinator = str(SiteKey.draw("x").public)
    return agreed({"name": "stays", "coordinator": coordinator, "sites": keys, **changes})


THREE = federation()


def policy(tmp_path, *changes):
    """The default policy's file with `changes`, pairs of what stands there and what instead."""
    text = TEXT
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return LocalPolicy.read(path)


def declined(given, *overrides, federation=THREE, parameters=650):
    answer = refusal(given, load(None, [*RUN, *overrides]), federation, parameters)
    return answer and answer.code


def test_the_file_of_a_new_site_has_the_defaults(tmp_path):
    assert policy(tmp_path) == LocalPolicy()
    assert LocalPolicy().model_dump() == {
        "budget": {"epsilon": 2.0, "delta": 1e-5},
        "require": {
            "protocols": ["masks"],
            "mechanisms": ["discrete_gaussian", "skellam"],
            "threat": "malicious",
            "sites": 3,
            "approve": "automatic",
        },
        "allow": {
            "objectives": ["sgd", "fedprox"],
            "models": ["logistic", "mlp"],
            "parameters": 10_000_000,
            "deadline": 3600.0,
            "releases": ["training"],
            "simulation": False,
        },
    }


def test_every_mistake_is_in_one_message(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        "[budget]\nepsilon = inf\ndelta = 2\n[require]\nmechanisms = ['skelam']\nsites = 0\n"
        "protocols = []\n[allow]\nmodels = ['sha256:1']\nreleases = ['training', 'training']\n"
        "sums = 1\n[x]\n",
        encoding="utf-8",
    )
    with pytest.raises(Refused) as error:
        LocalPolicy.read(path)
    for part in (
        "budget.epsilon is inf",
        "budget.delta is 2",
        "did you mean 'skellam'",
        "require.sites is 0",
        "require.protocols is []",
        "allow.models is ['sha256:1']",
        "allow.releases is ['training', 'training']",
        "unknown key 'sums' in [allow]",
        "x is not a known key",
    ):
        assert part in str(error.value)


def test_no_policy_allows_no_noise(tmp_path):
    with pytest.raises(Refused, match="'none'"):
        policy(tmp_path, ('["discrete_gaussian", "skellam"]', '["none"]'))


def test_a_run_that_keeps_to_the_policy_is_not_declined(tmp_path):
    assert declined(policy(tmp_path)) is None


CENTRAL = ("privacy.mechanism=gaussian", "secure.protocol=none")
OPEN = ('protocols = ["masks"]', 'protocols = ["masks", "none"]')
GAUSSIAN = ('["discrete_gaussian", "skellam"]', '["skellam", "gaussian"]')
CURIOUS = ('threat = "malicious"  ', 'threat = "curious"')
SIMULATE = ("simulation = false", "simulation = true")
BOTH_WAYS = {
    "epsilon": (Code.BUDGET, ["privacy.epsilon=2.1"], [("epsilon = 2.0", "epsilon = 2.2")]),
    "delta": (Code.DELTA, ["privacy.delta=2e-5"], [("delta = 1e-5", "delta = 1e-4")]),
    "protocol": (
        Code.PROTOCOL,
        ["secure.protocol=none", "privacy.mechanism=local_gaussian"],
        [OPEN, CURIOUS, ('["discrete_gaussian", "skellam"]', '["local_gaussian"]')],
    ),
    "mechanism": (
        Code.MECHANISM,
        ["privacy.mechanism=gaussian"],
        [('["discrete_gaussian"', '["gaussian"')],
    ),
    "central": (Code.PROTOCOL, CENTRAL, [OPEN, GAUSSIAN, CURIOUS]),
    "threat": (Code.THREAT, ["secure.threat=curious"], [CURIOUS]),
    "objective": (
        Code.OBJECTIVE,
        ["client.objective=fedfor"],
        [('"sgd", "fedprox"]', '"sgd", "fedfor"]')],
    ),
    "model": (
        Code.MODEL,
        ["model.name=cnn"],
        [('"logistic", "mlp"]', '"cnn"]')],
    ),
    "seeded": (Code.SIMULATION, ["run.randomness=seeded"], [SIMULATE]),
    "arithmetic": (Code.SIMULATION, ["secure.simulate=arithmetic"], [SIMULATE]),
    "metrics": (
        Code.SIMULATION,
        ["run.simulation_metrics=true", "run.randomness=seeded"],
        [SIMULATE],
    ),
    "measures": (Code.SIMULATION, ["run.client_measures=true"], [SIMULATE]),
    "attackers": (
        Code.SIMULATION,
        ["attack.name=label_flip", "attack.fraction=0.1"],
        [SIMULATE],
    ),
    "dropout": (Code.SIMULATION, ["cohort.dropout=0.001"], [SIMULATE]),
}


@every_case("case", BOTH_WAYS)
def test_what_asks_for_more_is_declined_unless_the_policy_allows_it(tmp_path, case):
    code, overrides, allowing = BOTH_WAYS[case]
    assert declined(policy(tmp_path), *overrides) is code
    assert declined(policy(tmp_path, *allowing), *overrides) is None


def test_central_noise_under_masks_is_allowed_by_its_name_alone(tmp_path):
    masked = "privacy.mechanism=gaussian"
    answer = refusal(LocalPolicy(), load(None, [*RUN, masked]), THREE, 1)
    assert answer.code is Code.MECHANISM
    assert "the server sees sums" in answer.reason
    assert declined(policy(tmp_path, GAUSSIAN), masked) is None


@pytest.mark.parametrize("way", ["privacy.epsilon=inf", "privacy.mechanism=none"])
def test_no_policy_affords_a_run_without_noise(tmp_path, way):
    assert declined(policy(tmp_path, SIMULATE), way) in (Code.BUDGET, Code.MECHANISM)
    answer = refusal(LocalPolicy(), load(None, [*RUN, way]), THREE, 1)
    assert "the run adds no noise" in answer.reason


def test_fixed_noise_is_counted_by_receipts_and_none_is_not(tmp_path):
    config = load(None, RUN)
    fixed = config.privacy.model_copy(update={"epsilon": None, "noise_multiplier": 0.7})
    assert refusal(LocalPolicy(), replace(config, privacy=fixed), THREE, 1) is None
    none = fixed.model_copy(update={"noise_multiplier": 0.0})
    answer = refusal(LocalPolicy(), replace(config, privacy=none), THREE, 1)
    assert answer.code is Code.BUDGET


def test_sites_are_those_of_the_federation_and_enough_of_them_stay(tmp_path):
    assert declined(LocalPolicy(), federation=federation(4)) is Code.SITES
    four = policy(tmp_path, ("sites = 3", "sites = 4"))
    assert declined(four) is Code.SITES
    assert declined(four, "data.sites=4", "secure.minimum=4", federation=federation(4)) is None
    fewer = ("data.sites=4", "secure.minimum=3")
    assert declined(four, *fewer, federation=federation(4)) is Code.SITES
    assert declined(LocalPolicy(), *fewer, federation=federation(4)) is None
    assert declined(LocalPolicy(), "data.sites=0") is Code.SITES
    central = policy(tmp_path, OPEN, GAUSSIAN, CURIOUS, ("sites = 3", "sites = 4"))
    assert declined(central, *CENTRAL) is Code.SITES


def test_shares_that_open_a_secret_are_as_many_as_was_agreed():
    run = ("data.sites=5", "secure.minimum=5")
    assert declined(LocalPolicy(), *run, federation=federation(5, threshold=5)) is Code.SITES
    raised = (*run, "secure.threshold=1.0")
    assert declined(LocalPolicy(), *raised, federation=federation(5, threshold=5)) is None
    assert declined(LocalPolicy(), *run, federation=federation(5)) is None
    low = federation(5, threshold=3)  # 2 t > n + k is 4 with one colluder
    assert declined(LocalPolicy(), *run, federation=low) is Code.SITES


def test_the_largest_model_and_the_releases(tmp_path):
    given = policy(tmp_path, ("parameters = 10_000_000", "parameters = 650"))
    assert declined(given) is None
    assert declined(given, parameters=651) is Code.PARAMETERS
    by_clients = ("evaluation.by=clients", "run.rounds=20")
    assert declined(given, *by_clients) is Code.RELEASE
    both = policy(tmp_path, ('releases = ["training"]', 'releases = ["training", "evaluation"]'))
    assert declined(both, *by_clients) is None


def test_what_has_no_proof_is_declined(tmp_path):
    assert declined(LocalPolicy(), "cohort.sampler=truncated_poisson") is Code.PROOF


def test_parts_count_by_what_they_are_however_they_are_spelt(tmp_path):
    spelt = "privfed.privacy.mechanisms.distributed:SkellamNoise"
    assert declined(LocalPolicy(), f"privacy.mechanism={spelt}") is None
    spelt = "privfed.client.objectives.fedfor:FedFor"
    assert declined(LocalPolicy(), f"client.objective={spelt}") is Code.OBJECTIVE


def test_the_code_is_of_the_first_reason_and_the_text_has_all(tmp_path):
    config = load(
        None,
        [
            *RUN,
            "run.randomness=seeded",
            "privacy.delta=1e-4",
            "model.name=cnn",
            "evaluation.by=clients",
        ],
    )
    answer = refusal(LocalPolicy(), config, THREE, 20_000_000)
    assert answer.code is Code.SIMULATION
    for part in (
        "seeded",
        "privacy.delta is 0.0001",
        "model.name is cnn",
        "20000000",
        "evaluation",
    ):
        assert part in answer.reason


OWN = """\
from pathlib import Path
Path("ran").write_text("x")
from torch import nn
def net(features, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width))
"""


def run_text(model, **sections):
    more = "".join(f"[{name}]\n{text}\n" for name, text in sections.items())
    return f'[model]\nname = "{model}"\n{more}'


def test_an_own_module_is_allowed_by_its_files_digest_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_net_of_a_policy.py"
    file.write_text(OWN)
    text, named = run_text(f"{file.stem}:net"), f"model.name={file.stem}:net"
    assert outside_part(LocalPolicy(), text).code is Code.MODEL
    assert not (tmp_path / "ran").exists()
    listed = policy(tmp_path, ('"logistic", "mlp"]', f'"{file_digest(file)}"]'))
    assert outside_part(listed, text) is None
    assert not (tmp_path / "ran").exists()
    assert declined(listed, named) is None
    assert declined(LocalPolicy(), named) is Code.MODEL
    file.write_text(OWN + "# other\n")
    assert outside_part(listed, text).code is Code.MODEL
    assert declined(listed, named) is Code.MODEL


def test_a_module_that_hands_on_another_ones_function_is_refused(tmp_path, monkeypatch):
    """Whatever it would import: what runs is not what its digest stands for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    inner, outer = tmp_path / "inner_net_of_a_policy.py", tmp_path / "outer_net_of_a_policy.py"
    inner.write_text(OWN)
    outer.write_text(f"from {inner.stem} import net\n")
    named = f"model.name={outer.stem}:net"
    both = ('"logistic", "mlp"]', f'"{file_digest(outer)}", "{file_digest(inner)}"]')
    assert declined(policy(tmp_path, both), named) is Code.MODEL


@every_case(
    "text",
    [
        "from torch import load",
        "import torch\nload = torch.load",
        "def load(): ...\nfrom torch import load",
        "def load(): ...\nfrom torch import *",
        "if True:\n    def load(): ...\n",
        "def load(): ...\ndef load(): ...\n",
        "class A:\n    def load(): ...\n",
        "def load(:",
    ],
    ids=range(8),
)
def test_a_listed_file_is_listed_for_what_it_defines_itself(tmp_path, monkeypatch, text):
    """A name that it only imports is somebody else's code, with arguments of the run's choice."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "listed_net_of_a_policy.py"
    path.write_text(text)
    listed = policy(tmp_path, ('"logistic", "mlp"]', f'"{file_digest(path)}"]'))
    assert unlisted_model_refusal(listed, f"{path.stem}:load").code is Code.MODEL
    path.write_text("def load(): ...\n")
    listed = policy(tmp_path, ('"logistic", "mlp"]', f'"{file_digest(path)}"]'))
    assert unlisted_model_refusal(listed, f"{path.stem}:load") is None


@every_case(
    "model",
    ["os:system", "subprocess:run", "privfed.models.recipes:Mlp", "sys:exit", "no_such:x", "own"],
)
def test_modules_of_others_are_no_models(model):
    assert outside_part(LocalPolicy(), run_text(model)).code is Code.MODEL


@every_case(
    "sections",
    [
        {"client": 'objective = "own:Part"'},
        {"run": 'watch = ["own:Part"]'},
        {"aggregation": 'before = ["own:Part"]'},
        {"data": 'source = "own:Part"'},
        {"compression": 'name = "soft_labels"\nmodels = ["own:Part"]'},
        {"nonsense": "x = 1"},
    ],
)
def test_other_parts_from_outside_never_run(sections):
    assert outside_part(LocalPolicy(), run_text("logistic", **sections)).code is Code.PART
    assert outside_part(LocalPolicy(), run_text("logistic")) is None


def test_texts_that_are_no_run_files_are_declined():
    for text in ("[", "format = 9", "model = 3", "[model]\nname = 3"):
        assert outside_part(LocalPolicy(), text) is not None
