"""Every rule over rows, by name, and how its tests are parametrised."""

import torch

from defenses.before.arc import AdaptiveClipping
from defenses.before.bucketing import Bucketing
from defenses.before.clipping import Clipping
from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.norm_bound import NormBound
from defenses.on_rows.bulyan import Bulyan
from defenses.on_rows.caf import CovarianceFilter
from defenses.on_rows.dnc import DivideAndConquer
from defenses.on_rows.flame import Flame
from defenses.on_rows.fldetector import FlDetector
from defenses.on_rows.foolsgold import FoolsGold
from defenses.on_rows.krum import Krum, MultiKrum
from defenses.on_rows.lasa import LayerAdaptive
from defenses.on_rows.mda import MinimumDiameter
from defenses.on_rows.mean_around_median import MeanAroundMedian
from defenses.on_rows.median import Median
from defenses.on_rows.monna import TrustedNeighbours
from defenses.on_rows.rflbat import Rflbat
from defenses.on_rows.smea import SmallestEigenvalue
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import Composed


class AboutMedian(TrustedNeighbours):
    """MoNNA about the rows' own median."""

    def __call__(self, rows, byzantine):
        return super().__call__(rows, byzantine, root=Median()(rows, 0))


class OneLayer(LayerAdaptive):
    """LASA on rows of a single layer."""

    def __call__(self, rows, byzantine):
        return super().__call__(rows, byzantine, layers=torch.tensor([rows.shape[1]]))


MEDIAN = GeometricMedian(smoothing=1e-3)
NNM, PAIRS = NearestNeighbourMixing(), Bucketing(bucket_size=2)
ARC = AdaptiveClipping()
ROBUST = {
    "geometric_median": MEDIAN,
    "trimmed_mean": TrimmedMean(),
    "median": Median(),
    "mean_around_median": MeanAroundMedian(),
    "krum": Krum(),
    "multi_krum": MultiKrum(),
    "bulyan": Bulyan(),
    "mda": MinimumDiameter(),
    "caf": CovarianceFilter(),
    "smea": SmallestEigenvalue(),
    "monna": AboutMedian(),
    "nnm": Composed(before=(NNM,), rule=TrimmedMean()),
    "nnm, geometric_median": Composed(before=(NNM,), rule=MEDIAN),
    "arc": Composed(before=(ARC,), rule=TrimmedMean()),
    "arc, nnm": Composed(before=(ARC, NNM), rule=TrimmedMean()),
}
"""Rules whose aggregate stays with the honest rows, whatever up to `most` others are."""
ROWS = {
    **ROBUST,
    "dnc": DivideAndConquer(),
    "foolsgold": FoolsGold(),
    "flame": Flame(noise=0.0),
    "rflbat": Rflbat(),
    "fldetector": FlDetector(),
    "lasa": OneLayer(),
    "norm_bound": Composed(before=(), rule=NormBound(radius=2.0)),
    "nnm, norm_bound": Composed(before=(NNM,), rule=NormBound(radius=2.0)),
    "clipping": Composed(before=(Clipping(clipping_radius=2.0),), rule=TrimmedMean()),
}
ABOUT_ZERO = {"arc", "arc, nnm"}
"""Robust rules that cut rows, so that it matters where the origin is."""
MOVES_WITH_ROWS = {name: rule for name, rule in ROBUST.items() if name not in ABOUT_ZERO}
MOVES_WITH_ROWS |= {"dnc": ROWS["dnc"]}
"""Rules that look at differences of rows alone."""
