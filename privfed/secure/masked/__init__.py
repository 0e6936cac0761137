"""Sums under pairwise masks: client, server, and the messages between them.

Bonawitz et al. 2017, figure 4, with the sparse graph of Bell et al. 2020 where there are many
clients and the server follows the protocol.

*Against a server that lies in every message*, to each client otherwise. Of a roster of n clients at
most k work with it, and t shares give a secret back. Each client has all others as neighbours, and
2 t > n + k; or, of many, those of a random graph (below).

**Theorem.** On the complete graph, for each roster that honest clients agreed to, either nothing is
opened, or one sum: of the rows of all honest survivors who agreed to it, at least max(least, t) - k
of them, with `least` by a client's own `limits`. Of its noise in layers, of total variance v, they
keep at least v (1 - k / (n - T)), where T may be missing.

*Proof.* All keys that are derived are bound to the roster's hash A, and so are votes, and what
shares are sealed for. A holds a nonce of each client, which the client drew for this session: it
agrees to one roster, and to none of another session. (Signatures on shares, masked rows and what
takes masks off are under the invitation's context, which a replay repeats: the server alone checks
these, against who else may carry messages, and nothing here rests on them.)

1. *Votes.* An honest client signs (A, S), with survivors S, once. Whoever takes masks off under A
   saw t votes for its S, at least t - k of honest clients. Two sets would take 2 (t - k) of the
   n - k that are honest: 2 t <= n + k. So there is one S. Its honest voters are V, |V| >= t - k.
2. *Secrets.* An honest client draws its secrets afresh for each session; so are the noise keys
   that its owner hands it. They are shared under its own A alone, and honest clients hold no shares
   of another roster's: they give shares of the seeds of those in S, and of the mask keys of the
   rest; k more shares are known, and k < t. So nobody's secrets are both told. Of honest clients
   who agreed to A, those in S (H, say) keep their mask keys, and the others their seeds: an own
   mask hides these others' rows for good, as it does all rows where nobody saw t votes.
3. *Masks.* A voter masked with everybody in S, by name, under A. So V is in H, all of V mask with
   each other, and with all of H. Who is in H and sent a row had opened, with its own, shares of t
   clients of the roster, and masked with them: as |V| + t >= 2 t - k > n, one of them is in V. So
   masks that nobody knows tie all rows of H together, and where one is on a single row (of H a
   client sent none, or left a voter out) nothing that contains a row of H opens. A mask with a
   member of S who agreed to another roster is on a single row too: its other end has another
   key. It is known only where that client's mask key was told, there.
4. *Counts.* A voter opened under A the shares of at least max(least, t) of S, with its own. Who is
   honest among them dealt them under A, and is in H: all but k.
5. *Layers.* A voter lets each of S keep as many of its layers as `Layers.keeping` has for S and
   some j gone: the server names j, and a client none below its own count. There is one S, and with
   more gone nobody keeps less: what a larger j lets go, a smaller one does. To take a layer off one
   of H takes t shares of its seed, or of an earlier one's, at least one from a voter; let j be the
   least that a voter took. It counts n - j of S or more, of H or colluders: n - j <= h + k. With
   d_i the first boundary from j on, H keeps i layers each, of variance s_i = v / (n - d_i) with the
   base, but for what comes off, (d_i - j) s_i at most: (h - (d_i - j)) s_i =
   v (1 - (n - j - h) / (n - d_i)) is left, and d_i <= T. Where colluders' noise is not counted
   (pinned sites, n all of them, whoever is on the roster), s_i is v / (n - k - d_i): of
   h >= n - k - j, that leaves v.

**Theorem.** On a random graph (`graphs.random_graph` here), whose colluders were chosen
before it was drawn, for each roster that honest clients agreed to, either nothing is opened, or one
sum: of honest survivors who agreed to it, at least max(least, n - lost) - k of them, if `lost` may
drop out. It fails with a probability of 2^-40 over 2^80 rosters that the server tries. Noise in
layers is refused: who counts the missing needs everybody's shares.

*Proof.* There an honest client asks for T votes of any survivors, 2 T > n + k, where t of its
neighbours hold its shares, and signs under A whom it masked with (`Attestation`).

1. *Votes.* As above, with T for t: there is one S, and V, its honest voters, are at least T - k.
2. *Secrets.* As above, as fewer than t of each honest client's neighbours collude. So of honest
   clients who agreed to A, those in S (H) keep their mask keys, and the others their seeds.
3. *Masks.* Let B be the rows of an opened sum: of H, each with its own mask known, and no mask that
   nobody knows on one of them alone. The own mask of u in B took shares of t neighbours, colluders
   and members of V. A voter masked with all its neighbours in S, and had the word of each, under A,
   that this masked with it. So on the rows of u and of v in V, where they are neighbours, is one
   mask, which nobody knows, and v is in B. Hence t neighbours of u are in B and V or collude, and
   some are in V; and who is in B and V has no neighbour in V outside of B: B and V is *closed*.
   Such a set is more than half of V, but for the probability above: there is one B. All of V but z
   (`isolated`) are in it.
4. *Counts.* T >= max(least, n - lost) + z, so that max(least, n - lost) - k of V are in the sum.

Bell et al. (2020, their section on a server that is not honest) let clients draw their neighbours,
trust the server while keys are handed out, and promise sums of parts of the cohort, each of alpha n
honest clients or more (5,000 of 10,000 in their example). Here one sum is opened, and the server
lies from the first message on. For that all clients' long-term keys are known to all, and each
client checks votes of the whole roster (72 T bytes).

What is *named* counts for nothing here: a server can name as survivors clients that never agreed to
this roster, whose mask keys it was given under another, and put random bytes into inboxes. They
are masked with by name all the same, so that one client that garbles its shares stops nobody,
unless it leaves fewer than t good shares, or takes a count below `least`.

Of each share the server knows a hash, which its dealer signed: it tells nothing of a share to who
knows fewer than t of them (the hash is modelled as a random function), and a client that is handed
another than its share has complains, and counts as if it had been sent nothing. So nothing above
rests on it; it is how clients who lie are named (`unmasking`, `evidence`).
"""
