"""What becomes of an objective under keys that would make another one of it."""

import pytest
from html_page import Document
from lanes import every_case
from small import small, trained

from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.report.page.write import write_run_page
from privfed.report.plan import plan_table
from privfed.run.check import check
from privfed.server.fedopt import FedAvg

AVERAGING = ("server.optimizer=fedavg", "server.lr=1.0")
SERVERS = {
    "usual": (),
    "lower rate": ("server.optimizer=fedavg", "server.lr=0.5"),
    "momentum": ("server.optimizer=fedavgm", "server.lr=1.0"),
    "adaptive": ("server.optimizer=fedadam", "server.lr=1.0"),
    "falling rate": (*AVERAGING, "server.schedule=staircase", "server.every=6"),
    "other steps": (f"server.optimizer={__name__}:Halved", "server.lr=1.0"),
}
"""What is no step to the model plus the update in all rounds."""
SAME = {
    "averaging": AVERAGING,
    "no momentum": ("server.optimizer=fedavgm", "server.lr=1.0", "server.momentum=0.0"),
    "rate that falls later": (*AVERAGING, "server.schedule=staircase", "server.every=7"),
}
RETURNING = "data.setting=cross_silo"


class Halved(FedAvg):
    """FedAvg by name, and another step."""

    def step(self, params, delta, state):
        return params + delta / 2, state


def said(row, *keys):
    """What `check` says in `row`, or nothing."""
    checked = check(small(*keys))
    table = plan_table(checked.plan, checked.forecast, None)
    names, texts = ([str(cell) for cell in column.cells] for column in table.columns)
    return dict(zip(names, texts, strict=True)).get(row)


@every_case("server", list(SERVERS))
def test_clusters_beside_a_server_that_steps_otherwise_are_refused(server):
    """The run's model would be none of them."""
    with pytest.raises(Refused, match=r'set server\.optimizer = "fedavg" and server\.lr = 1\.0'):
        plan(small("client.objective=ifca", *SERVERS[server]))


@every_case("server", list(SAME))
def test_clusters_under_the_plain_step_are_planned(server):
    evaluating = ("evaluation.by=clients", "evaluation.every=7")
    assert plan(small("client.objective=ifca", *evaluating, *SAME[server])).evaluation


@every_case("objective", ["fedsplit", "feddyn", "mime", "mimelite"])
def test_a_server_that_makes_another_algorithm_is_told_of(objective):
    keys = (RETURNING, f"client.objective={objective}")
    assert f"this is not the published {objective}" in said("server", *keys)
    assert said("server", *keys, *AVERAGING) is None
    assert said("server", RETURNING) is None


def test_the_page_of_a_run_tells_of_it_too(tmp_path):
    trained(tmp_path, "client.objective=mimelite", "run.rounds=1")
    page = Document(write_run_page(tmp_path, None, simulation=False).path.read_text("utf-8"))
    assert any("this is not the published mimelite" in dd for dd in page.texts("dd"))


POSTERIOR = ("client.objective=fedpa", "client.burn_in=4", "client.window=3")
SILOS = (
    *("client.privacy.mechanism=dp_sgd", "privacy.mechanism=none", RETURNING),
    *("cohort.sampler=full", "cohort.size=0"),
)


@pytest.mark.parametrize(
    "keys",
    [("client.steps=6",), (*SILOS, "client.epochs=2", "client.privacy.sampling_rate=0.5")],
    ids=["steps", "noised steps"],
)
def test_no_posterior_is_averaged_of_which_nobody_has_a_sample(keys):
    with pytest.raises(Refused, match=r"has an effect after 7 local steps .* takes at most [46], "):
        plan(small(*POSTERIOR, *keys))


def test_one_sample_is_enough_and_what_sizes_decide_is_told_of():
    for keys in ((), ("client.steps=7",)):
        assert "fewer than 7 local steps in a round sends a plain" in said(
            "samples", *POSTERIOR, *keys
        )
    enough = ("client.epochs=2", "client.privacy.sampling_rate=0.25", "client.privacy.clip=1.0")
    assert said("samples", *POSTERIOR, *SILOS, *enough) is None
    assert said("samples") is None
