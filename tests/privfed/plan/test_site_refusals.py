"""What is refused where sites are the parties, and what would work instead."""

import math

import pytest
from lanes import every_case
from sites import AT_SITES
from small import small

from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.plan.sum_limits import configured_limits

TWO = ("data.sites_per_client=2",)
CENTRAL = ("privacy.mechanism=gaussian",)


SHARES = "privacy.mechanism=discrete_gaussian"


@every_case(
    "keys, reason",
    [
        (("data.sites=0", "secure.parties=sites"), "data.sites is 0"),
        (
            (*CENTRAL, "secure.protocol=none", "secure.parties=sites"),
            "no secure sum has parties",
        ),
        (("secure.simulate=arithmetic", "cohort.dropout=0.6"), "would abort in"),
        (("data.sites=2", "secure.colluders=0.9"), "surviving sites are needed"),
        (("secure.minimum=2",), "expected a number from 3"),
        (("secure.minimum=6",), "to data.sites = 5"),
        (("secure.threat=malicious", "secure.minimum=3"), "expected a number from 4"),
        (("secure.colluders=0.4", "secure.minimum=3"), None),
        (("secure.capacity=20",), "secure.capacity is 20, but the parties are sites"),
        (("secure.admitted=4",), "secure.admitted is 4, but the parties are sites"),
        (("secure.neighbours=2",), "secure.neighbours is 2, but the parties are sites"),
        (("cohort.sampler=truncated_poisson",), "sample their own clients"),
        (("cohort.sampler=fixed_size",), "sample their own clients"),
        (("cohort.sampler=cyclic", "cohort.separation=4", "cohort.size=0"), "sample their own"),
        (("client.objective=scaffold", "data.setting=cross_silo"), "but sites keep none"),
        (("privacy.against=readers",), "one guarantee holds against the server, readers"),
        (
            ("attack.name=sign_flip", "attack.fraction=0.2", "attack.stage=after_bound"),
            "Byzantine sites are not simulated",
        ),
        (
            ("attack.name=sign_flip", "attack.fraction=0.2", "data.site_partition=elsewhere"),
            "simulate no attackers",
        ),
        (("privacy.mechanism=local_gaussian",), "already protects its sum"),
        ((*TWO, "cohort.sampler=full", "cohort.size=0"), "several sites"),
        ((*TWO, "secure.parties=clients"), "clients are the parties of sums"),
        ((*TWO, "aggregation.rule=norm_bound"), "'norm_bound' treats each row as that of one"),
        (
            (*TWO, 'aggregation.before=["bucketing"]'),
            r"'mean' with aggregation.before = \['bucketing'\] treats",
        ),
        (
            (*TWO, "attack.name=sign_flip", "attack.fraction=0.2"),
            "attackers are simulated only for clients",
        ),
        (
            ("privacy.mechanism=local_gaussian", "secure.protocol=none", "aggregation.rule=median"),
            "sites send only sums",
        ),
    ],
)
def test_what_has_no_proof_is_refused(keys, reason):
    config = small(*AT_SITES, *keys)
    if reason is None:
        plan(config, length=10)
        return
    with pytest.raises(Refused, match=reason):
        plan(config, length=10)


@every_case(
    "keys",
    [
        (),
        ("privacy.sizing=layers", "secure.threat=malicious"),
        (SHARES,),
        (SHARES, *TWO),
        (SHARES, "privacy.sizing=layers", "privacy.adaptive_clip=true", "privacy.count_noise=4"),
        ("secure.protocol=bfv",),
        ("cohort.sampler=full", "cohort.size=0"),
        ("cohort.availability=daily",),
        ("client.drop_stragglers=true", "client.stragglers=0.5"),
        (*CENTRAL,),
        (*CENTRAL, "secure.protocol=ckks"),
        (*CENTRAL, "secure.protocol=none", "cohort.sampler=truncated_poisson"),
        (*CENTRAL, "privacy.adaptive_clip=true", "privacy.count_noise=4"),
        ("privacy.mechanism=local_gaussian", "secure.protocol=none"),
        ("aggregation.rule=norm_bound",),
        ("aggregation.rule=geometric_median",),
        ("client.objective=fedprox",),
        ("attack.name=sign_flip", "attack.fraction=0.2"),
        (*TWO,),
        (*TWO, *CENTRAL),
        (*TWO, *CENTRAL, "secure.protocol=none"),
        ("privacy.mechanism=none",),
    ],
)
def test_what_has_a_proof_is_planned(keys):
    planned = plan(small(*AT_SITES, *keys), length=10)
    assert planned.guarantee.epsilon < math.inf or not planned.mechanism.private


def test_thresholds_are_whole_sites():
    """t > k, 2 t > n + k where the server may lie, n_min >= t; tolerance as of the noise."""
    for sites, colluders, threat, least in [
        (3, 0.1, "curious", 2),
        (3, 0.1, "malicious", 3),
        (4, 0.1, "malicious", 3),
        (5, 0.4, "malicious", 4),
        (7, 0.2, "malicious", 5),
        (10, 0.1, "curious", 6),
    ]:
        keys = [f"data.sites={sites}", f"secure.colluders={colluders}", f"secure.threat={threat}"]
        config = small(*AT_SITES, *keys)
        assert config.protocol.least_sites(sites) == least, keys
        limits = configured_limits(config)
        assert limits.minimum == max(sites - sites // 5, least)
        assert limits.colluders == max(1, math.ceil(colluders * sites))
        assert (limits.capacity, limits.sites, limits.rows) == (sites, sites, 40)


def test_whether_sites_stay_tells_nothing_of_a_draw():
    """Aborts are charged where clients are the parties, and not where sites are (§9.1)."""
    keys = ("cohort.dropout=0.1", "secure.simulate=arithmetic")
    by_sites = plan(small(*AT_SITES, *keys), length=10)
    still = plan(small(*AT_SITES), length=10)
    assert by_sites.cost.aborts > 0.0 == by_sites.cost.revealing_aborts
    assert by_sites.event == still.event


def test_where_the_server_sees_rows_sites_change_nothing():
    plain = plan(small("data.clients=40"))
    at_sites = plan(small("data.clients=40", "data.sites=4"))
    assert at_sites.event == plain.event
    assert at_sites.guarantee == plain.guarantee
    assert not at_sites.config.by_sites
