"""Flags of `privfed calibrate` about sites: numbers that are whole sites, and what has none."""

from __future__ import annotations

from collections.abc import Iterable

from privfed.errors import Refused
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.privacy.noise.site_noise import whole_sites

_OF_CLIENTS = ("sites_per_client",)
_OF_CLIENT_PARTIES = {
    "against": "tells the server from readers, and with --sites one guarantee holds against both",
    "byzantine": "is about clients, who add no noise where sites do; hostile sites are among "
    "--colluders",
    "rate": "has no clients: with --sites give --population and --cohort",
}
"""What has no meaning, or no proof, where sites are the parties, and why."""


def given_flags(question: CalibrationQuestion, names: Iterable[str]) -> list[str]:
    """Those of the fields `names` that are given, as they are typed."""
    flags = {"rate": "--sampling-rate"}
    return [
        flags.get(name, f"--{name.replace('_', '-')}")
        for name in names
        if getattr(question, name) is not None
    ]


def part_of_sites(question: CalibrationQuestion) -> float | None:
    """The `secure.colluders` that makes whole sites of as many as may collude; None by default."""
    if question.colluders is None or not question.sites:
        return question.colluders
    return question.colluders / question.sites


def refuse_contradictory_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags of sites without any, and for those that sites leave no use."""
    if question.sites is None:
        _refuse_flags_without_sites(question)
        return
    if question.sites < 1:
        raise Refused(f"--sites is {question.sites}; expected one or more")
    for name, why in _OF_CLIENT_PARTIES.items():
        if flags := given_flags(question, [name]):
            raise Refused(f"{flags[0]} {why}; leave it out")
    _refuse_colluders_that_are_no_sites(question)


def _refuse_flags_without_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` where clients are to be at several of no sites, or to collude as sites do"""
    if flags := given_flags(question, _OF_CLIENTS):
        raise Refused(f"{flags[0]} is about sites; say with --sites how many there are")
    if question.colluders is not None and not 0 <= question.colluders < 1:
        raise Refused(
            f"--colluders is {question.colluders:g}; expected a part of a cohort below 1, or with "
            "--sites a whole number of them"
        )


def _refuse_colluders_that_are_no_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` for a part of sites, none of them, or all of them."""
    sites, colluders = question.sites, question.colluders
    if colluders is None or not sites:
        return
    if colluders != int(colluders):
        raise Refused(
            f"--colluders is {colluders:g}; with --sites it is a whole number of them "
            f"(secure.colluders = {colluders:g} would be {whole_sites(colluders, sites)})"
        )
    if not 1 <= colluders < sites:
        raise Refused(
            f"--colluders is {colluders:g} of {sites} sites; expected 1 or more, as every site is "
            f"curious, and at most {sites - 1}, so that one is left whose noise counts"
        )
