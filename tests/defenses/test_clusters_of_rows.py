"""FLAME, RFLBAT and the clustering that they rest on: by hand, by the letter, and as attacked."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from sklearn.cluster import HDBSCAN, KMeans

from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.mean import Mean
from defenses.kmeans import clusters, k_means
from defenses.linkage import first_majority
from defenses.on_rows.flame import Flame
from defenses.on_rows.foolsgold import FoolsGold
from defenses.on_rows.rflbat import Rflbat
from defenses.weighing import Composed

PLAIN = Flame(noise=0.0)


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def cloud(n, d=6, seed=0):
    return torch.randn(n, d, generator=drawn(seed), dtype=torch.float64)


def cosine_distances(rows):
    unit = rows / rows.norm(dim=1, keepdim=True)
    return (1 - unit @ unit.T).clamp(min=0.0).fill_diagonal_(0.0)


@every_case("n", [2, 3, 5, 8, 11, 20, 31])
def test_the_first_majority_is_hdbscans_cluster(n):
    for seed in range(10):
        distances = cosine_distances(cloud(n, 4, seed))
        published = HDBSCAN(
            min_cluster_size=max(2, n // 2 + 1),
            min_samples=1,
            metric="precomputed",
            allow_single_cluster=True,
            copy=True,
        )
        labels = published.fit_predict(distances.numpy())
        assert np.array_equal(first_majority(distances).numpy(), labels == 0)


def by_threshold(distances, least):
    """The places linked at the least reach at which `least` of them are."""
    n = len(distances)
    for reach in sorted({0.0, *np.asarray(distances).flatten()}):
        linked = distances <= reach
        np.fill_diagonal(linked, True)
        for _ in range(n):
            linked = linked @ linked
        if linked.sum(1).max() >= least:
            break
    return linked[linked.sum(1).argmax()]


@settings(max_examples=60)
@given(st.data())
def test_of_tied_distances_all_are_joined_at_once(data):
    n = data.draw(st.integers(1, 8))
    places = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    line = np.array(places, dtype=float)
    distances = abs(line[:, None] - line[None])
    chosen = first_majority(torch.from_numpy(distances)).numpy()
    assert np.array_equal(chosen, by_threshold(distances, n // 2 + 1))


def test_flame_by_hand():
    """Three of five point to the right; norms are 1, 2, 3, 4, 5, and the middle one is 3."""
    rows = torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, -4.0]])
    assert PLAIN(rows, 2).tolist() == pytest.approx([(1 + 3 + 3) / 3, 0.0])
    rows[3] = 0.0  # norms 0, 1, 2, 4, 5; no three are alike before all are
    assert PLAIN(rows, 2).tolist() == pytest.approx([(1 + 2) / 5, (2 - 2) / 5])
    assert PLAIN(torch.zeros(4, 2), 0).tolist() == [0.0, 0.0]


@every_case("n", [4, 7, 12])
def test_flame_by_the_letter(n):
    for seed in range(8):
        rows = cloud(n, seed=seed)
        norms = rows.norm(dim=1).numpy()
        admitted = by_threshold(cosine_distances(rows).numpy(), n // 2 + 1)
        clipped = rows.numpy() * np.minimum(1, np.median(norms) / norms)[:, None]
        np.testing.assert_allclose(PLAIN(rows, 1), clipped[admitted].mean(0), atol=1e-9)
        np.testing.assert_allclose(PLAIN(rows.float(), 1), clipped[admitted].mean(0), atol=1e-5)


def test_flames_noise_is_as_large_as_it_says_and_secret():
    rows = cloud(9, 20_000) / 20_000**0.5
    rule, bound = Flame(noise=0.5), rows.norm(dim=1).median()
    noise = rule(rows, 1, generator=drawn(0)) - PLAIN(rows, 1)
    assert float(noise.std()) == pytest.approx(0.5 * float(bound), rel=0.03)
    assert abs(float(noise.mean())) < 4 * 0.5 * float(bound) / 20_000**0.5
    assert not torch.equal(rule(rows, 1, generator=drawn(1)), rule(rows, 1, generator=drawn(0)))
    assert (rule.needs(), PLAIN.needs()) == ({"generator"}, set())
    with pytest.raises(ValueError, match="pass a generator"):
        rule(rows, 1)


@every_case("push", [1.0, 1e3, 1e9])
def test_flame_is_no_longer_than_the_longest_honest_row(push):
    for seed in range(5):
        honest = cloud(11, seed=seed)
        together = push * torch.ones(10, 6, dtype=torch.float64)
        aggregate = PLAIN(torch.cat([together, honest]), 10)
        assert float(aggregate.norm()) <= float(honest.norm(dim=1).max()) * (1 + 1e-9)


def alike(n, spread, seed=0):
    """Honest updates `[n, 40]` about one direction."""
    direction = torch.nn.functional.normalize(cloud(1, 40, seed=77))[0]
    return direction + spread * cloud(n, 40, seed) / 40**0.5


TURN = torch.nn.functional.normalize(cloud(1, 40, seed=78))[0]
"""Where a backdoor turns updates to."""


def backdoored(count, boost=1.0, seed=5):
    """`count` updates that are honest ones of their own, turned to one other direction."""
    return boost * (alike(count, 0.1, seed) + 2 * TURN)


@every_case("boost", [1.0, 20.0])
@every_case("rule", [PLAIN, Rflbat()], ids=["flame", "rflbat"])
def test_backdoors_that_share_a_direction_are_left_out(rule, boost):
    """Boosted or not: a plain mean is moved by them."""
    honest = alike(14, 0.8)
    rows = torch.cat([backdoored(6, boost), honest])
    away = (rule(rows, 6) - honest.mean(0)).norm()
    assert float(away) < 0.35
    assert float((Mean().on_rows(rows) - honest.mean(0)).norm()) > 1.5 * float(away)
    assert float((Mean().on_rows(rows) - honest.mean(0)).norm()) > 0.5


def test_rflbat_withstands_a_majority_that_looks_alike_and_flame_does_not():
    honest = alike(8, 0.8)
    rows = torch.cat([backdoored(12), honest])
    assert float((Rflbat()(rows, 12) - honest.mean(0)).norm()) < 0.4
    with pytest.raises(ValueError, match="tolerates at most"):
        PLAIN(rows, 12)
    assert float((PLAIN(rows, 9) - honest.mean(0)).norm()) > 1


def test_rflbat_is_said_to_keep_hostile_rows_that_differ_more():
    """Honest rows are nearly alike, and the others turned away in different directions."""
    honest = alike(12, 0.02)
    byzantine = -3 * alike(8, 0.5, seed=3)
    assert float((Rflbat()(torch.cat([byzantine, honest]), 8) - honest.mean(0)).norm()) > 2


def test_sybils_that_copy_one_row():
    """Both leave them out, as does FoolsGold, which is made for it."""
    honest = alike(11, 0.8)
    rows = torch.cat([backdoored(1).expand(9, -1), honest])
    for rule in (PLAIN, Rflbat(), FoolsGold()):
        assert abs(float((rule(rows, 9) - honest.mean(0)) @ TURN)) < 0.2, "of 2 that they turn"


def rflbat(rows, labels, outer=10.0, inner=4.0):
    """By the letter, from the clusters `labels` of those left at first."""
    about = rows - rows.mean(0)
    u, s, _ = np.linalg.svd(about, full_matrices=False)
    p = (u * s)[:, :2]

    def near(places, times):
        away = [sum(np.linalg.norm(p[i] - p[j]) for j in places) for i in places]
        return [i for i, e in zip(places, away, strict=True) if e <= times * np.median(away)]

    def score(places):
        if len(places) < 2:
            return np.inf
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        means = [np.mean([unit[i] @ unit[j] for j in places if j != i]) for i in places]
        return np.median(means)

    first = near(range(len(rows)), outer)
    groups = [[i for i in first if labels[i] == label] for label in set(labels)]
    return rows[near(min(groups, key=score), inner)].mean(0)


@pytest.mark.parametrize("inner", [1.2, 4.0])
def test_rflbat_by_the_letter(inner):
    """Clusters that nobody can miss, and of one of them a row a little away."""
    for seed in range(6):
        parts = [alike(7, 0.2, seed), -3 * alike(6, 0.1, seed + 20)]
        rows = torch.cat([*parts, 30 * cloud(1, 40, seed)])
        labels = [0] * 7 + [1] * 6 + [2]
        aggregate = Rflbat(inner=inner)(rows, 3, generator=drawn(seed))
        np.testing.assert_allclose(aggregate, rflbat(rows.numpy(), labels, inner=inner), atol=1e-9)


def test_rflbat_leaves_out_what_lies_far_away_before_it_clusters():
    """So far that everything else looks like one point, and one cluster."""
    rows = torch.cat([alike(19, 0.5), 1e6 * torch.ones(1, 40, dtype=torch.float64)])
    torch.testing.assert_close(Rflbat(outer=3.0, clusters=1)(rows, 1), rows[:-1].mean(0))
    assert float(Rflbat(outer=1e6, inner=1e6, clusters=1)(rows, 1).norm()) > 1e4


def test_starts_are_as_its_generator_says():
    rows = torch.cat([alike(9, 0.5), -alike(7, 0.3, 1)])
    generator = drawn(4)
    aggregate = Rflbat()(rows, 3, generator=generator)
    assert torch.equal(aggregate, Rflbat()(rows, 3, generator=drawn(4)))
    assert not torch.equal(generator.get_state(), drawn(4).get_state()), "it is drawn from"
    composed = Composed(before=(NearestNeighbourMixing(),), rule=Flame(noise=1.0))
    assert composed.needs() == {"generator"}
    noised = [composed(rows, 3, generator=drawn(seed)) for seed in (1, 1, 2)]
    assert torch.equal(noised[0], noised[1])
    assert not torch.equal(noised[0], noised[2])


@every_case("k", [1, 2, 3])
def test_as_many_clusters_as_there_are(k):
    centers = torch.tensor([[0.0, 0.0], [8.0, 0.0], [3.0, 9.0]], dtype=torch.float64)
    for seed in range(5):
        truth = torch.arange(k).repeat_interleave(12)
        points = centers[truth] + cloud(12 * k, 2, seed)
        labels = clusters(points, 10, 10, drawn(seed))
        pairs = {(a, b) for a, b in zip(truth.tolist(), labels.tolist(), strict=True)}
        assert len(pairs) == len(set(labels.tolist())) == k
        assert len(set(clusters(points * 1e-9, 10, 10, drawn(seed)).tolist())) == k


def test_equal_points_are_one_cluster():
    assert clusters(torch.ones(5, 2, dtype=torch.float64), 10, 5, drawn(0)).tolist() == [0] * 5
    assert clusters(torch.ones(1, 2, dtype=torch.float64), 10, 5, drawn(0)).tolist() == [0]
    two = torch.tensor([[0.0, 0.0]] * 4 + [[1.0, 1.0]] * 3, dtype=torch.float64)
    assert clusters(two, 10, 5, drawn(0)).unique(return_counts=True)[1].tolist() == [4, 3]


@every_case("k", [1, 2, 3, 5])
def test_k_means_is_as_good_as_a_reference(k):
    sets = torch.stack([cloud(30, 2, seed) for seed in range(4)])
    labels, within = k_means(sets, k, drawn(0))
    for points, label, sum_within in zip(sets.numpy(), labels.numpy(), within, strict=True):
        parts = [points[label == c] for c in set(label.tolist())]
        expected = sum(((part - part.mean(0)) ** 2).sum() for part in parts)
        assert float(sum_within) == pytest.approx(expected, rel=1e-9)
        reference = KMeans(n_clusters=k, n_init=20, random_state=0).fit(points).inertia_
        assert float(sum_within) <= reference * 1.05


def test_the_search_finds_the_best_split_of_few_points():
    points = cloud(8, 2, 3)
    _, within = k_means(points[None], 2, drawn(0))

    def spread(part):
        return float((part - part.mean(0)).square().sum()) if len(part) else 0.0

    masks = [torch.tensor(bits) for bits in itertools.product([True, False], repeat=8)]
    best = min(spread(points[mask]) + spread(points[~mask]) for mask in masks)
    assert float(within[0]) == pytest.approx(best, rel=1e-9)
