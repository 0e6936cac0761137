"""Byzantine clients of a masked sum, which may deviate in any message to an honest server."""

from dataclasses import dataclass, field, replace

import malicious_server
import numpy as np
from masked_sums import Fixed, codec, session

from privfed.privacy.noise.shares import Layers
from privfed.secure.identities import client_directory
from privfed.secure.limits import Limits
from privfed.secure.masked import evidence, server, unmasking
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.graph import graph_seed
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.rows import Masked
from privfed.secure.masked.messages.unmasking import Vote
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.policy import Expected
from privfed.secure.masked.server import MaskingServer
from privfed.secure.masked.shamir import share
from privfed.secure.primitives import random_key
from privfed.secure.summation import Aborted

CODEC = codec(length=3)
DEALS = (
    *("wrong hashes", "garbled texts", "inconsistent seed", "inconsistent key"),
    *("wrong seed", "wrong key", "inconsistent layer", "wrong layers"),
)
"""Deviations when shares are distributed; the other ones come later."""
DEVIATIONS = (
    *DEALS,
    *("complaints", "wrong vote", "wrong shares", "fewer shares", "other layers"),
    *("no Shares", "no Masked", "no Vote", "no Unmask"),
)


@dataclass
class ByzantineBehaviour:
    """The behaviour of a Byzantine client: each of its deviations affects random `victims`."""

    deviations: tuple[str, ...]
    rng: np.random.Generator

    def some(self, those):
        """Returns a random subset, often all or one of them."""
        those, part = list(those), self.rng.choice([0.0, 0.3, 0.6, 1.0])
        chosen = [each for each in those if self.rng.random() < part]
        return set(chosen or those[:1])


def idealise(monkeypatch):
    """Applies `malicious_server.idealise` to the server and its proofs, too."""
    malicious_server.idealise(monkeypatch)
    for module in (server, unmasking, evidence):
        monkeypatch.setattr(module, "KeyPair", malicious_server.Ideal)


class ByzantineClient(MaskingClient):
    """A client that deviates as `byzantine_client` states."""

    byzantine_client = None

    def _share(self, roster):
        shares, deviations = super()._share(roster), self.byzantine_client.deviations
        if not set(deviations) & set(DEALS):
            return shares
        holders = [who for who, _ in shares.hashes]
        dealt = self._dealt(holders)
        hashes = {who: self._hashes(self.me, who, dealt[who]) for who in holders}
        if "wrong hashes" in deviations:
            for who in self.byzantine_client.some(holders):
                hashes[who] = bytes(len(hashes[who]))
        texts = {who: self._seal(who, dealt[who]) for who, _ in shares.sealed}
        if "garbled texts" in deviations:
            for who in self.byzantine_client.some(texts):
                texts[who] = bytes(len(texts[who]))
        self._held = {who: dealt[who] for who in self._held}
        return replace(shares, hashes=tuple(hashes.items()), sealed=tuple(texts.items()))

    def _dealt(self, holders):
        """Returns shares of each secret, some of them invalid, by their holder."""
        deviations, threshold = self.byzantine_client.deviations, self._graph.threshold
        secrets = [bytes(self._seed), bytes(self._mask_secret), *self._layers]
        for name, those in (("seed", [0]), ("key", [1]), ("layers", range(2, len(secrets)))):
            for which in those:
                if f"wrong {name}" in deviations:
                    secrets[which] = self.byzantine_client.rng.bytes(32)
        places = [self._places[who] for who in holders]
        dealt = [share(secret, threshold, tuple(places)) for secret in secrets]
        for name, those in (("seed", [0]), ("key", [1]), ("layer", range(2, len(secrets)))):
            if f"inconsistent {name}" in deviations:
                for which in those:
                    for place in self.byzantine_client.some(places):
                        dealt[which][place] = int(self.byzantine_client.rng.integers(1 << 62))
        return {who: tuple(each[self._places[who]] for each in dealt) for who in holders}

    def _unmask(self, votes):
        answer, deviations = super()._unmask(votes), self.byzantine_client.deviations
        numbers = {who: number for who, number, _ in answer.layers}
        lists = {"seeds": dict(answer.seeds), "keys": dict(answer.keys)}
        lists["layers"] = {who: value for who, _, value in answer.layers}
        for shares in lists.values():
            if "wrong shares" in deviations and shares:
                shares.update({who: shares[who] ^ 1 for who in self.byzantine_client.some(shares)})
            if "fewer shares" in deviations and shares:
                for who in self.byzantine_client.some(shares):
                    del shares[who]
        values = {name: tuple(sorted(shares.items())) for name, shares in lists.items()}
        later = "other layers" in deviations
        values["layers"] = tuple((who, numbers[who] + later, v) for who, v in values["layers"])
        return replace(answer, **values)

    def handle(self, message):
        answer, deviations = super().handle(message), self.byzantine_client.deviations
        if isinstance(answer, Masked) and "complaints" in deviations:
            named = tuple(sorted(self.byzantine_client.some(self._shared)))
            answer = replace(answer, complaints=named).signed(malicious_server.identity(self.me))
        if isinstance(answer, Vote) and "wrong vote" in deviations:
            answer = replace(answer, signature=bytes(64))
        if f"no {type(answer).__name__}" in deviations:
            raise Aborted("silent")
        return answer


