"""Questions of `privfed calibrate` about sites: the run's own plan, two guarantees, whole sites."""

import json
from dataclasses import replace

import pytest
from commands import run
from lanes import every_case, mostly_slow

import privfed
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.plan.calibration.as_run import config_of
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.calibration.solving import solve
from privfed.plan.plan import plan

ONE_NOISE = CalibrationQuestion(
    *("skellam", "poisson", 1e-4, "tightest"),
    population=3000,
    cohort=300,
    rounds=60,
    epsilon=2.0,
    bits=24,
    dimension=100,
    sites=5,
)
CENTRAL = replace(ONE_NOISE, mechanism="gaussian", bits=None, dimension=None)
OWN_NOISE = replace(CENTRAL, mechanism="local_gaussian")
FLAGS = ["--delta", 1e-4, "--population", 3000, "--cohort", 300, "--rounds", 60, "--epsilon", 2]


@every_case(
    "flags, keys",
    [
        ({"colluders": 2, "minimum": 4}, {"secure.colluders": 0.4, "secure.minimum": 4}),
        ({"sizing": "layers"}, {"privacy.sizing": "layers"}),
        ({"sites_per_client": 2}, {"data.sites_per_client": 2}),
    ],
)
def test_it_is_the_plan_of_such_a_run(flags, keys):
    written = {
        "data.clients": 3000,
        "data.sites": 5,
        "cohort.size": 300,
        "run.rounds": 60,
        "secure.protocol": "masks",
        "privacy.mechanism": "skellam",
        "secure.bits": 24,
        "privacy.epsilon": 2.0,
        "privacy.delta": 1e-4,
        **keys,
    }
    theirs = plan(load(None, [f"{key}={value}" for key, value in written.items()]), length=100)
    ours = solve(replace(ONE_NOISE, **flags))
    assert ours.question.noise_multiplier == theirs.noise_multiplier
    assert ours.bound == theirs.guarantee
    assert ours.other_party == theirs.other_party(60)
    assert ours.cost.limits == theirs.cost.limits


