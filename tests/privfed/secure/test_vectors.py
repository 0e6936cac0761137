"""All bytes that masked sums derive and send: `vectors.json`, for other implementations too.

After a change that is meant, running this file writes it (PYTHONPATH=.:tests/privfed).
"""

import json
from dataclasses import replace
from pathlib import Path

import committee_vectors
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from second_client import arithmetic, committee, graphs, noise
from second_client.encoding import records, sha256, sized, u64

from privfed.privacy.noise import shares as noises
from privfed.privacy.noise.shares import Layers
from privfed.privacy.noise.table_sampler import REST
from privfed.secure.agreement import PROTOCOL
from privfed.secure.committee.messages import message_bytes, read_message
from privfed.secure.masked import random_graph
from privfed.secure.masked.circle import neighbours
from privfed.secure.masked.layered_noise import CipherUniforms, next_layer
from privfed.secure.masked.messages.roster import Advertise, Attestation, Invitation, Roster
from privfed.secure.masked.messages.rows import Inbox, Masked, Shares
from privfed.secure.masked.messages.sealed_shares import (
    acknowledged,
    between,
    channel_key,
    commit,
    pair_key,
    self_key,
    share_hashes,
    share_text,
)
from privfed.secure.masked.messages.unmasking import Survivors, Unmask, Vote, Votes
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.shamir import reconstruct, share
from privfed.secure.primitives import Expander, KeyPair, seal, signing_key

FILE = Path(__file__).with_name("vectors.json")
CONTEXT, AGREED, SEED, SIGNATURE = b"c" * 32, b"r" * 32, b"g" * 32, b"s" * 64
EVERYBODY = tuple(range(20))
SEALED, HASHES = ((3, b"x" * 40), (9, b"y" * 40)), ((3, b"h" * 32), (9, b"i" * 32))
SHARES = (1, 2**256)


def messages():
    """A message of each kind, with fields that are easily told apart."""
    keys = Advertise(CONTEXT, 5, b"n" * 32, b"a" * 32, b"b" * 32, signature=SIGNATURE)
    nonces = (b"1" * 32, b"n" * 32, b"2" * 32)
    shares = Shares(CONTEXT, 5, b"a" * 32, b"b" * 32, HASHES, SEALED, signature=SIGNATURE)
    masked = Masked(CONTEXT, 5, b"w" * 10, (3,), signature=SIGNATURE)
    vote, attested = Vote(CONTEXT, 5, SIGNATURE), Attestation(5, (7, 2**40), SIGNATURE)
    opened = ((1, 2),), ((3, 2**256),), ((1, 2, 7),)
    return {
        "invitation": Invitation(b"s" * 32, 7, 1, b"m" * 32, 32, 650, b"a" * 32),
        "keys": keys,
        "roster": Roster(CONTEXT, (3, 5, 9), nonces, 2, 2, SEED, (keys,)),
        "shares": shares,
        "inbox": Inbox(CONTEXT, SEALED, HASHES),
        "masked": masked,
        "masked, attested": replace(masked, attestation=attested),
        "survivors": Survivors(CONTEXT, (3, 5)),
        "survivors, attested": Survivors(CONTEXT, (3, 5), (attested, attested)),
        "vote": vote,
        "votes": Votes(CONTEXT, (vote,), 1),
        "unmask": Unmask(CONTEXT, 5, *opened, b"h" * 32),
    }


def signed_texts(sent):
    """What is signed of these messages."""
    agreed = sent["roster"].agreed()
    kinds = ("keys", "shares", "masked", "masked, attested", "unmask")
    return {
        **{name: sent[name].text for name in kinds},
        "attestation": Attestation.text(CONTEXT, 5, (7, 2**40)),
        "survivors": sent["survivors"].vote_text(agreed),
    }


