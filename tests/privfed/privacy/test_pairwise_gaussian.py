"""Noise that pairs of clients share: what the server and colluders see, and what cancels."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import Rounds, assert_normal
from lanes import every_case
from small import SMALL, small, trained

from accounting.accountants import epsilon
from accounting.events import REPLACE_ONE, Event
from accounting.noises import Gaussian
from defenses.by_sums.mean import Mean
from defenses.on_rows.median import Median
from defenses.weighing import Composed
from privfed.auditing.mechanism_audit import examine
from privfed.auditing.run_audit import audit
from privfed.auditing.scenarios import plan_of_mechanism, scenarios_of
from privfed.cli.main import main
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.plan.plan import plan
from privfed.plan.rule import rule_of
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms import pairwise_gaussian as pairwise
from privfed.privacy.mechanisms.pairwise_gaussian import PairwiseGaussian
from privfed.privacy.noise import pairwise as noises
from privfed.privacy.noise.pairwise import PairwiseNoise, alone_for_ratio
from privfed.privacy.setting import ClientShares, CohortSize, Setting
from privfed.run.train import train
from privfed.sampling.samplers import Full, Poisson

STREAMS = Streams(5, simulated=True)
CLIP, Z, CLIENTS, HOSTILE, COLLUDERS = 0.3, 1.5, 8, 1, 2
HONEST = CLIENTS - HOSTILE - COLLUDERS


def mechanism(ratio=1.0, clients=CLIENTS, colluders=COLLUDERS, byzantine=HOSTILE):
    part = PairwiseGaussian(clip=CLIP, noise_multiplier=Z, pair_noise=ratio, colluders=colluders)
    return part.resolved(
        Setting(cohort=CohortSize(clients, clients, byzantine=byzantine), noise=ClientShares(1))
    )


def messages(part, rows, keys=None):
    keys = keys or STREAMS.at("noise/client/0", 1, np.arange(len(rows)))
    return part.bound(rows, None, keys, {}).rows.double().numpy()


def drawn_by_pairs(noise, length, seed=0):
    """The noise `[n, length]` as clients make it, and that of each pair `[n, n, length]`."""
    generator = np.random.default_rng(seed)
    n = noise.clients
    shared = np.zeros((n, n, length))
    for k in range(n):
        for j in range(k + 1, n):
            shared[k, j] = noise.shared * generator.standard_normal(length)
            shared[j, k] = -shared[k, j]
    return noise.alone * generator.standard_normal((n, length)) + shared.sum(1), shared


def best_view(seen, noise):
    """The linear function of the rows `seen` `[h, d]` that says most of the first: `[d]`."""
    h = len(seen)
    covariance = noise.alone**2 * np.eye(h) + noise.shared**2 * (h * np.eye(h) - 1)
    line = np.linalg.inv(covariance)[0]
    return line @ seen / line[0]


def the_best_view_of_a_row_has_the_charged_noise():
    """Of honest clients, without the pairs that colluders know."""
    part = mechanism()
    event = part.event(Full().of(CLIENTS).witness(1, CLIENTS), 1)
    among = part.among_honest()
    sent = messages(among, torch.zeros(HONEST, 4000))
    charged = event.release.noise_multiplier * 2 * CLIP
    assert_normal(best_view(sent, among.noise())[None], charged)


def what_pairs_share_cancels():
    """In the sum of all rows each client's own noise is left, and no more."""
    part = mechanism(ratio=3.0)
    sent = messages(part, torch.zeros(CLIENTS, 4000))
    assert_normal(sent.sum(0)[None], part.noise_on_update(CLIENTS) * CLIP)
    assert_normal(sent[:1], part.noise_on_update(1) * CLIP)


def one_client_moves_its_message_by_two_clips_at_most():
    part = mechanism()
    rows = [torch.zeros(CLIENTS, 50) for _ in range(2)]
    rows[0][3], rows[1][3] = 9.0, -9.0
    moved = messages(part, rows[0]) - messages(part, rows[1])
    assert 2 * CLIP - 0.01 < np.linalg.norm(moved[3]) <= 2 * CLIP + 1e-5
    assert not np.delete(moved, 3, 0).any()


def clients_draw_apart_and_afresh():
    part, rows = mechanism(), torch.zeros(CLIENTS, 40)
    for streams in (STREAMS, Streams(0)):
        sent = [
            messages(part, rows, streams.at("noise/client/0", round, np.arange(CLIENTS)))
            for round in (1, 2)
        ]
        assert len({row.tobytes() for both in sent for row in both}) == 2 * CLIENTS
        assert abs(np.corrcoef(sent[0].ravel(), sent[1].ravel())[0, 1]) < 0.3


