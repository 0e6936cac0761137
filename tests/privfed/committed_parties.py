"""Masked sums of committed parties that are killed: at a commit, after an answer, by a signal."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from masked_sums import codec, rows, session

from privfed.privacy.noise.shares import Layers
from privfed.secure.identities import signing_key, verifying_key
from privfed.secure.limits import Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.committed_party import CommittedParty
from privfed.secure.masked.graph import graph_seed
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.policy import Expected, SitePolicy
from privfed.secure.masked.server import MaskingServer
from privfed.secure.summation import Aborted

STEPS = ("Invitation", "Roster", "Inbox", "Survivors", "Votes")


class Killed(BaseException):
    """The process ends immediately: nothing in it is caught or cleaned up."""


def key_of(site):
    """Returns the same key in every process of a test."""
    return signing_key(bytes([7]) * 24 + site.to_bytes(8, "little"))


@dataclass(frozen=True)
class Setting:
    """Five sites: four have to survive, and one may collude with a malicious server."""

    sites: int = 5
    minimum: int = 4
    layers: Layers | None = None
    round: int = 1

    @property
    def of(self):
        return session(self.sites, round=self.round)

    @property
    def ids(self):
        return tuple(self.of.clients.tolist())

    @property
    def policy(self):
        return SitePolicy(self.sites, self.minimum, 4, 1, "malicious")

    @property
    def limits(self):
        return Limits(self.sites, self.minimum, size=self.sites, sites=self.sites, colluders=1)

    @property
    def directory(self):
        return {site: verifying_key(key_of(site)) for site in self.ids}

    @property
    def expected(self):
        return Expected(self.round, 0, b"h" * 32, codec(7))

    def row(self, site):
        return rows(codec(7), self.sites)[self.ids.index(site)]

    def sum_of(self, sites):
        return sum(self.row(site) for site in sites)

    def terms(self, site, row):
        """Returns a client's arguments except its number."""
        noise = ClientNoise(self.layers, self.of.layer_keys(site)) if self.layers else None
        return (
            *(key_of(site), self.directory, self.policy, self.expected),
            *(row, self.limits, noise),
        )

    def client(self, site, row, state=None):
        terms = self.terms(site, row)
        if state is None:
            return MaskingClient(site, *terms)
        return MaskingClient.from_bytes(state, *terms)

    def server(self, name=b"s" * 32):
        invitation = self.expected.invitation(name, self.policy, self.limits, self.layers)
        settings = (self.policy, graph_seed(self.of), self.limits, self.layers)
        return MaskingServer(invitation, self.ids, self.directory, *settings)


@dataclass
class Site:
    """A party, and its last committed state, which remains when it is killed.

    `dies` names the commits (1, 2, ...) at which it is killed, each "before" or "after"; the
    message after whose answer it is killed ("Roster"); or "always", after each answer.
    """

    setting: Setting
    me: int
    dies: dict = field(default_factory=dict)
    state: bytes | None = None
    states: list = field(default_factory=list)
    rows: int = 0
    deaths: int = 0
    party: CommittedParty | None = None

    def _row(self):
        self.rows += 1
        return self.setting.row(self.me).copy()

    def _store(self, data):
        moment = self.dies.pop(len(self.states) + 1, None)
        if moment == "before":
            raise Killed
        self.state = data
        self.states.append(data)
        if moment == "after":
            raise Killed

    def started(self):
        client = self.setting.client(self.me, self._row, self.state)
        return CommittedParty(client, self._store, len(self.states))

    def ask(self, question):
        """Returns its answer, restarting it if it is killed."""
        while True:
            self.party = self.party or self.started()
            try:
                answer = self.party.handle(question)
            except Killed:
                self.party, self.deaths = None, self.deaths + 1
                continue
            if "always" in self.dies or self.dies.pop(type(decode(question)).__name__, None):
                self.party, self.deaths = None, self.deaths + 1
            return answer


@dataclass
class Outcome:
    """The result of a sum, None if it aborted, with all questions, answers and refusals."""

    total: list | None
    survivors: int
    answers: dict
    questions: dict
    faults: list


def played(setting, sites, leave=(), between=None):
    """Runs a sum over `sites`, by number; a (site, message) in `leave` never arrives.

    `between(site, question)` runs when the site has answered `question`.
    """
    server, answers, questions, faults = setting.server(), {}, {}, []

    def ask(sent, step):
        for site, message in sent.items():
            if any((site, name) in leave for name in STEPS[: step + 1]):
                continue
            question = questions[site, STEPS[step]] = encode(message)
            try:
                answer = answers[site, STEPS[step]] = sites[site].ask(question)
                server.handle(site, decode(answer))
            except Aborted as refused:
                faults.append(refused)
            if between:
                between(sites[site], question)

    try:
        ask(dict.fromkeys(setting.ids, server.invitation), 0)
        for step in range(1, len(STEPS)):
            ask(server.proceed(), step)
        words, survivors = server.total()
    except Aborted as aborted:
        faults.append(aborted)
        return Outcome(None, 0, answers, questions, faults)
    total = setting.expected.codec.unwrap(words.astype(np.uint64)).tolist()
    return Outcome(total, survivors, answers, questions, faults)


def everybody(setting, dies=None):
    """Returns all sites of `setting`, with the kills in `dies`."""
    return {site: Site(setting, site, dict((dies or {}).get(site, {}))) for site in setting.ids}


def durably(path):
    """Returns a store of states in a file, atomic and durable."""

    def store(data):
        fresh = path.with_suffix(".new")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    return store


def process(setting, site, folder, pipe):
    """Runs a party in its own process: it resumes from its file, and answers questions."""
    path, asked = Path(folder) / f"{site}.state", Path(folder) / f"{site}.rows"

    def row():
        with asked.open("ab") as file:
            file.write(b"r")
        time.sleep(0.003)  # otherwise few parties would be killed meanwhile
        return setting.row(site).copy()

    state = path.read_bytes() if path.exists() else None
    party = CommittedParty(setting.client(site, row, state), durably(path))
    pipe.send_bytes(b"ready")
    while True:
        question = pipe.recv_bytes()
        try:
            pipe.send_bytes(party.handle(question))
        except Aborted as refused:
            pipe.send_bytes(b"refused " + str(refused).encode())