def derivations(sent):
    """What is derived, hashed and sealed: each with the names and values of what it is of."""
    secret, way = {"secret": b"s" * 32, "agreed": CONTEXT}, {"sender": 9, "receiver": 4}
    dealt = {"agreed": CONTEXT, "dealer": 5, "holder": 9, "shares": SHARES}
    one, other = KeyPair(b"1" * 32), KeyPair(b"2" * 32)
    sealed = seal(b"k" * 32, share_text(5, 9, SHARES), between(AGREED, 5, 9))
    signed = signing_key(b"i" * 32)
    return {
        "context": _case(sent["invitation"].context, message="invitation"),
        "agreed": _case(sent["roster"].agreed(), message="roster"),
        "secret": _case(one.agree(other.public), private=b"1" * 32, public=other.public),
        "signature": _case(signed.sign(b"text"), seed=b"i" * 32, text=b"text"),
        "commitment": _case(commit(AGREED, b"b" * 32), agreed=AGREED, secret=b"b" * 32),
        "graph key": _case(random_graph.edge_key(AGREED), agreed=AGREED),
        "no layers": _case(commit(AGREED, b""), agreed=AGREED, secret=b""),
        "self key": _case(self_key(CONTEXT, b"b" * 32), agreed=CONTEXT, seed=b"b" * 32),
        "channel key": _case(channel_key(CONTEXT, b"s" * 32, 9, 4), **secret, **way),
        "pair key": _case(pair_key(CONTEXT, b"s" * 32, 9, 4), **secret, clients=(4, 9)),
        "share text": _case(share_text(5, 9, SHARES), sender=5, receiver=9, shares=SHARES),
        "sealed": _case(sealed, key=b"k" * 32, agreed=AGREED, way=(5, 9), shares=SHARES),
        "share hashes": _case(share_hashes(CONTEXT, 5, 9, SHARES), **dealt),
        "acknowledged": _case(
            acknowledged(CONTEXT, 5, HASHES), agreed=CONTEXT, holder=5, hashes=HASHES
        ),
    }


def _case(result, **given):
    return {**given, "result": result}


def layers_staying(layers, count, gone):
    """How many layers survivors keep at most, and how many of them keep one less."""
    every = list(layers.keeping(count, gone, range(count - gone)).values())
    assert sorted(every) == every
    return [max(every), every.count(max(every) - 1)]


def layers_of_noise():
    """Layers of 37 clients: bounds, variances and seeds, and draws of the first of each kind."""
    terms = {"variance": 100000.5, "tolerance": 0.3, "colluders": 1, "waste": 0.01}
    layers, count = Layers(**terms), 37
    shares = [layers.layer(count, number + 1) for number in range(layers.count(count))]
    variances = [layers.base(count).variance, *(share.variance for share in shares)]
    kinds = {kind: replace(layers, kind=kind).layer(count, 1) for kind in noises.SHARES}
    leading = CipherUniforms(SEED).leading(3).tolist()
    numbers = [(a << REST) + CipherUniforms(SEED).rest(at) for at, a in enumerate(leading)]
    return {
        **terms,
        "clients": count,
        "boundaries": layers.boundaries(count),
        "keeping": [layers_staying(layers, count, gone) for gone in range(13)],
        "variances": [str(variance) for variance in variances],
        "seed": SEED,
        "next seed": next_layer(SEED),
        "uniform": numbers,
        "kinds": {kind: table_and_draws(share) for kind, share in kinds.items()},
    }


def table_and_draws(share):
    """Values of a layer's table, and its draws by the seed."""
    table = share._table()
    draws = {at.start: noise.tolist() for at, noise in share.blocks(CipherUniforms(SEED), 11)}
    return {
        "table": {str(j): table.exact[j - table.first] for j in (-40, -3, 0, 40)},
        "draws": draws[0],
    }


def rows():
    """Masks, and rows in bytes, at a width of each kind."""
    cases = []
    for bits in (8, 16, 20, 32, 33, 62):
        expander = Expander(11, bits)
        words = expander.zeros()
        expander.apply(words, b"k" * 32)
        mask = tuple(words.tolist())
        packed = bytes(expander.pack(words))
        cases.append({"bits": bits, "key": b"k" * 32, "mask": mask, "packed": packed})
    return cases


