"""What every objective keeps: each client by itself, as declared, in any trainer and any run."""

import contextlib
from typing import ClassVar

import numpy as np
import torch
from contracts.registered import contract_tests, examples
from contracts.runs import resumes_to_the_same_bits, with_objective
from contracts.test_loss import LABELS, at_positions_without_labels, outputs_of
from helpers import follow, population, trainer

from privfed.client.compression.compressed import compressed
from privfed.client.compression.compression import NoCompression
from privfed.client.objective import Cohorts, Sgd
from privfed.client.objectives.skewed_labels import FedRs
from privfed.client.partial import Partial
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation

SIZES = (3, 9, 0, 4)
COHORTS = Cohorts(40, 10.0)


def asked(objective, params, memory=None):
    """What `objective` asks before training, and what it broadcasts then."""
    memory = objective.init(params) if memory is None else memory
    prelude, answer, exchanges = objective.prelude(params, memory), None, []
    while True:
        try:
            exchange = prelude.send(answer) if exchanges else next(prelude)
        except StopIteration as finished:
            return exchanges, {"params": params, **finished.value}
        exchanges.append(exchange)
        answer = torch.full((exchange.layout.length,), 0.01)


class Training:
    """Four clients, one of them without examples, who train by an objective."""

    def __init__(self, objective, **changes):
        self.objective = objective
        self.local = trainer(population(SIZES), **changes)
        follow(self.local, objective)
        self.params = self.local.network.initial_params + 0.1
        self.exchanges, self.broadcast = asked(objective, self.params)
        generator = torch.Generator().manual_seed(0)
        self.states = torch.rand(4, objective.state_length(len(self.params)), generator=generator)

    def rows(self, ids=(0, 1, 2, 3)):
        """The rows of clients `ids`, and what they keep."""
        ids = np.array(ids)
        state = self.states[ids] if self.objective.keeps else None
        keys, back = Streams(1).at("shuffle", 1, ids), torch.ones(len(ids)) > 0
        return self.local.train(ids, self.broadcast, state, keys, returning=back)


def near(first, second, cause="", **tolerance):
    tolerance = {"rtol": 1e-4, "atol": 1e-6, "msg": lambda text: f"{cause}: {text}"} | tolerance
    torch.testing.assert_close(first, second, **tolerance)


_STACKED = (
    "clients trained in one stack end elsewhere than in a loop; let each client's values depend on "
    "its own examples alone, and leave out padded ones: a loss per example, no mean over a batch"
)


def trains_alike_in_stacks_and_in_loops(objective):
    (stacked, kept), (looped, same) = (
        Training(objective, way=way).rows() for way in ("stacked", "loop")
    )
    near(stacked, looped, atol=1e-5, cause=_STACKED)
    if objective.keeps:
        near(kept, same, atol=1e-5, cause=_STACKED)


_OTHERS = (
    "a client's row depends on the other clients of its chunk or on a declaration (plain) that "
    "does not hold; compute along the last dimension alone"
)


def trains_each_client_by_itself(objective):
    """Rows depend neither on the order of clients nor on who else there is."""
    training = Training(objective)
    rows, kept = training.rows()
    for ids in ([2, 0, 3, 1], [1, 3]):
        part, states = training.rows(ids)
        near(part, rows[ids], cause=_OTHERS)
        if objective.keeps:
            near(states, kept[ids], cause=_OTHERS)


def sends_what_it_declares(objective):
    training = Training(objective)
    d, layout = len(training.params), objective.layout(len(training.params))
    rows, kept = training.rows()
    assert tuple(rows.shape) == (4, layout.length)
    assert rows.isfinite().all()
    assert len(training.exchanges) + 1 == objective.exchanges
    sent = sum(value.numel() for value in training.broadcast.values()) / d
    assert objective.broadcasts <= sent < objective.broadcasts + 1, "vectors that are broadcast"
    names = [name for name, _ in layout.parts]
    assert names[0] == "delta"
    assert objective.sends_updates_alone == (names == ["delta"] and layout.length == d)
    near(objective.admitted(rows), rows)
    assert objective.keeps * d <= objective.state_length(d) < (objective.keeps + 1) * d
    if objective.keeps:
        assert not torch.equal(kept, training.states), (
            "keeps state that never changes; remove keeps"
        )
        assert tuple(kept.shape) == (4, objective.state_length(d))
        initial_client_state = objective.initial_client_state(training.broadcast)
        assert tuple(initial_client_state.shape) == (objective.state_length(d),)
    if objective.plain:
        assert objective.carry(training.broadcast, None) is None