def every_exchange_of_a_round_is_charged():
    witness = Full().of(CLIENTS).witness(1, CLIENTS)
    for exchanges in (1, 2):
        release = mechanism().event(witness, exchanges).release
        assert release.noise_multiplier == pytest.approx(Z / 2 / exchanges**0.5)


def messages_lie_on_the_grid():
    """In double precision, where nothing is rounded once more."""
    part = mechanism()
    rows = torch.from_numpy(np.random.default_rng(3).standard_normal((CLIENTS, 60)))
    steps = messages(part, rows) / part.noise().grid
    assert (steps == np.round(steps)).all()


CHECKS = [
    the_best_view_of_a_row_has_the_charged_noise,
    what_pairs_share_cancels,
    one_client_moves_its_message_by_two_clips_at_most,
    clients_draw_apart_and_afresh,
    every_exchange_of_a_round_is_charged,
    messages_lie_on_the_grid,
]


@every_case("check", CHECKS)
def test_messages_are_what_their_event_says(check):
    check()


def halved(monkeypatch):
    real = noises.rounded_normal
    monkeypatch.setattr(noises, "rounded_normal", lambda *args: np.round(0.5 * real(*args)))


def nothing_shared(monkeypatch):
    real = PairwiseNoise.draw
    monkeypatch.setattr(
        PairwiseNoise,
        "draw",
        lambda self, *args: real(PairwiseNoise(self.clients, self.alone, 0.0), *args),
    )


def own_noise_left_out(monkeypatch):
    real = noises._steps
    monkeypatch.setattr(
        noises, "_steps", lambda keys, scale, n: real(keys, scale, n) * (scale > 2.0**30)
    )


def nothing_cancels(monkeypatch):
    def draw(self, keys, length):
        alone = PairwiseNoise(self.clients, self.of_row, 0.0)
        return real(alone, keys, length)

    real = PairwiseNoise.draw
    monkeypatch.setattr(PairwiseNoise, "draw", draw)


def colluders_counted(monkeypatch):
    real = pairwise.alone_for_ratio
    monkeypatch.setattr(pairwise, "alone_for_ratio", lambda ratio, honest: real(ratio, 2 * honest))


def charged_for_one_clip(monkeypatch):
    monkeypatch.setitem(pairwise.CHANGE, REPLACE_ONE, 1)


def unclipped(monkeypatch):
    monkeypatch.setattr(pairwise, "clip_rows", lambda rows, clip, *_: BoundedRows(rows, clip))


def one_exchange_charged(monkeypatch):
    real = pairwise.same_cohort
    monkeypatch.setattr(pairwise, "same_cohort", lambda noise, exchanges: real(noise, 1))


def off_the_grid(monkeypatch):
    real = pairwise.clip_rows
    monkeypatch.setattr(pairwise, "clip_rows", lambda rows, clip, _: real(rows, clip))


def one_noise_for_all(monkeypatch):
    monkeypatch.setattr(Keys, "each", lambda self: (Keys(bytes(16)) for _ in self.clients))


