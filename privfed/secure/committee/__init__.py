"""Sums that a small committee opens: client, server, and the messages between them.

Keys are agreed once in a run, each client sends one message a round, and decryptors open the masks,
as in Flamingo (Ma et al. 2023, sections 4 and 5). The graph is complete. Otherwise than there, the
committee is of the round's cohort, so large that all who work with the server may sit in it, and
holds no key: each client deals it shares of what takes its own masks off.

*A round.* The server calls n clients; A is the hash of the call. Client u sends, signed,
y_u = x_u + PRG(m_u) + sum_{v < u} PRG(r_uv) - sum_{v > u} PRG(r_uv), with m_u drawn afresh and
r_uv = KDF(s_uv, A, u, v), where s_uv is the hash, new in each exchange, of what u and v agreed on
for the run; and shares of m_u and of all r_uv for c members: sealed for each of them a key that it
draws them with, and for the server what some of them have to be corrected by. A member votes for
the survivors S, once, and for T votes gives its shares of m_u of u in S, and of r_uv with u in S
and v not in S: never of r_uv with both in S.

*Against a server that lies in every message*, to each client otherwise. Of a roster of n clients at
most k work with it, and c, T and the fewest survivors follow from n: T >= k + 2, 2 T > c + k.

**Theorem.** For each roster that honest clients agreed to, either nothing is opened, or one sum: of
the rows of all honest survivors who agreed to it, at least max(least, k + 2) - k >= 2 of them, with
`least` by a client's own terms.

*Proof.* A client agrees to one call of an exchange (`Keyring`, which stores that first), so each
honest row is masked and dealt under one A. Votes, sealing keys, r_uv and commitments are bound to
A, and so to book, settings, round, exchange, model and roster; secrets s_uv, of books that clients
checked, leave nobody, and by HKDF what is derived for another book, A, pair or purpose says nothing
of these. The book holds, of each client that agrees to A, the card that this client drew for it
(`Keyring` takes no other), with a nonce: so no A of one book is one of another, and nothing that an
honest client sent, signed or derived in another run is under it, whatever runs are named.

1. *Votes.* An honest member signs (A, S) once, and opens under A with T votes for its S, at least
   T - k of honest members. Two sets would take 2 (T - k) of the c - k that are honest:
   2 T <= c + k. So one S is opened under A. (Members of another roster may open another S': it is
   of rows of other honest clients.)
2. *Secrets.* Of a secret that no honest member opens, at most k < T shares are known: nothing.
   (An honest member's number is uniform to who has not its key: below place T it is the share,
   from there on it hides the share in the correction. Commitments are hashes of such numbers and
   of uniform seeds. Each number is drawn for one secret, and opened with no other.) A key that
   opens under A in u's name is u's: it is sealed with s_uj. Of honest u who agreed to A, m_u is
   opened only if u is in S, and r_uv, by u's dealing or v's, only if one of them is in S and the
   other is not.
3. *Rows outside.* So an honest row that is not in S, or of which no S is opened, keeps PRG(m_u).
4. *Rows inside.* Let H be the honest who agreed to A and are in S. For u, v in H, r_uv stays
   unknown. If some honest v in S is not in H, it computes nothing under A, and r_uv is opened by
   nobody: each row of H keeps a mask of its own, and nothing is opened. Else the unknown masks are
   on pairs of H, all of them: of the rows of H their sum is told, and no more (Bonawitz et al.
   2017, lemma 6.1).
5. *Counts.* Members open no S with fewer than max(least, k + 2) names, of which at most k are not
   honest. Else than in masked sums names suffice, as by 4 an honest name that sent nothing closes
   the sum.

Who chose the committee is nowhere used: all k may sit in it.

*Keys that are stolen later.* The server is told m_u of all whose rows it summed: these rows are
hidden by r_uv alone, as in Flamingo and in masked sums. There keys of one session are forgotten
with it. Here a client forgets its private key when the run begins, and s_uv of an exchange before
it sends anything in it (`Keyring`): who takes all that clients have then cannot turn the hash
around, and rows that both ends of a pair have sent stay hidden. A member has, until it votes, the
keys with which it unseals what it was dealt. Who takes a client's keys reads its rows of all later
exchanges of the run, and a share of what is dealt to it as a member: it works with the server from
then on. Masked sums, whose keys are fresh, heal with the next session. (Assumed of cards: a client
draws key pair and nonce afresh for each, and begins one ring with it.)

*A client that crashes* goes on from what its ring stored last, and sends for no exchange twice. One
that restores an older state than its last may, and is to the others one who works with the server.

*Who spoils a sum.* A share that its dealer did not commit to is left out, and its member named. A
client is named whose shares give no seed that it committed to, which aborts the round, and one that
more members than may lie say to have dealt badly, which aborts it where fewer than T can open its
shares. The first two are proved by the liar's own signed messages (`evidence`), the third is a
count. **Who stops a sum is named** wherever k members more than T, honest all of them, stay to the
end: of an honest survivor all of these hold good shares; of another one, if no more than k
complain, T do, and they give its seeds or the proof that they do not. With fewer a round may abort
and name nobody: where fewer than T members are left, and where up to k could not use what a client
dealt and so many others dropped out that fewer than T could. Fewer survivors than a sum has to have
are no lie either. (Where `hostile` clients are counted on, k is with them in this.) A client that
masks wrongly spoils the sum unseen, as with any row of its own.
"""
