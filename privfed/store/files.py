"""What may lie in a run directory, by name, for those who read one."""

from __future__ import annotations

from privfed.models.pretrained import CHECKPOINT, CONSTANTS

FILES = {
    "config.toml": "the whole configuration, resolved",
    "ledger.jsonl": "what was charged, and before what: a hash chain, safe to publish",
    "metrics.jsonl": "per evaluated round the test measures, the loss and ε",
    CHECKPOINT: "the model under `model/…`, the server's state, and the ledger's head",
    "releases/": "noised releases since the last checkpoint, a file for each round",
    CONSTANTS: "frozen layers and buffers, where the model has any",
    "aborts.jsonl": "rounds whose secure sum aborted, and why",
    "excluded.jsonl": "who was proved to lie in a secure sum, when and how, and is left out since",
    "report/summary.json": "how the run ended",
    "report/public_clients.json": "which clients were declared public, where some were",
    "report/attackers.json": "in a simulation of attacks, who attacked",
    "report/simulation_only_ranks.jsonl": "how rows stood out, where a simulation opted in",
    "report/simulation_only_clients.csv": "what follows from that for each client",
    "report/metrics.csv": 'the same as metrics.jsonl, as columns, where `run.watch` has "csv"',
    "report/simulation.csv": "beside it, what no epsilon covers, where a simulation opted in",
    "report/tensorboard/": 'both as events, where `run.watch` has "tensorboard"',
    "report/page.html": "a page about the run, by `privfed report`",
    "statistics.json": "what a description says of its people, by `privfed describe`",
    "counted_by.txt": "runs that count what this one spent; it may then spend no more",
    "private/": "secret, mode 0700, never to be published or copied for a second run",
    "private/key": "the secret that slots, correlated noise and canaries follow from",
    "private/settled.f32": "what clients keep between rounds, with its journal beside it",
    "private/histories/settled.f32": "what a rule remembers of clients, with its journal beside it",
    "private/people": "a keyed digest of people who were passed in Python, to know them again",
    "private/canaries.f64": "what canaries saw of each release",
    "private/canaries.safetensors": "the run's start, and the examples of canaries that train",
    "private/simulation.html": "a page with what no ε covers, by `privfed report --simulation`",
    "private/proofs/": "what proves that clients lied in secure sums, with who else took part",
    "private/silos/": "a ledger for each silo, of the privacy of its examples",
}
"""File or folder -> what it holds. Most runs have the first five and a summary."""