@dataclass(frozen=True)
class Trial:
    """A sum over `clients` clients, with Byzantine `byzantine`, and honest clients that `leave`
    before a step.
    """

    clients: int
    policy: Fixed
    byzantine: dict[int, ByzantineBehaviour]
    leave: dict[int, int]
    layers: Layers | None = None
    limits: Limits = field(default_factory=lambda: Limits(50))

    @property
    def of(self):
        return session(self.clients)


@dataclass
class Outcome:
    """The result of a sum; None if it aborted."""

    total: list | None
    expected: list | None
    culprits: tuple
    server: MaskingServer
    why: str = ""


def played(trial):
    """Runs one session."""
    of, limits, layers = trial.of, trial.limits, trial.layers
    everybody = of.clients.tolist()
    directory, expected = client_directory(everybody), Expected(1, 0, b"h" * 32, CODEC)
    invitation = expected.invitation(bytes(random_key()), trial.policy, limits, layers)
    host = MaskingServer(
        *(invitation, tuple(everybody), directory, trial.policy, graph_seed(of), limits, layers)
    )
    clients, rows, noises = {}, {}, {}
    for who in everybody:
        rows[who] = np.arange(3) * who - 7
        noises[who] = ClientNoise(layers, of.layer_keys(who)) if layers else None
        made = ByzantineClient if who in trial.byzantine else MaskingClient
        clients[who] = made(
            *(
                who,
                malicious_server.identity(who),
                directory,
                trial.policy,
                expected,
                rows[who].copy,
            ),
            *(limits, noises[who]),
        )
        clients[who].byzantine_client = trial.byzantine.get(who)

    def ask(sent, step):
        for who, message in sent.items():
            if step >= trial.leave.get(who, 9):
                continue
            try:
                host.handle(who, decode(encode(clients[who].handle(decode(encode(message))))))
            except Aborted:
                assert who in trial.byzantine, "an honest client is refused, or refuses"

    try:
        ask(dict.fromkeys(everybody, invitation), 0)
        for step in range(1, 5):
            ask(host.proceed(), step)
        words, _ = host.total()
    except Aborted as aborted:
        return Outcome(None, None, host.culprits, host, str(aborted))
    total = sum(rows[who] + _noise(who, noises[who], host) for who in host._senders)
    opened = CODEC.unwrap(words.astype(np.uint64)).tolist()
    return Outcome(opened, total.tolist(), host.culprits, host)


def _noise(who, noise, host):
    """Returns the remaining noise of a client."""
    if noise is None:
        return np.zeros(3, np.int64)
    expected = host._members.expected
    return noise.draw(expected, noise.seeds(expected)[: host._keeping(host._gone)[who]], 3)


def drawn(seed):
    """Returns a random trial within the bounds for which the party that stops a sum is
    identified.
    """
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(6, 13))
    most = min(int(rng.integers(1, 4)), (clients - 2) // 2)
    degree = int(rng.choice([clients - 1, clients - 1, 2 * ((clients - 2) // 2)]))
    holders = degree + (degree == clients - 1)
    threshold = int(rng.integers(2, max(holders - 2 * most, 2) + 1))
    byzantine = min(most, threshold - 1)
    layers = Layers(50.0, 0.6) if rng.random() < 0.5 else None
    spare = holders - 2 * byzantine - threshold
    if layers:
        spare = min(spare, layers.most_dropouts(clients) - byzantine)
    ids = rng.permutation(session(clients).clients).tolist()
    bad, honest = ids[: int(rng.integers(1, byzantine + 1))], ids[byzantine:]
    leave = {who: int(rng.integers(1, 5)) for who in honest[: int(rng.integers(spare + 1))]}
    deviations = {
        who: ByzantineBehaviour(tuple(rng.choice(DEVIATIONS, size=int(rng.integers(1, 4)))), rng)
        for who in bad
    }
    limits = Limits(50, tolerance=0.6 if layers else 1.0)
    return Trial(
        clients, Fixed(threshold, degree, byzantine=byzantine), deviations, leave, layers, limits
    )