@every_case(
    "fault, check",
    [
        (halved, CHECKS[0]),
        (nothing_shared, CHECKS[0]),
        (own_noise_left_out, CHECKS[0]),
        (colluders_counted, CHECKS[0]),
        (charged_for_one_clip, CHECKS[0]),
        (nothing_cancels, CHECKS[1]),
        (unclipped, CHECKS[2]),
        (one_noise_for_all, CHECKS[3]),
        (one_exchange_charged, CHECKS[4]),
        (off_the_grid, CHECKS[5]),
    ],
)
def test_a_planted_fault_is_caught(fault, check, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def assert_covariance(rows, expected):
    """Rows `[n, d]` of d independent columns: each covariance within six of its deviations."""
    columns, diagonal = rows.shape[1], np.diag(expected)
    std = np.sqrt((expected**2 + np.outer(diagonal, diagonal)) / columns)
    assert (np.abs(rows @ rows.T / columns - expected) <= 6 * std).all()


@every_case("ratio", [0.01, 1.0, 10.0])
def test_the_joint_law_is_that_of_pairs(ratio):
    noise = PairwiseNoise(6, 0.7, 0.7 * ratio)
    expected = noise.alone**2 * np.eye(6) + noise.shared**2 * (6 * np.eye(6) - 1)
    keys = STREAMS.at("noise/client/0", 1, np.arange(6))
    assert_covariance(noise.draw(keys, 20_000), expected)
    assert_covariance(drawn_by_pairs(noise, 20_000)[0], expected)


@every_case("ratio", [0.0, 0.3, 2.0])
def test_with_what_colluders_know_taken_off_a_row_is_as_hidden_as_claimed(ratio):
    part = mechanism(ratio)
    noise = part.noise()
    sent, shared = drawn_by_pairs(noise, 20_000)
    known = shared[:, HONEST:].sum(1)  # the last ones collude
    seen = (sent - known)[:HONEST]
    assert_normal(best_view(seen, noise)[None], Z * CLIP)
    whole = np.linalg.inv(np.cov(seen))[0, 0] ** -0.5
    assert whole == pytest.approx(Z * CLIP, rel=0.05)


@every_case(("ratio", "honest"), [(0.0, 9), (1.0, 1), (1.0, 94), (7.0, 40)])
def test_the_closed_form_is_the_inverse_covariance(ratio, honest):
    own = alone_for_ratio(ratio, honest)
    pair = ratio * own
    covariance = own**2 * np.eye(honest) + pair**2 * (honest * np.eye(honest) - 1)
    assert np.linalg.inv(covariance)[0, 0] == pytest.approx(1.0)


def test_without_pairs_it_is_local_noise_and_alone_it_is_all_that_counts():
    part = mechanism(ratio=0.0)
    assert part.alone == pytest.approx(Z)
    assert part.noise_on_update(CLIENTS) == pytest.approx(Z * CLIENTS**0.5)
    assert mechanism(ratio=50.0, byzantine=0, colluders=CLIENTS - 1).alone == pytest.approx(Z)


def test_noise_shared_with_who_sends_nothing_stays():
    """Who drops out is in the cohort, and their secrets are nobody else's."""
    part = mechanism(ratio=2.0)
    keys = STREAMS.at("noise/client/0", 1, np.arange(5))
    sent = messages(part, torch.zeros(5, 4000), keys)
    assert_normal(sent.sum(0)[None], part.noise_on_update(5) * CLIP)
    assert part.noise_on_update(5) > part.noise_on_update(CLIENTS)
    with pytest.raises(ValueError, match="9 clients send rows"):
        messages(part, torch.zeros(9, 4))


def test_noise_is_in_whole_steps_and_what_no_grid_is_right_for_is_refused():
    for ratio in (0.001, 1.0, 100.0):
        assert PairwiseNoise(1000, 1.0, ratio).exact
        noise = PairwiseNoise(5, 1.0, ratio)
        steps = noise.draw(STREAMS.at("noise/client/0", 1, np.arange(3)), 50) / noise.grid
        assert (steps == np.round(steps)).all()
    assert not PairwiseNoise(2_000_000, 1.0, 1.0).exact
    assert not PairwiseNoise(1000, 1.0, 1e6).exact
    with pytest.raises(Refused, match="not exact"):
        PairwiseGaussian(noise_multiplier=1e-7).resolved(
            Setting(cohort=CohortSize(9, 9), noise=ClientShares(1))
        ).noise_on_update(9)


FULL = ("cohort.sampler=full", "cohort.size=0", "privacy.mechanism=pairwise_gaussian")


def test_a_rule_sees_noised_rows_only_all_at_once(tmp_path):
    seen = []

    class Spy(Median):
        def __call__(self, rows, byzantine):
            seen.append(rows)
            return super().__call__(rows, byzantine)

    part = PairwiseGaussian(clip=1e-6, noise_multiplier=1e6, colluders=0, pair_noise=1.0)
    part = part.resolved(Setting(cohort=CohortSize(20, 20), noise=ClientShares(1)))
    rounds = Rounds(
        tmp_path, (3,) * 20, size=20, mechanism=part, rule=Spy(), sampler=Full().of(20), chunk=3
    )
    rounds.run(10)
    noise = torch.cat(seen, 1).double().numpy()
    assert_normal(noise[:1], part.noise().of_row)
    assert_normal(noise.sum(0)[None], part.noise().of_sum(20))


@every_case("rule", ["mean", "geometric_median", "median"])
def test_every_round_is_charged_and_a_run_states_whom_it_counts_on(tmp_path, rule):
    trained(tmp_path / "run", *FULL, f"aggregation.rule={rule}", "privacy.colluders=2")
    audited = audit(tmp_path / "run")
    assert audited.guarantee.epsilon == epsilon(
        {Event(Gaussian(1.0), "full", REPLACE_ONE): 7}, 1e-3, "pld"
    )
    assert (audited.guarantee.relation, audited.guarantee.against) == (REPLACE_ONE, "clients")
    assert (audited.terms["against"], audited.terms["colluders"]) == ("clients", 2)
    assert not audited.problems


def test_a_mean_is_taken_over_rows():
    assert rule_of(small(*FULL)) == Composed(before=(), rule=Mean())


@every_case(
    "keys, why",
    [
        (("cohort.sampler=poisson", "cohort.size=4"), "all clients take part"),
        (("cohort.sampler=fixed_size", "cohort.size=4"), "all clients take part"),
        (("cohort.sampler=cyclic", "cohort.separation=4"), "all clients take part"),
        (("secure.protocol=masks",), "protects rows that the server receives"),
        (("data.sites=3",), "the parties are sites"),
        (("audit.canaries=40",), "so leaving a canary out would change all rows"),
        (("evaluation.by=clients", "run.rounds=10"), "for rows that a rule averages"),
        (("privacy.colluders=8",), "no client's noise counts"),
        (("attack.name=sign_flip", "attack.fraction=0.9"), "no client's noise counts"),
        (("client.objective=scaffold", "data.setting=cross_silo"), "use an objective"),
        (
            ("client.objective=scaffold", "data.setting=cross_silo", "aggregation.rule=caf"),
            "sends more than an update, but aggregation.rule = 'caf'",
        ),
    ],
)
def test_what_has_no_proof_is_refused(keys, why):
    with pytest.raises(Refused, match=why):
        plan(small(*FULL, "data.clients=8", *keys), length=10)


def test_clients_may_send_momenta_of_their_updates(tmp_path):
    """Which are clipped as updates are, and charged alike: 7 rounds of Gaussian(z / 2)."""
    keys = ("client.objective=worker_momentum", "data.setting=cross_silo", "aggregation.rule=caf")
    outcome = trained(tmp_path / "run", *FULL, *keys)
    assert outcome.updates == 7
    charged = {Event(Gaussian(1.0), "full", REPLACE_ONE): 7}
    assert audit(tmp_path / "run").guarantee.epsilon == epsilon(charged, 1e-3, "pld")


def test_an_event_of_another_draw_is_refused():
    with pytest.raises(Refused, match='use "full"'):
        mechanism().event(Poisson(size=4).witness(1, CLIENTS), 1)


def test_more_colluders_cost_more_of_each_clients_own_noise():
    own = [
        plan(small(*FULL, "data.clients=20", f"privacy.colluders={t}")).mechanism.noise().alone
        for t in (0, 5, 19)
    ]
    assert own == sorted(own)
    assert own[0] < 0.4 * own[2]


@pytest.mark.parametrize("releases", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_an_audit_sees_all_rows_and_finds_the_noise_that_was_charged(releases):
    keys = (*FULL, "data.clients=12", "privacy.noise_multiplier=1.0", "privacy.clip=0.4")
    algorithm, scenarios = scenarios_of(plan_of_mechanism(load(None, [*keys, "run.rounds=3"])))
    tested = examine(algorithm, scenarios, releases, delta=1e-4, confidence=0.95, seed=1)
    assert not tested.refuted
    assert tested.noise == pytest.approx(1.0, abs=0.12)


@every_case("fault", [halved, nothing_shared, own_noise_left_out])
def test_an_audit_refutes_too_little_noise(fault, monkeypatch):
    keys = (*FULL, "data.clients=12", "privacy.noise_multiplier=1.0", "privacy.clip=0.4")
    algorithm, scenarios = scenarios_of(plan_of_mechanism(load(None, [*keys, "run.rounds=3"])))
    fault(monkeypatch)
    tested = examine(algorithm, scenarios[:1], 60, delta=1e-4, confidence=0.95, seed=1)
    assert tested.refuted
    assert tested.noise < 0.8


@every_case(
    "earlier, why",
    [
        (("privacy.colluders=1",), None),
        (("privacy.colluders=2",), None),
        (("privacy.mechanism=local_gaussian",), "no ledger states the earlier spending"),
    ],
)
def test_an_earlier_run_counts_as_it_withstands_the_later_ones_colluders(tmp_path, earlier, why):
    keys = ("data.population=people", "run.rounds=2")
    trained(tmp_path / "earlier", *FULL, *keys, *earlier)
    config = small(*FULL, *keys, "privacy.colluders=2", f'privacy.prior=["{tmp_path / "earlier"}"]')
    if why is None:
        assert train(config, tmp_path / "later").updates == 2
        return
    with pytest.raises(Refused, match=why):
        train(config, tmp_path / "later")


def test_check_says_whom_it_counts_on():
    result = CliRunner().invoke(
        main,
        ["check", *(word for key in (*SMALL, *FULL) for word in ("--set", key))],
        terminal_width=2000,
    )
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "with each of 11 others, which cancels" in printed
    assert "against the server with up to 1 colluding clients" in printed
