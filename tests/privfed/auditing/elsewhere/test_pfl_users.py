"""The example of pfl-research: its own backend, clip and noise, with canaries among its users."""

import pytest

pytest.importorskip("pfl", reason="pfl-research is not installed: pip install pfl==0.6.0")

from experiments.audits_elsewhere.pfl_users import FEATURES, train
from privfed.auditing.judged_canaries import PipelineClaim, judge_releases
from privfed.canary.drawing import CanaryRequest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("relation", ["add/remove", "zero-out"])
@pytest.mark.parametrize(("noise", "refuted"), [(14.1, False), (0.0, True)], ids=["honest", "none"])
def test_canaries_in_pfl(tmp_path, relation, noise, refuted):
    """Four rounds at multiplier 14.1 are (0.5, 1e-5)-private."""
    folder = CanaryRequest(100, FEATURES, 1.0, relation, 1).write(tmp_path / "canaries")
    train(folder.path, tmp_path / "models", 4, noise)
    judged = judge_releases(
        folder, tmp_path / "models", PipelineClaim.of_gaussian((0.5, 1e-5)), 0.95
    )
    assert judged.releases == 4
    assert judged.refuted == refuted
