"""What a site promises its own clients by its own count of answers, from public facts alone."""

import json
from collections import Counter

import pytest
from click.testing import CliRunner
from lanes import every_case
from sites import AT_SITES
from small import SMALL, small

from accounting.guarantee import guarantee
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.plan.prior_spending import Prior, Priors
from privfed.plan.proof import proof_text
from privfed.plan.site_guarantee import site_guarantee

LOCAL = ("data.sites=5", "privacy.mechanism=local_gaussian", "data.clients=40")


def planned(*keys):
    return plan(small(*AT_SITES, *keys), length=10)


def test_a_site_counts_the_rounds_that_it_answers_at_most():
    run = planned()
    for answers in (1, 4, 7):
        site = site_guarantee(run, answers)
        for bound, event in ((site.bound, run.event), (site.alone, run.other)):
            spent = guarantee(Counter({event: answers}), 1e-3)
            assert (bound.epsilon, bound.rounds) == (spent.epsilon, answers)
        assert (site.bound.against, site.alone.against) == ("sites", "others")
        assert site.bound.epsilon < site.alone.epsilon
    assert site.bound.epsilon == run.guarantee.epsilon
    assert site_guarantee(run, 4).bound.epsilon < run.guarantee.epsilon


def test_what_earlier_runs_spent_counts():
    """§9.6: over all runs on that population. A site that answers all rounds promises the run's."""
    alone = planned()
    earlier = Prior("runs/a", "a", "00" * 32, {alone.event: 5}, None, "sites", {alone.other: 5})
    after = plan(small(*AT_SITES), Priors((earlier,)), length=10)
    for answers in (2, 7):
        site = site_guarantee(after, answers)
        for bound, event in ((site.bound, alone.event), (site.alone, alone.other)):
            assert bound.epsilon == guarantee(Counter({event: answers + 5}), 1e-3).epsilon
    assert site.bound.epsilon == after.guarantee.epsilon
    assert site.alone.epsilon == after.other_party(7).epsilon


def test_of_clients_at_several_sites_every_round_counts():
    run = planned("data.sites_per_client=2")
    assert site_guarantee(run, 7).bound.epsilon == run.guarantee.epsilon
    with pytest.raises(Refused, match="so every round counts"):
        site_guarantee(run, 2)


def test_where_a_site_adds_all_noise_there_is_one_guarantee():
    run = plan(small(*LOCAL))
    assert site_guarantee(run, 7).alone is None
    assert site_guarantee(run, 7).bound.epsilon == run.guarantee.epsilon


@every_case(
    "keys, answers, reason",
    [
        ((), 0, "expected a number from 1 to run.rounds = 7"),
        ((), 8, "expected a number from 1 to run.rounds = 7"),
        (("secure.parties=clients",), 3, "no site adds noise"),
        (("privacy.mechanism=none",), 3, "no site adds noise"),
    ],
)
def test_what_a_site_cannot_count_is_refused(keys, answers, reason):
    with pytest.raises(Refused, match=reason):
        site_guarantee(planned(*keys), answers)


def test_a_proof_says_whom_it_needs_apart():
    """A key holder and the server together see each site's sum by itself: k sites are not both."""
    apart = "if the key holder does not collude with the server"
    assert apart in proof_text(planned("secure.protocol=bfv"))
    assert "key holder" not in proof_text(planned())


@pytest.mark.parametrize("protocol", ["masks", "bfv"])
def test_a_proof_states_the_configured_number_of_colluding_sites(protocol):
    run = planned(f"secure.protocol={protocol}", "secure.colluders=0.4")
    assert "any 2 of the sites" in proof_text(run)


def test_a_proof_says_what_each_site_clips_to():
    for keys in ((), ("privacy.mechanism=local_gaussian", "secure.protocol=none")):
        several = proof_text(planned("data.sites_per_client=2", "privacy.clip=0.5", *keys))
        assert "clipped to 0.25" in several
        assert "clipped to 0.5" in proof_text(planned("privacy.clip=0.5", *keys))


def test_check_says_what_a_site_promises():
    flags = [part for key in (*SMALL, *AT_SITES) for part in ("--set", key)]
    shown = CliRunner().invoke(main, ["check", *flags, "--answers", "3"])
    assert "a site that answers at most 3 rounds guarantees its own clients" in " ".join(
        shown.output.split()
    )
    stated = CliRunner().invoke(main, ["check", *flags, "--answers", "3", "--json"])
    site = json.loads(stated.output)["site"]
    assert site["answers"] == 3
    assert [bound["rounds"] for bound in site["guarantees"]] == [3, 3]
