"""Sums of sums: each region has a masked sum, and the regions' sums are masked and added again.

The cohort is split into R regions of equal size (`channel`). The clients of a region run a session
of `privfed.secure.masked` with a *coordinator*, which takes the role of the server and opens the
region's sum modulo 2^b. The coordinators are then the parties of one further session, whose server
opens only the total modulo 2^b. Integers are not rounded again, and no noise is added at the top:
the total has the distribution of the same sum without regions.

A region without enough survivors aborts. It is a dropout of the top session, so that its clients'
rows and noise are missing together. The top session requires T of the R regions.

*Assumptions*. At most a fraction c of each region's cohort (of its expected size, if that is
larger) colludes with the region's coordinator or with the server, and at most k coordinators
collude with the server; at most b clients of the cohort are Byzantine, in any regions. k is at
least 1, since each coordinator is curious: it can subtract its region's sum from a released total.

**Theorem.** Let f be the fewest survivors of a region's sum (`MaskedSums.fewest`), K the bound on
the part of their noise that a region's colluders know (`MaskedSums.colluding`), M the number of
shares that are counted, M <= T f, and let each surviving client add 1 / M of the noise.

1. A *neighbour* learns nothing about a client's row. A *coordinator* learns its region's sum, and
   nothing else: the noise of its honest clients is at least ((1 - K) f - b) / M.
2. The *server* with k coordinators learns the sums of these coordinators' regions, and one sum over
   the other included regions. A client whose coordinator does not collude is in the latter, which
   has at least (T - k) f (1 - K) - b shares of honest noise: (1 - k / T) (1 - K) - b / (T f).
3. *Readers* of the total: at least 1 - b / (T f).

*Proof.* The sessions of regions have disjoint clients, separate rosters and fresh keys. So by the
theorem of `privfed.secure.masked` (for a server that follows the protocol, by that of Bonawitz et
al. 2017 and Bell et al. 2020), the view of all parties except a region's coordinator is independent
of the region's rows and noise, and that of the coordinator is a function of one sum of at least f
survivors, its own (if it is malicious: one for each of its rosters, which have no honest client in
common). The top session has pinned parties, the R coordinators (`SitePolicy`); at most k of them
collude, and each coordinator checks that at least T regions are included. So the server's view is a
function of colluding coordinators' sums and of the total over the others: at least T - k regions.

*Noise.* A region of m survivors has m - K m shares of its honest clients, less those of Byzantine
clients, at most b in all regions. With W survivors in the regions that count, W
>= w f for w = T - k, 1 (one region) or T, at least (W (1 - K) - b) / M >= ((1 - K) w f - b) / (T f)
of the noise is honest, since M <= T f; colluders are not subtracted for readers (K = 0). Further
survivors add independent noise. Which regions are included depends on public dropouts and the
cohort, which the server knows: under zero-out the two neighbours have the same cohort, regions and
survivors, so that they differ by one encoded row in one region's sum, which is no part of any other
region's sum.

*A secret cohort* (central noise, amplified by subsampling). One client more moves others to other
regions, and may decide whether a region aborts. Let E be the event that a region aborts. Outside E
the total is the sum over all senders, however they are split, as without regions. So the run is
within a total variation distance of P[E] of one without regions that never aborts, on both
neighbours, which is charged as for aborts (rules of proof, section 4). `partial_probability` bounds
P[E]; `abort_probability` bounds the probability that fewer than T regions remain.

*Sites* as the leaves. Site i is in region i mod R, a public constant, and all regions have equally
many sites. At most s sites of each region deviate or collude, and f survive in each of T regions.
The server, k coordinators and s sites of each region together learn no more than their own inputs,
the sums of the k regions, and Y, the sum of H = the honest survivors of the other included regions:
at least (T - k)(f - s) sites. Against a client's own coordinator H is that of its region alone, at
least f - s sites (`coordinators` = "curious"). Every site adds 1 / |H| of the noise, for the
smaller |H| that is charged (`site_noise`).

*Proof.* Let a client's rows be at one site only, in H. The sums of the k regions are over other
sites, which have other clients and independent noise; so, given the past, they are independent of
Y, whose law is that of the theorem for sites (rules of proof, section 9.1), with this H. H depends
on dropouts of sites and on aborts of regions, and by S1 on no client's data or sampling; the server
may choose both. So a region that is left out reveals nothing, and costs no delta. A client with
rows at several sites has no proof here, since some may be in regions whose coordinators collude;
it is refused.

*Layers of noise* are refused: a client counts the dropouts of its region only, so it cannot
determine the layers to remove if another region is missing. Noise that the top would add is not
needed: the leaves' noise is in each level's sum.

Source: Bonawitz et al. 2019 (Towards federated learning at scale, section 6: secure sums of groups,
which are added without masks); Bonawitz et al. 2017, for both levels.
"""