def graph_draws():
    """Neighbours of each of 20 clients, on a circle and on a random graph."""
    draws = {"circle": neighbours, "random": random_graph.partners}
    lists = {
        name: [draw(SEED, EVERYBODY, 6, me) for me in EVERYBODY] for name, draw in draws.items()
    }
    return {"seed": SEED, "clients": EVERYBODY, "degree": 6, **lists}


def sharing():
    """A secret in shares of a polynomial with given coefficients."""
    rising = iter([2**255, 7])
    values = share(b"q" * 32, 3, (1, 2, 5, 6), lambda _: next(rising))
    coefficients = (2**255, 7)
    return {"secret": b"q" * 32, "threshold": 3, "coefficients": coefficients, "values": values}


def vectors():
    """All of them, as JSON has them: bytes in hex, numbers above 2^53 as decimal texts."""
    sent = messages()
    return _plain(
        {
            "protocol": PROTOCOL,
            "messages": {name: encode(message) for name, message in sent.items()},
            "signed": signed_texts(sent),
            "derived": derivations(sent),
            "sharing": sharing(),
            "rows": rows(),
            "graphs": graph_draws(),
            "layers": layers_of_noise(),
            "committee": committee_vectors.of_a_committee(),
        }
    )


def _plain(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, int) and value >= 2**53 else value


FROZEN = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
"""Both sides of a deployment have to agree on every byte of these."""


def test_what_we_derive_and_send_is_frozen():
    made = vectors()
    assert made.keys() == FROZEN.keys()
    for name, part in made.items():
        assert part == FROZEN[name]


def test_messages_are_read_as_they_are_written():
    assert all(decode(encode(message)) == message for message in messages().values())
    assert pair_key(CONTEXT, b"s" * 32, 4, 9) == pair_key(CONTEXT, b"s" * 32, 9, 4)


def test_shares_of_the_file_give_its_secret():
    case = FROZEN["sharing"]
    values = {int(place): int(value) for place, value in case["values"].items()}
    assert reconstruct(values, case["threshold"]).hex() == case["secret"]


def test_the_second_client_masks_and_draws_graphs_alike():
    for case in FROZEN["rows"]:
        key = bytes.fromhex(case["key"])
        mask = arithmetic.mask(key, 11, case["bits"])
        assert mask == [int(word) for word in case["mask"]]
        assert arithmetic.packed(mask, case["bits"]).hex() == case["packed"]
    graph = FROZEN["graphs"]
    terms = bytes.fromhex(graph["seed"]), graph["clients"], graph["degree"]
    for name, draw in (("circle", graphs.on_circle), ("random", graphs.on_random_graph)):
        assert [draw(*terms, me) for me in graph["clients"]] == graph[name]


def test_the_second_client_hashes_alike():
    shares = [value.to_bytes(33, "little") for value in SHARES]
    hashed = {
        "graph key": graphs.edge_key(AGREED),
        "share hashes": arithmetic.share_hashes(CONTEXT, 5, 9, shares),
        "acknowledged": arithmetic.acknowledged(CONTEXT, 5, dict(HASHES)),
    }
    assert {name: text.hex() for name, text in hashed.items()} == {
        name: FROZEN["derived"][name]["result"] for name in hashed
    }


def test_the_second_client_draws_layers_alike():
    case = FROZEN["layers"]
    layers = noise.Layers(*(case[name] for name in ("variance", "tolerance", "colluders", "waste")))
    count, seed = case["clients"], bytes.fromhex(case["seed"])
    assert layers.boundaries(count) == case["boundaries"]
    assert [layers_staying(layers, count, gone) for gone in range(13)] == case["keeping"]
    variances = layers.variances(count)
    assert [str(variance) for variance in variances] == case["variances"]
    assert noise.next_layer(seed).hex() == case["next seed"]
    assert list(noise.uniform(seed, range(3))) == [int(number) for number in case["uniform"]]
    assert case["kinds"].keys() == noise.WEIGHTS.keys() == noises.SHARES.keys()
    for kind, of in case["kinds"].items():
        reach, table = noise.table_of(variances[1], kind)
        found = {j: table[int(j) + reach] for j in of["table"]}
        assert found == {j: int(below) for j, below in of["table"].items()}
        assert noise.draws(variances[1], seed, 11, kind) == of["draws"]


