"""Sums under pairwise masks: client, server, and the messages between them.

Bonawitz et al. 2017, figure 4, with the sparse graph of Bell et al. 2020 where there are many
clients.

*Against a server that lies in every message*, to each client otherwise. Of a roster of n clients at
most k work with it; the graph is complete, t of its shares give a secret back, and 2 t > n + k.

**Theorem.** For each roster that honest clients agreed to, either nothing is opened, or one sum: of
the rows of all honest survivors who agreed to it, at least max(least, t) - k of them, with `least`
by a client's own `limits`. Of its noise in layers, of total variance v, h such clients keep at
least v h / (h + k).

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
5. *Layers.* To take off the layers of one of H from number i + 1 on takes t shares of that layer's
   seed, at least one from a voter who counts n - j of S or more (the server names j, and a client
   none below its own count of who is gone), with j <= d_i, up to which layer i makes up for who is
   gone: n - j <= h + k. v / (n - d_i) is kept, v / (n - j) at least. Where colluders' noise is not
   counted (pinned sites, n all of them, whoever is on the roster), v / (n - k - j) is at least, so
   that H keeps v.

What is *named* counts for nothing here: a server can name as survivors clients that never agreed to
this roster, whose mask keys it was given under another, and put random bytes into inboxes. They
are masked with by name all the same, so that one client that garbles its shares stops nobody,
unless it leaves fewer than t good shares, or takes a count below `least`.

Of each share the server knows a hash, which its dealer signed: it tells nothing of a share to who
knows fewer than t of them (the hash is modelled as a random function), and a client that is handed
another than its share has complains, and counts as if it had been sent nothing. So nothing above
rests on it; it is how clients who lie are named (`unmasking`, `evidence`).
"""