@every_case("sites", [2, 3, 7, 10, 30, 1000, 9999])
def test_colluders_are_whole_sites(sites):
    """So many as are asked for, whatever the quotient's last bits; by default a tenth, rounded up.

    A threshold of next to nothing leaves it to them how many have to survive.
    """
    for colluders in {1, sites // 3 or 1, sites - 1}:
        asked = replace(ONE_NOISE, sites=sites, colluders=colluders, threshold=1e-6)
        protocol = config_of(asked).row_hiding
        assert protocol.colluding_sites(sites) == colluders
    default = config_of(replace(ONE_NOISE, sites=sites)).row_hiding
    assert default.colluding_sites(sites) == max(1, -(-sites // 10))


def test_two_guarantees_and_what_a_colluder_costs():
    """z is over the noise that is counted: another colluder makes sites add more, for one ε."""
    one, two = (solve(replace(ONE_NOISE, colluders=k, minimum=4)) for k in (1, 2))
    assert one.bound.epsilon == pytest.approx(2.0, rel=1e-3)
    assert two.question.noise_multiplier == pytest.approx(one.question.noise_multiplier, rel=1e-3)
    first, second = one.to_json(), two.to_json()
    for facts, counted in ((first, 3), (second, 2)):
        z = facts["noise_multiplier"]
        assert facts["noise_of_all_sites"] == pytest.approx(z * (5 / counted) ** 0.5)
        assert facts["share_std"] == pytest.approx(z * facts["clip"] / counted**0.5)
        assert facts["against"] == "sites"
        assert facts["other_party"]["against"] == "others"
        assert facts["other_party"]["epsilon"] > facts["epsilon"]
    assert (
        first["other_party"]["epsilon"] > second["other_party"]["epsilon"]
    )  # a share of its own is more
    layers = solve(replace(ONE_NOISE, colluders=1, minimum=4, sizing="layers")).to_json()
    assert layers["noise_of_all_sites"] == pytest.approx(
        layers["noise_multiplier"] * (5 / 4) ** 0.5
    )


def test_other_noise_at_sites():
    """Each site's own noise is amplified by its own draw, as a trusted server's is by all draws."""
    central, own = solve(CENTRAL), solve(OWN_NOISE)
    assert own.question.noise_multiplier == central.question.noise_multiplier
    assert own.to_json()["noise_of_all_sites"] == pytest.approx(
        5**0.5 * own.question.noise_multiplier
    )
    assert central.to_json()["sites"] == 5
    assert "noise_of_all_sites" not in central.to_json()
    hidden = solve(replace(CENTRAL, protocol="masks", colluders=2)).to_json()
    assert (hidden["minimum"], hidden["colluders"]) == (3, 2)
    for one_noise in ({}, {"mechanism": "discrete_gaussian"}):
        z = solve(replace(ONE_NOISE, **one_noise)).question.noise_multiplier
        assert central.question.noise_multiplier < z < 1.15 * central.question.noise_multiplier


@pytest.mark.parametrize(
    ("sizing", "parts"),
    mostly_slow(
        [(sizing, parts) for sizing in ("minimum", "layers") for parts in (1, 2)],
        *(("minimum", 1), ("layers", 2)),
    ),
)
def test_gaussian_shares_need_the_noise_of_a_trusted_server(sizing, parts):
    """Over the norm of encoded rows, also for clients at several sites."""
    shares = {"mechanism": "discrete_gaussian", "sizing": sizing, "sites_per_client": parts}
    found = solve(replace(ONE_NOISE, **shares))
    central = solve(replace(CENTRAL, sites_per_client=parts))
    ratio = found.question.noise_multiplier / central.question.noise_multiplier
    encoded = found.to_json()["encoded"]
    assert encoded * (1 - 1e-4) <= ratio <= encoded * 1.001


def test_each_number_follows_from_the_others():
    z = solve(ONE_NOISE).question.noise_multiplier
    noised = replace(ONE_NOISE, noise_multiplier=z)
    assert solve(replace(noised, epsilon=None)).bound.epsilon == pytest.approx(2.0, rel=1e-3)
    assert solve(replace(noised, rounds=None)).question.rounds == 60
    assert 290 <= solve(replace(noised, cohort=None)).question.cohort <= 305


@every_case(
    "wrong, reason",
    [
        ({"colluders": 0.2}, r"use 1, which is secure.colluders = 0.2 of 5 sites$"),
        ({"colluders": 0.95}, "number of sites; use an integer from 1 to 4$"),
        ({"colluders": 1.5}, "number of sites; use an integer from 1 to 4$"),
        ({"colluders": 0}, "any site may be curious"),
        ({"colluders": 5}, "at most 4, so that the noise of at least one"),
        ({"sites": None, "colluders": 1}, "a fraction of a cohort below 1, or with sites"),
        ({"sites": 0}, "sites is 0; expected one or more"),
        ({"sites": None, "sites_per_client": 2}, "but sites is missing"),
        ({"sites_per_client": 6}, "sites_per_client is 6, but sites is 5"),
        ({"against": "server"}, "one guarantee holds against both"),
        ({"byzantine": 2}, "count Byzantine sites among colluders"),
        (
            {"sampling_rate": 0.1, "population": None, "cohort": None},
            "give population and cohort",
        ),
        ({"minimum": 1}, "secure.minimum is 1 sites; expected a number from 3"),
        ({"minimum": 6}, "expected a number from 3 .* to data.sites = 5"),
        ({"sampler": "fixed_size"}, "no proof if sites sample their own"),
    ],
)
def test_what_cannot_be_meant_of_sites_is_refused(wrong, reason):
    with pytest.raises(Refused, match=reason):
        solve(replace(ONE_NOISE, **wrong))


@every_case(
    "wrong, reason",
    [
        (
            {"colluders": 1},
            "colluders is given, but has an effect only with mechanism discrete_gaussian or",
        ),
        (
            {"minimum": 4},
            "minimum is given, but has an effect only with mechanism discrete_gaussian or",
        ),
        ({"protocol": "masks"}, "already protects its sum"),
    ],
)
def test_noise_of_each_site_takes_no_sums(wrong, reason):
    with pytest.raises(Refused, match=reason):
        solve(replace(OWN_NOISE, **wrong))


def test_the_command_and_python_answer_alike():
    flags = ["--mechanism", "skellam", "--bits", 24, "--dimension", 100, "--sites", 5]
    printed = json.loads(run("calibrate", *FLAGS, *flags, "--colluders", 1, "--json").stdout)
    numbers = {"population": 3000, "cohort": 300, "rounds": 60, "epsilon": 2, "delta": 1e-4}
    sums = {"mechanism": "skellam", "bits": 24, "dimension": 100, "sites": 5, "colluders": 1}
    assert dict(privfed.calibrate(**numbers, **sums)) == printed
    shown = " ".join(run("calibrate", *FLAGS, *flags, "--colluders", 4).stdout.split())
    assert (
        "against all parties except a client's own site; only the noise of that site counts"
        in shown
    )
    assert "5; at least 5 have to survive; together they add noise of" in shown
    assert "WARNING: the noise of a single site may have to suffice" in shown
    central = " ".join(run("calibrate", *FLAGS, "--sites", 5).stdout.split())
    assert "5; the server sees their clients' rows and adds the noise" in central
    masks = run("calibrate", *FLAGS, "--sites", 5, "--protocol", "masks")
    assert "trusted to add the noise" in " ".join(masks.stdout.split())
    own = run("calibrate", *FLAGS, "--sites", 5, "--mechanism", "local_gaussian")
    assert "each protected by its own noise alone" in " ".join(own.stdout.split())
