"""Sums that a small committee opens: client, server, and messages between them.

Clients agree on keys once in a run, each client sends one message per round, and a committee opens
the masks, as in Flamingo (Ma et al. 2023, sections 4 and 5). The graph is complete. Unlike in
Flamingo, the committee is part of the round's cohort and large enough that all colluders may be
members. The committee holds no key: each client deals to it shares of the secrets that remove the
client's own masks.

*A round.* The server calls n clients; A is the hash of the call. Client u signs and sends

    y_u = x_u + PRG(m_u) + sum_{v < u} PRG(r_uv) - sum_{v > u} PRG(r_uv)

with m_u drawn afresh and r_uv = KDF(s_uv, A, u, v). s_uv is the hash, new in each exchange, of the
secret that u and v agreed on for the run. Client u also sends shares of m_u and of all r_uv for c
members: for each member a sealed key from which the member draws its shares, and for the server
corrections of some shares. A member votes for the survivors S once. Given T votes, it reveals its
shares of m_u of u in S, and of r_uv with u in S and v not in S: never of r_uv with both in S.

*Against a malicious server* that may deviate in every message, differently for each client. Of a
roster of n clients at most k collude with it, and c, T and the fewest survivors follow from n: T >=
k + 2, 2 T > c + k.

**Theorem.** For each roster that honest clients agreed to, at most one sum is opened. It contains
the rows of all honest survivors who agreed to the roster, at least max(least, k + 2) - k >= 2 of
them, with `least` from a client's own terms.

*Proof.* A client agrees to one call of an exchange (`Keyring` stores this before the client
answers), so each honest row is masked, and its secrets are shared, under one A. Votes, sealing
keys, r_uv and commitments are bound to A, and so to book, settings, round, exchange, model and
roster. Secrets s_uv, from books that clients checked, never leave a client, and by HKDF a key
derived for another book, A, pair or purpose reveals nothing about them. For each client that agrees
to A, the book holds the card that this client drew for it (`Keyring` accepts no other), with a
nonce. So no A of one book is an A of another, and nothing that an honest client sent, signed or
derived in another run is under A, whatever the names of runs.

1. *Votes.* An honest member signs (A, S) once, and opens under A with T votes for its S, at least
   T - k of them from honest members. Two sets would need 2 (T - k) of the c - k honest members:
   2 T <= c + k, a contradiction. So one S is opened under A. (Members of another roster may open
   another S': it contains rows of other honest clients.)
2. *Secrets.* Of a secret that no honest member opens, at most k < T shares are known, which reveal
   nothing. (An honest member's number is uniform to a party without its key: below place T it is
   the share; from T on it hides the share in the correction. Commitments are hashes of such
   numbers and of uniform seeds. Each number is drawn for one secret, and opened with no other.) A
   key that opens under A in u's name is u's: it is sealed with s_uj. For honest u who agreed to
   A, m_u is opened only if u is in S, and r_uv, by u's dealing or v's, only if exactly one of
   them is in S.
3. *Rows outside.* So an honest row that is not in S, or for which no S is opened, keeps PRG(m_u).
4. *Rows inside.* Let H be the honest clients who agreed to A and are in S. For u, v in H, r_uv
   stays unknown. If some honest v in S is not in H, it computes nothing under A, and no member
   opens r_uv: each row of H keeps a mask of its own, and nothing is opened. Otherwise the unknown
   masks are on all pairs of H: only the sum of the rows of H is revealed (Bonawitz et al. 2017,
   lemma 6.1).
5. *Counts.* Members open no S with fewer than max(least, k + 2) names, at most k of them not
   honest. Unlike in masked sums names suffice, as by 4 an honest name that sent nothing prevents
   the sum from being opened.

The proof does not depend on how the committee was chosen: all k may be members.

*Keys stolen later.* The server learns m_u of all clients whose rows it summed: these rows are
hidden by r_uv alone, as in Flamingo and in masked sums. Masked sums erase the keys of a session
when it ends. Here a client erases its private key when the run begins, and s_uv of an exchange
before it sends anything in it (`Keyring`). A party that then steals all clients' state cannot
invert the hash, and the rows of two clients that have both sent stay hidden. A member holds, until
it votes, the keys with which it unseals its shares. A party that steals a client's keys reads its
rows of all later exchanges of the run, and the shares dealt to it as a member: the client counts as
colluding with the server from then on. Masked sums, whose keys are fresh, recover with the next
session. (Assumption on cards: a client draws key pair and nonce afresh for each card, and creates
one key ring with them.)

*A client that crashes* resumes from the last state of its key ring, and sends for no exchange
twice. A client that restores an older state may send twice, and other clients must count it as
colluding with the server.

*Spoiled sums.* A share that does not match its dealer's commitment is left out, and the member that
revealed it is identified. A client whose shares do not reconstruct a seed that it committed to is
identified, and the round aborts. A client is also identified if the number of members that report
its shares as unusable exceeds the number that may be Byzantine; the round aborts if fewer than T
can open these shares. The first two are proved by the client's own signed messages (`evidence`);
the third is a count. **A client that stops a sum is identified** if at least T + k honest members
survive to the end. All of them hold good shares of an honest survivor. For any other survivor, if
at most k members complain, T hold good shares, which yield the survivor's seeds or the proof that
its shares do not yield them. With fewer members a round may abort without a culprit if fewer than T
members are left. It may also do so if up to k members cannot use a client's shares and, after
further dropouts, fewer than T can. If a sum aborts because too few clients survive, no culprit is
identified either. (If `byzantine` clients are assumed, k includes them here.) A client that masks
wrongly spoils the sum undetected, as a client with an arbitrary row does.
"""
