"""In secret mode nothing private follows from the seed: over all streams that runs ask for."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts.registered import examples
from lanes import every_case
from small import small
from traced import assert_secret, tracing

from privfed.core import streams
from privfed.core.registry import BUILT_IN
from privfed.core.streams import PRIVATE, PUBLIC, SAVED_STREAMS, Keys, Streams
from privfed.run.train import train
from privfed.secure.masked import client as masking_client
from privfed.store.run_files import PrivateKey

MASKS = ("secure.protocol=masks", "cohort.sampler=full", "cohort.size=0", "data.clients=8")
OPEN = ("privacy.mechanism=none", "data.setting=cross_silo")
SILOS = (*OPEN, "cohort.sampler=full", "cohort.size=0", "client.privacy.mechanism=dp_sgd")
SILOS += ("client.privacy.sampling_rate=1.0", "client.privacy.noise_multiplier=3.0")
BANDED = ("privacy.mechanism=banded", "privacy.bands=2")
CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0")
LAYERS = ("privacy.mechanism=skellam", "privacy.sizing=layers", "privacy.tolerance=0.4")
SECRET = {
    "central": ("client.objective=sgd", "cohort.sampler=poisson"),
    "cut": ("client.objective=fedprox", "cohort.sampler=truncated_poisson"),
    "fixed": ("client.objective=feddane", "cohort.sampler=fixed_size"),
    "adaptive": (
        "client.objective=mimelite",
        "privacy.adaptive_clip=true",
        "privacy.count_noise=2.0",
    ),
    "mime": ("client.objective=mime", *MASKS),
    "banded": ("client.objective=scaffold", "data.setting=cross_silo", *BANDED, *CYCLIC),
    "buffers": ("client.objective=fedpa", "privacy.mechanism=blt", *CYCLIC),
    "allocation": (
        "client.objective=adaalter",
        "cohort.sampler=allocation",
        "cohort.slots=3",
        "cohort.size=0",
    ),
    "layers": ("client.objective=feddyn", "data.setting=cross_silo", *MASKS, *LAYERS),
    "discrete": ("client.objective=fedfor", *MASKS, "privacy.mechanism=discrete_gaussian"),
    "local": ("client.objective=fedlin", "privacy.mechanism=local_gaussian", *MASKS),
    "pairs": (
        "client.objective=group_clip",
        "privacy.mechanism=pairwise_gaussian",
        "cohort.sampler=full",
        "cohort.size=0",
    ),
    "canaries": (
        *("data.clients=24", "audit.canaries=20"),
        *("client.objective=afl", "client.groups=3"),
    ),
    "canaries that train": (
        *("data.clients=24", "audit.canaries=20", "audit.kind=input"),
        "client.objective=qfedavg",
    ),
    "canaries in sums": (
        *("data.clients=24", "audit.canaries=20", "data.sites=3", "privacy.mechanism=skellam"),
        *("secure.protocol=masks", "secure.simulate=arithmetic", "cohort.size=8"),
    ),
    "silos": (*SILOS, "client.objective=fedsplit"),
    "coins": (
        *(*OPEN, "client.objective=fednova", "cohort.sampler=by_size", "cohort.dropout=0.3"),
        *("data.clients=60", "cohort.size=40"),  # so that somebody is there to straggle
        *("cohort.availability=daily", "client.stragglers=0.5"),
        *("attack.name=label_flip", "attack.fraction=0.2", "aggregation.weights=uniform"),
    ),
    "momentum": ("client.objective=worker_momentum", "data.setting=cross_silo"),
    "heads": (
        *("client.objective=sgd", "data.setting=cross_silo", "model.name=mlp"),
        *('model.local=["3*"]', "client.local_epochs=1"),
    ),
    "ticks": (
        *("client.objective=sgd", "cohort.sampler=asynchronous", "cohort.separation=3"),
        "cohort.size=0",
    ),
    "clusters": ("client.objective=ifca", "server.optimizer=fedavg"),
    "fedcurv": (*OPEN, "client.objective=fedcurv", *MASKS),
    "rows": (*OPEN, "aggregation.rule=median", 'aggregation.before=["bucketing"]'),
    "loss": (*OPEN, "client.objective=fedprox_adaptive"),
}
"""Runs with every mechanism, sampler and objective, and with all else that draws."""
_PLAYED = {word for words in SECRET.values() for word in words}
SECRET |= {  # of objectives that need no more than to be named
    name: (f"client.objective={name}", *(("data.setting=cross_silo",) if part.keeps else ()))
    for name, part in examples("objective").items()
    if f"client.objective={name}" not in _PLAYED
}


def traced(folder, name):
    with tracing() as trace:
        train(small(*SECRET[name], "run.rounds=1"), folder / name)
    return trace


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret")
    return {name: traced(folder, name) for name in SECRET}


@pytest.mark.parametrize("name", SECRET)
def test_no_private_draw_follows_from_a_seed(name, traces):
    assert_secret(traces[name])


def test_these_runs_are_of_every_kind_and_ask_for_every_private_stream(traces):
    for kind in ("mechanism", "sampler", "objective"):
        used = {small(*words).names[kind] for words in SECRET.values()}
        assert used == {*BUILT_IN[kind]}, f"add a run of each {kind} to SECRET"
    asked = {stream for trace in traces.values() for stream in trace.streams}
    of_tunings = {"candidates"}  # which are several runs: `privfed.grid.private_tuning`
    assert {one.partition("/")[0] for one in asked} - PUBLIC == (
        PRIVATE | SAVED_STREAMS
    ) - of_tunings
    drawn = {stream for trace in traces.values() for stream, _, _ in trace.draws}
    assert "slots/epoch" in asked
    assert drawn >= {"cohort", "cohort/cut", "slots", "matrix", "rule", "noise/0", "noise/1"}
    assert drawn >= {"canaries/coins", "canaries/directions", "noise/client/0", "noise/silo"}
    assert "canaries/examples" in drawn
    assert drawn >= {"noise/rounding/0", "noise/rounding/1", "noise/layers/0", "noise/graph/0"}
    assert traces["layers"].secrets, "no mask was made"
    public = {"init", "shuffle", "synthetic", "dropout", "availability", "stragglers", "attack"}
    assert public <= {one.partition("/")[0] for one in asked}


def names_in_the_code():
    """The first part of every name that is written down in a call of `at`."""
    for path in Path(streams.__file__).parents[1].rglob("*.py"):
        yield from re.findall(r'\.at\(\s*f?"([a-z_]+)', path.read_text(encoding="utf-8"))


def test_every_stream_is_listed_once_and_another_is_refused():
    assert not PUBLIC & (PRIVATE | SAVED_STREAMS)
    assert not PRIVATE & SAVED_STREAMS
    assert PRIVATE | SAVED_STREAMS <= {*names_in_the_code()} <= PRIVATE | SAVED_STREAMS | PUBLIC
    for keys in (Streams(1), Streams(1, simulated=True), Streams(1, key=bytes(32))):
        with pytest.raises(ValueError, match="neither as private nor as public"):
            keys.at("forgotten/0")


@every_case("kind", sorted(PRIVATE))
@every_case("kept", [None, bytes(range(32))])
def test_private_keys_have_no_seed_whatever_else_is_kept(kind, kept):
    keys = Streams(7, key=kept).at(f"{kind}/0", 3, np.arange(2))
    whole = [keys, keys.derived(b"x"), keys.derived(b"x").derived(b"y"), *keys.each()]
    assert [one.seed for one in whole] == [None] * 5
    for one in whole:
        assert not {*one.bits(8).tolist()} & {*one.bits(8).tolist(), *one.further(8).tolist()}
    assert not np.array_equal(keys.per_client(4), keys.per_client(4))


@every_case("kind", sorted(SAVED_STREAMS))
def test_kept_keys_follow_from_the_kept_key_and_not_from_the_seed_alone(kind):
    with pytest.raises(ValueError, match="secret key"):
        Streams(7).at(kind)
    keys = [Streams(seed, key=bytes([n] * 32)).at(kind, 1) for seed in (7, 8) for n in (1, 2)]
    drawn = [word for one in keys for word in one.bits(16).tolist()]
    assert len({*drawn}) == len(drawn)
    public = {Streams(7, simulated=mode).at("init", 1).seed for mode in (False, True)}
    assert not public & {one.seed[:16] for one in keys}


# --- planted faults ---


def made_public(kind):
    def plant(monkeypatch):
        monkeypatch.setattr(streams, "PRIVATE", PRIVATE - {kind})
        monkeypatch.setattr(streams, "SAVED_STREAMS", SAVED_STREAMS - {kind})
        monkeypatch.setattr(streams, "PUBLIC", PUBLIC | {kind})

    return plant


def simulated(prefix):
    """Only these draws are taken from streams as a simulation has them."""

    def plant(monkeypatch):
        real = Streams.at

        def at(self, stream, *rest, **named):
            seeded = replace(self, simulated=self.simulated or stream.startswith(prefix))
            return real(seeded, stream, *rest, **named)

        monkeypatch.setattr(Streams, "at", at)

    return plant


def seeds_what_is_derived(monkeypatch):
    real = Keys.derived

    def derived(self, what):
        return real(Keys(b"0123456789abcdef") if self.seed is None else self, what)

    monkeypatch.setattr(Keys, "derived", derived)


def repeats_its_bits(monkeypatch):
    """No seed to be seen, and yet the same numbers every time."""
    real = Keys.bits

    def bits(self, count):
        return real(Keys(b"0123456789abcdef") if self.seed is None else self, count)

    monkeypatch.setattr(Keys, "bits", bits)


def keeps_a_key_that_all_know(monkeypatch):
    monkeypatch.setattr(PrivateKey, "read_or_draw", lambda self, run, fresh: b"k" * 32)


def leaves_the_kept_key_out(monkeypatch):
    real = Streams.at

    def at(self, stream, *rest, **named):
        key = None if self.key is None else bytes(32)
        return real(replace(self, key=key), stream, *rest, **named)

    monkeypatch.setattr(Streams, "at", at)


def masks_from_a_seed(monkeypatch):
    rng = np.random.default_rng(1)
    monkeypatch.setattr(masking_client, "random_key", lambda: bytearray(rng.bytes(32)))


FAULTS = {
    "a cohort with a seed": (made_public("cohort"), "central"),
    "noise with a seed": (made_public("noise"), "central"),
    "buckets with a seed": (made_public("rule"), "rows"),
    "slots with a seed": (made_public("slots"), "banded"),
    "banded noise with a seed": (made_public("matrix"), "banded"),
    "canaries with a seed": (made_public("canaries"), "canaries"),
    "a seeded cut": (simulated("cohort/cut"), "fixed"),
    "seeded noise of later exchanges": (simulated("noise/1"), "fixed"),
    "seeded noise of clients": (simulated("noise/client"), "local"),
    "seeded noise of silos": (simulated("noise/silo"), "silos"),
    "seeded rounding": (simulated("noise/rounding"), "layers"),
    "seeded layers": (simulated("noise/layers"), "layers"),
    "seeded neighbours": (simulated("noise/graph"), "layers"),
    "seeded slots": (simulated("slots"), "banded"),
    "derived keys with a seed": (seeds_what_is_derived, "layers"),
    "bits that repeat": (repeats_its_bits, "central"),
    "a kept key that all know": (keeps_a_key_that_all_know, "canaries"),
    "buffered noise with a seed": (made_public("matrix"), "buffers"),
    "fresh slots with a seed": (simulated("slots/epoch"), "allocation"),
    "fresh slots without the key": (leaves_the_kept_key_out, "allocation"),
    "a kept key that is not used": (leaves_the_kept_key_out, "banded"),
    "masks from a seed": (masks_from_a_seed, "layers"),
}


@every_case("name", FAULTS)
def test_a_stream_that_follows_from_a_seed_is_caught(name, tmp_path, monkeypatch):
    plant, run = FAULTS[name]
    plant(monkeypatch)
    trace = traced(tmp_path, run)
    with pytest.raises(AssertionError):
        assert_secret(trace)
