"""What is called refuted, and what doubtful."""

from dataclasses import dataclass

from lanes import every_case

from accounting.empirical.verdicts import Verdicts


@dataclass(frozen=True)
class Outcome(Verdicts):
    p_value: float
    confidence: float = 0.95


@every_case(
    ("p_value", "doubted", "refuted"),
    [
        (1.0, False, False),
        (0.06, False, False),
        (0.04, True, False),
        (2e-6, True, False),
        (1e-7, True, True),
    ],
)
def test_a_claim_is_refuted_far_later_than_it_is_doubted(p_value, doubted, refuted):
    outcome = Outcome(p_value)
    assert (outcome.doubted, outcome.refuted) == (doubted, refuted)
    assert Outcome(p_value, confidence=0.5).doubted is (p_value < 0.5)
