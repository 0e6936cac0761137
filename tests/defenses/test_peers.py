"""Agreement with an independent implementation, where its definition is the paper's."""

import pytest
import torch
from lanes import every_case

from defenses.before.arc import AdaptiveClipping
from defenses.before.clipping import Clipping
from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.on_rows.caf import CovarianceFilter
from defenses.on_rows.krum import Krum
from defenses.on_rows.mda import MinimumDiameter
from defenses.on_rows.mean_around_median import MeanAroundMedian
from defenses.on_rows.median import Median
from defenses.on_rows.monna import TrustedNeighbours
from defenses.on_rows.smea import SmallestEigenvalue
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import Composed, mixtures
from experiments.peers import byzfl

aggregators, preaggregators = byzfl("aggregators"), byzfl("preaggregators")
pytestmark = pytest.mark.skipif(
    aggregators is None, reason="ByzFL is not installed: pip install --no-deps byzfl==0.0.11"
)


def cloud(n=11, d=7, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@every_case("seed", range(4))
@every_case("f", [0, 2, 4])
def test_the_same_aggregates(seed, f):
    rows = cloud(seed=seed)
    pairs = [
        (TrimmedMean()(rows, f), aggregators.TrMean(f)(rows)),
        (Median()(rows, f), aggregators.Median()(rows)),
        (MeanAroundMedian()(rows, f), aggregators.Meamed(f)(rows)),
        (
            GeometricMedian(passes=3, smoothing=0.1, balance=1.0).on_rows(rows),
            aggregators.GeometricMedian(nu=0.1, T=3)(rows),
        ),
        (
            CenteredClipping(radius=1.5, passes=2).on_rows(rows),
            aggregators.CenteredClipping(L=2, tau=1.5)(rows),
        ),
        (
            Composed(before=(NearestNeighbourMixing(),), rule=TrimmedMean())(rows, f),
            aggregators.TrMean(f)(preaggregators.NNM(f)(rows)),
        ),
        (mixtures(rows, f, (AdaptiveClipping(),)), preaggregators.ARC(f)(rows.clone())),
        (
            mixtures(rows, f, (Clipping(clipping_radius=1.5),)),
            preaggregators.Clipping(1.5)(rows.clone()),
        ),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@every_case("seed", range(4))
def test_krum_counts_one_neighbour_less(seed):
    """Theirs sums n - f - 1 distances, the paper's n - f - 2: ours with f - 1."""
    rows = cloud(seed=seed)
    torch.testing.assert_close(Krum()(rows, 2), aggregators.Krum(3)(rows))


@every_case("seed", range(4))
def test_the_subset_of_least_diameter_where_there_is_but_one(seed):
    rows = cloud(9, seed=seed)
    rows[[1, 4, 6]] += torch.tensor([[30.0], [-20.0], [50.0]])
    torch.testing.assert_close(MinimumDiameter()(rows, 3), aggregators.MDA(3)(rows))


@every_case("seed", range(4))
def test_monna_of_a_server_that_is_one_of_the_nodes(seed):
    """Theirs averages the trusted row, too, which is one of the n; ours is the server's."""
    rows = cloud(seed=seed)
    ours = TrustedNeighbours()(rows[1:], 3, root=rows[0])
    theirs = aggregators.MoNNA(3, idx=0)(rows)
    torch.testing.assert_close((7 * ours + rows[0]) / 8, theirs)


@every_case("seed", range(4))
@every_case("f", [1, 3])
def test_smea_where_one_power_iteration_gives_the_eigenvalue(seed, f):
    """Theirs takes one from a random vector, which ranks subsets at random but in one dimension."""
    rows = cloud(9, 1, seed=seed).double()
    theirs = aggregators.SMEA(f)(rows).double()
    torch.testing.assert_close(SmallestEigenvalue()(rows, f), theirs, atol=1e-6, rtol=0)


@every_case("seed", range(4))
def test_caf_where_nothing_removed_stays_in_the_bound(seed):
    """With one hostile row, in one dimension, as theirs takes one power iteration from a random
    vector. With more, theirs compares with rows that it removed already; far out, one stalls it.
    """
    rows = cloud(9, 1, seed=seed).double()
    theirs = aggregators.CAF(1)(rows).double()
    torch.testing.assert_close(CovarianceFilter()(rows, 1), theirs, atol=1e-6, rtol=0)
