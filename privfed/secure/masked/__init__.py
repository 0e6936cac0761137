"""Sums under pairwise masks: client, server, and messages between them.

Source: Bonawitz et al. 2017, figure 4, with the sparse graph of Bell et al. 2020 if there are many
clients and the server follows the protocol.

*Against a malicious server* that may deviate in every message, differently for each client. At most
k of the n clients of a roster collude with it, and t shares reconstruct a secret. Each client has
all others as neighbours, and 2 t > n + k; with many clients, neighbours follow a random graph
(below).

**Theorem.** On the complete graph, for each roster that honest clients agreed to, at most one sum
is opened. It contains the rows of all honest survivors who agreed to the roster, at least
max(least, t) - k of them, with `least` from a client's own `limits`. If their noise is in layers of
total variance v, they keep at least v (1 - k / (n - T)), where T clients may drop out.

*Proof.* All derived keys, votes and sealed shares are bound to the roster's hash A. A covers a
nonce of each client, which the client drew for this session: it agrees to one roster, and to none
of another session. (Signatures on shares, masked rows and unmasking answers are bound to the
invitation's context, which a replay repeats. Only the server checks them, against other parties
that may carry messages; the proof does not rely on them.)

1. *Votes.* An honest client signs (A, S), with survivors S, once. A client that unmasks under A
   saw t votes for its S, at least t - k of them from honest clients. Two sets would need
   2 (t - k) of the n - k honest clients: 2 t <= n + k, a contradiction. So S is unique. Its
   honest voters are V, |V| >= t - k.
2. *Secrets.* An honest client draws its secrets afresh for each session, and its owner's noise
   keys are fresh, too. They are shared under its own A only, and honest clients hold no shares
   under another roster. Honest clients reveal shares of the seeds of clients in S, and of the
   mask keys of the others; k more shares are known, and k < t. So no client's seed and mask key
   are both revealed. Of the honest clients who agreed to A, the mask keys of those in S (the set
   H) stay secret, and the seeds of the others: a self-mask hides these others' rows permanently,
   as it hides all rows if no client saw t votes.
3. *Masks.* A voter masked with every client that S names, under A. So V is a subset of H, and the
   clients in V mask with each other and with all of H. A client in H that sent a row had opened
   shares of t clients of the roster, its own included, and masked with them: as
   |V| + t >= 2 t - k > n, one of them is in V. So unknown masks connect all rows of H. If such a
   mask is on a single row only (a client in H sent no row, or left a voter out), no sum that
   contains a row of H opens. A mask with a member of S who agreed to another roster is on a
   single row, too: the other side has another key. It is known only if that client's mask key
   was revealed under the other roster.
4. *Counts.* A voter opened, under A, the shares of at least max(least, t) clients in S, its own
   included. All but at most k of these clients are honest, dealt them under A, and are in H.
5. *Layers.* A voter lets each client in S keep as many layers as `Layers.keeping` gives for S and
   j dropouts: the server names j, and a client accepts none below its own count. S is unique,
   and with more dropouts no client keeps fewer layers: a layer removed at a larger j is also
   removed at a smaller one. To remove a layer of a client in H takes t shares of its seed, or of
   an earlier layer's, at least one from a voter; let j be the smallest that a voter used. That
   voter counts at least n - j clients of S, which are in H or collude: n - j <= h + k, h = |H|.
   With d_i the first boundary at or above j, clients in H keep i layers each, of variance
   s_i = v / (n - d_i) including the base; of this at most (d_i - j) s_i is removed. So
   (h - (d_i - j)) s_i = v (1 - (n - j - h) / (n - d_i)) remains, and d_i <= T. If colluders'
   noise is not counted (pinned sites, where n counts all sites, whatever the roster), s_i is
   v / (n - k - d_i), and with h >= n - k - j, v remains.

**Theorem.** On a random graph (`privfed.secure.masked.random_graph`), with colluders chosen before
it is drawn, for each roster that honest clients agreed to, at most one sum is opened. It contains
rows of honest survivors who agreed to the roster, at least max(least, n - lost) - k of them, if
`lost` clients may drop out. This fails with probability 2^-40 over 2^80 rosters that the server
tries. Noise in layers is refused: a client can count dropouts only with shares of all clients.

*Proof.* Here an honest client requires T votes of any survivors, 2 T > n + k, while t of its
neighbours' shares reconstruct its secrets. It also signs, under A, which clients it masked with
(`Attestation`).

1. *Votes.* As above, with T for t: S is unique, and V, its honest voters, are at least T - k.
2. *Secrets.* As above, as fewer than t of each honest client's neighbours collude. So of honest
   clients who agreed to A, the mask keys of those in S (H) stay secret, and the others' seeds.
3. *Masks.* Let B be the rows of clients in H in an opened sum: each row's self-mask is known, and
   no unknown mask is on only one of them. To reveal the self-mask of u in B took shares of t
   neighbours, colluders or members of V. A voter masked with all its neighbours in S, and had
   each one's attestation, under A, that it masked with the voter. So the rows of neighbours u,
   and v in V, share an unknown mask, and v is in B. Hence t neighbours of u are in both B and V
   or collude, and some are in V; and a client in both B and V has no neighbour in V outside B:
   the intersection of B and V is *closed*. Except with the probability above, a closed set is
   more than half of V: so B is unique. All of V but z (`isolated`) are in it.
4. *Counts.* T >= max(least, n - lost) + z, so max(least, n - lost) - k of V are in the sum.

Bell et al. (2020, their section on a malicious server) let clients draw their neighbours, trust the
server during key distribution, and guarantee sums of parts of the cohort, each of at least alpha n
honest clients (5,000 of 10,000 in their example). Here one sum is opened, and the server may
deviate from the first message on. This requires that all clients' long-term keys are publicly
known, and that each client checks votes of the whole roster (72 T bytes).

Clients that are only *named* do not count: a server can name as survivors clients that never agreed
to this roster, whose mask keys it obtained under another one, and can put random bytes into
inboxes. Clients still mask with every named client. So one client that garbles its shares cannot
stop the sum, unless it leaves fewer than t good shares or reduces a count below `least`.

The server knows a hash of each share, signed by its dealer. It reveals nothing about a share to a
party that knows fewer than t of them (the hash is modelled as a random function). A client that
receives a share with another hash complains, and proceeds as if it had received none. So the proofs
above do not rely on the hashes; they identify Byzantine clients (`unmasking`, `evidence`).
"""
