"""Test vectors of a committee's sum: every message and derivation, from fixed keys and nonces."""

from itertools import pairwise

from privfed.secure.committee.dealing import (
    Dealt,
    column_tree,
    deal_secrets,
    member_numbers,
    member_share,
    proof,
)
from privfed.secure.committee.key_book import (
    KeyBook,
    KeyCard,
    mask_key,
    pair_seed,
    run_secret,
    sealing_key,
    shares_context,
)
from privfed.secure.committee.keyring import Keyring
from privfed.secure.committee.messages import (
    SEALED,
    Ballot,
    Ballots,
    Call,
    Contribution,
    Disclosure,
    MemberInbox,
    MemberVote,
    message_bytes,
    vote_text,
)
from privfed.secure.committee.opening import opened_numbers
from privfed.secure.committee.policy import CommitteePolicy, drawn
from privfed.secure.primitives import Expander, KeyPair, seal

AGREED, RUN, SIGNATURE = b"r" * 32, b"R" * 32, b"s" * 64
PRIVATE = {5: b"1" * 32, 9: b"2" * 32}
SECRETS = (b"m" * 32, b"\xff" * 32, b"\x00" * 31 + b"7")
KEYS = (b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32)
THRESHOLD, DEALER, CLIENTS = 3, 5, (3, 5, 9)
EXCHANGES = ((0, 0), (0, 1), (2, 1), (3, 0))
POLICY = CommitteePolicy(0.7, 0.1, 5, 20)


def messages():
    """Returns a message of each kind, with distinguishable fields."""
    call = Call(7, 1, b"m" * 32, 20, 4, b"a" * 32, CLIENTS)
    context, dealt = call.context, Dealt(b"o" * 32, b"c" * 66, b"e" * 48)
    letters = (b"k" * SEALED, b"l" * SEALED)
    return {
        "call": call,
        "contribution": Contribution(context, 5, letters, dealt, b"w" * 10, signature=SIGNATURE),
        "inbox": MemberInbox(context, ((3, letters[0]), (5, letters[1]))),
        "ballot": Ballot(context, 5, b"v" * 64, (b"o" * 16, bytes(16)), signature=SIGNATURE),
        "ballots": Ballots(context, (MemberVote(3, b"v" * 64), MemberVote(9, b"u" * 64))),
        "disclosure": Disclosure(context, 5, ((3, b"t" * 48), (9, b"")), signature=SIGNATURE),
    }


def book():
    """Returns the unsigned cards of two clients."""
    cards = {
        client: KeyCard(RUN, client, KeyPair(key).public, bytes([client]) * 32)
        for client, key in PRIVATE.items()
    }
    return KeyBook(RUN, {}, cards)


def secrets_of_exchanges(cards):
    """Returns the secrets that client 5 shares with client 9 in successive exchanges of a run."""
    assert all(one < other for one, other in pairwise(EXCHANGES))
    ring = Keyring(KeyPair(PRIVATE[5]), cards.cards[5], cards)
    return [ring.take(*exchange)[9] for exchange in EXCHANGES]


def derivations(sent):
    """Returns everything derived, hashed, signed and sealed from this module's constants."""
    cards = book()
    secret = KeyPair(PRIVATE[5]).agree(KeyPair(PRIVATE[9]).public)
    key = sealing_key(AGREED, b"s" * 32, 5, 9)
    kinds = ("contribution", "ballot", "disclosure")
    return {
        "context": sent["call"].context,
        "card text": cards.cards[5].text,
        "book": cards.digest,
        "run secret": run_secret(cards.digest, secret, 5, 9),
        "exchange secrets": secrets_of_exchanges(cards),
        "pair seed": pair_seed(AGREED, b"s" * 32, 9, 5),
        "mask key": mask_key(AGREED, b"s" * 32),
        "sealing key": key,
        "sealed": seal(key, b"k" * 32, shares_context(AGREED, 5, 9)),
        "vote": vote_text(AGREED, (3, 9)),
        **{f"{name} text": sent[name].text for name in kinds},
    }


def dealing():
    """Returns three secrets shared among four members, with threshold three, and two of them
    opened.
    """
    dealt = deal_secrets(AGREED, DEALER, SECRETS, KEYS, THRESHOLD)
    shape, columns = (THRESHOLD, len(KEYS)), [member_numbers(key, len(SECRETS)) for key in KEYS]
    shares = [
        [
            member_share(column[number], dealt.corrections, number, place, shape)
            for place, column in enumerate(columns, start=1)
        ]
        for number in range(len(SECRETS))
    ]
    opened = tuple(opened_numbers(CLIENTS, CLIENTS[:2], DEALER).values())
    proofs = [
        proof(column_tree(AGREED, DEALER, place, column), opened)
        for place, column in enumerate(columns, start=1)
    ]
    return {
        "roots": dealt.roots,
        "corrections": dealt.corrections,
        "commitments": dealt.secrets,
        "numbers": columns,
        "shares": shares,
        "opened": opened,
        "proofs": proofs,
    }


def masked_row():
    """Returns the packed row (-1, 0, 1, 2) of client 5 at 20 bits, under masks of the secrets."""
    masks = Expander(4, 20)
    total = masks.zeros()
    total[:] = [2**32 - 1, 0, 1, 2]
    for other, seed in zip((DEALER, 3, 9), SECRETS, strict=True):
        masks.apply(total, mask_key(AGREED, seed), subtract=other > DEALER)
    return bytes(masks.pack(total))


def committees():
    """Returns members, T, fewest survivors and colluders by number of clients, and one
    committee.
    """
    sizes = {}
    for clients in (7, 20, 40, 200):
        of = POLICY.committee(clients)
        sizes[clients] = [of.members, of.threshold, of.survivors, of.corrupt]
    seats = drawn(7, 1, tuple(range(0, 40, 2)), 6)
    return {"sizes": sizes, "seats": seats}


def of_a_committee():
    """Returns all vectors."""
    sent = messages()
    return {
        "messages": {name: message_bytes(message) for name, message in sent.items()},
        "derived": derivations(sent),
        "dealing": dealing(),
        "row": masked_row(),
        "committees": committees(),
    }