def test_a_committee_is_dealt_to_alike():
    """Known answers of a committee's sum, from the page's words alone."""
    case, of = FROZEN["committee"]["dealing"], committee_vectors
    roots, corrections, commitments = committee.dealt(
        of.AGREED, of.DEALER, of.SECRETS, of.KEYS, of.THRESHOLD
    )
    parts = (case["roots"], case["corrections"], case["commitments"])
    assert (roots.hex(), corrections.hex(), commitments.hex()) == parts
    for which, (secret, values) in enumerate(zip(of.SECRETS, case["shares"], strict=True)):
        drawn = [committee.number(key, which) for key in of.KEYS]
        assert drawn == [int(column[which]) for column in case["numbers"]]
        for places in ((1, 2, 3), (2, 3, 4)):
            some = {place: int(values[place - 1]) for place in places}
            assert committee.interpolated(some, 0) == int.from_bytes(secret, "big")
    for place, (key, shown) in enumerate(zip(of.KEYS, case["proofs"], strict=True), start=1):
        levels = committee.tree(of.AGREED, of.DEALER, place, key, len(of.SECRETS))
        assert committee.proof(levels, case["opened"]).hex() == shown
    assert case["opened"] == [0, 2], "its own seed, and that of its pair with who is gone"


def test_a_committee_is_drawn_and_masked_for_alike():
    of, answers = committee_vectors, FROZEN["committee"]
    derived = {
        "book": committee.book_hash(
            of.RUN, [(card.client, card.public, card.nonce) for card in of.book().cards.values()]
        ),
        "pair seed": committee.derived(of.AGREED, b"s" * 32, b"pair", 5, 9),
        "mask key": committee.derived(of.AGREED, b"s" * 32, b"mask"),
        "sealing key": committee.derived(of.AGREED, b"s" * 32, b"seal", 5, 9),
    }
    one, other = (X25519PrivateKey.from_private_bytes(key) for key in of.PRIVATE.values())
    agreed = one.exchange(other.public_key())
    derived["run secret"] = committee.derived(derived["book"], agreed, b"run", 5, 9)
    assert {name: key.hex() for name, key in derived.items()} == {
        name: answers["derived"][name] for name in derived
    }
    chain = [committee.exchange_secret(derived["run secret"], *each) for each in of.EXCHANGES]
    assert [secret.hex() for secret in chain] == answers["derived"]["exchange secrets"]
    seeds = dict(zip((5, 3, 9), of.SECRETS, strict=True))
    assert committee.masked(of.AGREED, 5, (-1, 0, 1, 2), 20, seeds).hex() == answers["row"]
    terms = (of.POLICY.size, of.POLICY.threshold, of.POLICY.colluders, of.POLICY.members)
    for clients, sizes in answers["committees"]["sizes"].items():
        assert committee.committee(int(clients), *terms) == sizes
    assert committee.seats(7, 1, range(0, 40, 2), 6) == answers["committees"]["seats"]


def test_messages_of_a_committee_are_read_as_they_are_written():
    sent = committee_vectors.messages()
    assert all(read_message(message_bytes(message)) == message for message in sent.values())
    row, context = sent["contribution"], sent["call"].context
    parts = (row.dealt.roots, row.dealt.corrections, row.dealt.secrets)
    rest = sha256(records(list(row.sealed)), row.words)
    dealing = sha256(b"\2", context, u64(5), *map(sized, parts), rest)
    assert row.text == b"privfed committee" + dealing
    for kind, message in ((b"\4", sent["ballot"]), (b"\6", sent["disclosure"])):
        assert message.text == b"privfed committee" + sha256(kind, context, message.body()[64:])


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n", "utf-8")