def concludes_without_side_effects(objective):
    """The memory is tensors of fixed names and shapes, and changes only by what is returned."""
    training = Training(objective)
    memory = objective.init(training.params)
    before = {name: value.clone() for name, value in memory.items()}
    released = training.rows()[0].mean(0)
    first, after = objective.conclude(training.broadcast, released.clone(), memory, COHORTS)
    again, same = objective.conclude(training.broadcast, released.clone(), memory, COHORTS)
    assert tuple(first.shape) == (len(training.params),)
    assert torch.equal(first, again)
    assert before.keys() == memory.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, memory[name]), "the memory is changed in place"
        assert torch.equal(after[name], same[name])
        assert (value.shape, value.dtype) == (after[name].shape, after[name].dtype)
    asked(objective, training.params + first, after)


def rests_without_steps(objective):
    """At a rate of 0 all end where they began, so that no update moves the model."""
    training = Training(without_spread(objective), lr=0.0)
    initial_client_state = training.objective.initial_client_state(training.broadcast)
    training.states = initial_client_state.expand(4, -1).clone()
    rows, _ = training.rows((0, 1, 3))
    delta = training.objective.layout(len(training.params)).view(rows, "delta")
    assert not delta.any()


def descends_like_sgd(objective):
    """Each client's first update has a positive component along that of plain SGD."""
    if type(objective).losses is Sgd.losses:
        return  # the loss is the run's; corrections of drift may turn one update
    training, plain = Training(objective), Training(Sgd()).rows((0, 1, 3))[0]
    initial_client_state = objective.initial_client_state(training.broadcast)
    training.states = initial_client_state.expand(4, -1).clone()
    rows, _ = training.rows((0, 1, 3))
    along = (objective.layout(len(training.params)).view(rows, "delta") * plain).sum(1)
    assert (along > 0).all(), (
        f"rows have components {along.tolist()} along those of SGD; expected above 0: losses are "
        "minimised, and direction is a gradient"
    )


def without_spread(objective):
    changes = {"spread": 0.0} if "spread" in type(objective).model_fields else {}
    return objective.model_copy(update=changes)


def trains_in_a_run_and_resumes(objective, folder):
    resumes_to_the_same_bits(folder, "privacy.noise_multiplier=0.05", *with_objective(objective))


class Whole(NoCompression):
    """A compression that sends all of an update."""

    compresses = True


def is_the_same_when_it_is_wrapped(objective):
    """By a compression that sends all, and where nothing of a model stays with its client."""
    training = Training(objective)
    rows = training.rows()[0]
    whole = objective.anchored or objective.measures or objective.exchanges > 1
    wrapped = []
    if not (whole or objective.personalises):  # as the plan of a run has it
        wrapped.append(Partial(inner=objective, start=torch.zeros(0)))
    if objective.sends_updates_alone:
        wrapped.append(compressed(objective, Whole(), 0, {"all": (len(training.params),)}))
    for outer in wrapped:
        around = Training(outer)
        around.states = training.states
        near(around.rows()[0], rows)
        for name in ("anchored", "measures", "exchanges", "grouping", "plain", "sums_states"):
            assert getattr(outer, name) == getattr(objective, name), name


def admitted_tasks(objective):
    """Each loss and kind of labels that the declarations admit, with a batch of 2 clients."""
    for name, loss in examples("loss").items():
        for kind, labels in LABELS.items() if loss.softmax or not objective.needs_classes else ():
            with contextlib.suppress(Refused):
                outputs = outputs_of(labels.y, loss.width(labels))
                y, outputs = (each.unflatten(0, (2, -1)) for each in (labels.y, outputs))
                counts = Federation(labels, np.array([0, len(y[0]), len(labels)]), labels)
                counts = counts.class_counts(np.arange(2))
                fields = {"outputs": outputs, "y": y} | (
                    {} if counts is None else {"counts": counts}
                )
                yield f"model.loss = {name!r} and labels that are {kind}", loss, fields


def losses_of(objective, loss, fields):
    """The losses `[2, B]` of 2 clients, and their gradient in the outputs."""
    outputs, generator = fields["outputs"], torch.Generator().manual_seed(0)
    if objective.reads_features:
        fields = {**fields, "features": torch.randn(*outputs.shape[:2], 5, generator=generator)}
    if objective.contrasts({"params": torch.zeros(3)}, torch.zeros(2, 3)) is not None:
        fields["others"] = torch.randn(2, 2, outputs.shape[1], 5, generator=generator)

    def total(outputs):
        losses = objective.client_losses(loss, fields | {"outputs": outputs})
        return losses.sum(), losses

    gradient, losses = torch.func.grad(total, has_aux=True)(outputs)
    return losses, gradient


def has_a_loss_in_every_admitted_task(objective):
    """Also of one output for two classes, of numbers, and of sequences with NO_LABEL."""
    for task, loss, fields in admitted_tasks(objective):
        try:
            losses, gradient = losses_of(objective, loss, fields)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise AssertionError(
                f"{type(objective).__qualname__}.losses fails under {task}: {error}; declare "
                "needs_classes if it reads outputs as logits of classes, read batch.counts only "
                "if it is not None, and leave out positions whose label is NO_LABEL (-1)"
            ) from error
        assert losses.shape == fields["y"].shape[:2], task
        assert losses.isfinite().all(), task
        assert gradient.isfinite().all(), task
        certain = losses_of(objective, loss, fields | {"outputs": 1e3 * fields["outputs"]})
        finite = all(each.isfinite().all() for each in certain)
        assert finite, f"a loss or its gradient is not finite at outputs of 1e3 under {task}"
        other = at_positions_without_labels(fields["outputs"], fields["y"])
        same = losses_of(objective, loss, fields | {"outputs": other})[0]
        near(same, losses, msg=f"positions without a label (-1) have an effect under {task}")


