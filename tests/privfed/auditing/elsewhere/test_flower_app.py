"""The example of a Flower app: its own strategy, clip and noise, over nodes in this process."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from experiments.audits_elsewhere.flower_app import client_app, server_app
from privfed.auditing.judged_canaries import PipelineClaim, judge_releases
from privfed.canary import participants
from privfed.canary.drawing import CanaryRequest

pytestmark = pytest.mark.slow

PEOPLE, FEATURES = 30, 4000


class HereGrid(Grid):
    """Nodes by id, each with its configuration, that answer at once."""

    def __init__(self, nodes):
        self.nodes = nodes
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answered(message) for message in messages]

    def _answered(self, message):
        message.metadata.__dict__["_message_id"] = message.object_id
        node = message.metadata.dst_node_id
        return client_app(message, Context(7, node, self.nodes[node], RecordDict(), {}))

    def set_run(self, run):
        raise NotImplementedError

    run = property(set_run)
    create_message = push_messages = pull_messages = set_run


@pytest.mark.parametrize(("noise", "refuted"), [(12.2, False), (0.0, True)], ids=["honest", "none"])
def test_canaries_in_flower(tmp_path, noise, refuted):
    """Three rounds at multiplier 12.2 are (0.5, 1e-5)-private."""
    folder = CanaryRequest(100, FEATURES + 1, 1.0, "add/remove", 1).write(tmp_path / "canaries")
    canaries = str(folder.path)
    configurations = [{"canaries": canaries, "canary": n} for n in participants(canaries)]
    nodes = dict(enumerate([*configurations, *[{"canaries": canaries}] * PEOPLE], 100))
    chosen = {"noise-multiplier": noise, "features": FEATURES, "rounds": 3}
    chosen["releases"] = str(tmp_path / "models")
    server_app(HereGrid(nodes), Context(7, 1, {}, RecordDict(), chosen))
    judged = judge_releases(
        folder, tmp_path / "models", PipelineClaim.of_gaussian((0.5, 1e-5)), 0.95
    )
    assert judged.releases == 3
    assert judged.refuted == refuted