class Margins(Sgd):
    """It lowers the logit of each label, and does not declare that it needs classes."""

    def losses(self, batch):
        margin = torch.nn.functional.one_hot(batch.y.clamp(min=0), batch.outputs.shape[-1])
        return batch.loss.losses(batch.outputs - margin, batch.y)


class Gathering(FedRs):
    """It reads the logit of each label, and also where there is none."""

    def losses(self, batch):
        chosen = batch.outputs.gather(-1, batch.y[..., None]).flatten(1)
        return batch.loss.losses(batch.outputs, batch.y) - chosen.mean(1)


class AllPositions(Sgd):
    """It shrinks the outputs at all positions, labelled or not."""

    def losses(self, batch):
        return super().losses(batch) + batch.outputs.square().flatten(1).mean(1)


class Rooted(FedRs):
    """It has the root of a loss, whose gradient is not finite where the loss is 0."""

    def losses(self, batch):
        return batch.loss.losses(batch.outputs, batch.y).sqrt()


class ByCounts(Sgd):
    """It counts on classes."""

    def losses(self, batch):
        return super().losses(batch) * (batch.counts > 0).float().mean()


class Ascending(Sgd):
    """It gives a reward for a loss."""

    def losses(self, batch):
        return -super().losses(batch)


class ByOthers(Sgd):
    """A row is drawn to those of the clients of the same chunk."""

    def message(self, w, broadcast, state, work):
        rows, after = super().message(w, broadcast, state, work)
        return rows - 0.5 * rows.mean(0), after


class InStacksOnly(Sgd):
    """It counts the clients of a step."""

    def direction(self, grad, w, broadcast, state):
        return grad * len(grad)


class AsksTwice(Sgd):
    """It has one exchange more than it declares, and broadcasts more."""

    def prelude(self, params, memory):
        from privfed.client.exchange import Exchange

        yield Exchange("gradient", {"params": params}, self.layout(len(params)))
        return {"gradient": torch.zeros_like(params)}


class Longer(Sgd):
    """Its rows have a number that its layout does not."""

    def message(self, w, broadcast, state, work):
        rows, after = super().message(w, broadcast, state, work)
        return torch.cat([rows, rows[:, :1]], dim=1), after


class Cutting(Sgd):
    """It takes honest rows for those of liars."""

    def admitted(self, rows):
        return rows.clamp(max=0.01)


class InPlace(Sgd):
    """Its memory is changed where it lies."""

    def init(self, params):
        return {"rounds": torch.zeros(())}

    def conclude(self, broadcast, released, memory, cohorts):
        return released, {"rounds": memory["rounds"].add_(1)}


class Drifting(Sgd):
    """It moves without a step."""

    def message(self, w, broadcast, state, work):
        rows, after = super().message(w, broadcast, state, work)
        return rows + 0.01, after


class Hoarding(Sgd):
    """It declares state that it needs for nothing."""

    keeps: ClassVar[int] = 1

    def message(self, w, broadcast, state, work):
        return super().message(w, broadcast, None, work)[0], state


class Forgetful(Sgd):
    """What it remembers lies outside of the run's memory."""

    def conclude(self, broadcast, released, memory, cohorts):
        _ROUNDS.append(released)
        return released * (1 + len(_ROUNDS) % 3), memory


class Greedy(Sgd):
    """It takes all that is broadcast for its own."""

    def direction(self, grad, w, broadcast, state):
        return grad + sum(value.sum() for value in broadcast.values())


_ROUNDS = []
test_every_objective_keeps, test_a_wrong_objective_is_rejected_by = contract_tests(
    "objective",
    {
        trains_alike_in_stacks_and_in_loops: [InStacksOnly()],
        trains_each_client_by_itself: [ByOthers()],
        sends_what_it_declares: [AsksTwice(), Longer(), Cutting(), Hoarding()],
        concludes_without_side_effects: [InPlace(), Forgetful()],
        rests_without_steps: [Drifting()],
        descends_like_sgd: [Ascending()],
        trains_in_a_run_and_resumes: [Forgetful()],
        is_the_same_when_it_is_wrapped: [Greedy()],
        has_a_loss_in_every_admitted_task: [
            *(Margins(), Gathering(), AllPositions(), ByCounts(), Rooted())
        ],
    },
    costly={trains_in_a_run_and_resumes: {"sgd", "feddyn", "mime", "apfl"}},
)
