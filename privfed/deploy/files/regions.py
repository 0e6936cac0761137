"""The regions of a federation: groups of sites, each with a coordinator of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field, field_validator

from privfed.core.errors import public_text
from privfed.core.parts import Part
from privfed.deploy.files.keys import EXPECTED_NAME, NAME, PublicKey, UnknownKey
from privfed.secure.limits import FEWEST

SERVER = "the coordinator"
"""The holder of the federation's own key, in messages."""


def spelt(text: str) -> str:
    """Returns the text of a public key in its normal form.

    Raises `ValueError` for an invalid key, as pydantic expects.
    """
    try:
        return str(PublicKey.parse(text))
    except UnknownKey as error:
        raise ValueError(public_text(error)) from None


class Region(Part):
    """Some sites of a federation, and their coordinator."""

    coordinator: str
    """The public key of the region's coordinator, which signs its sites' invitations."""
    sites: list[str] = Field(min_length=FEWEST)
    """The names of the region's sites."""

    @field_validator("coordinator")
    @classmethod
    def _normal(cls, text: str) -> str:
        return spelt(text)

    @field_validator("sites")
    @classmethod
    def _sorted(cls, sites: list[str]) -> list[str]:
        return sorted(sites)


def problems(regions: Mapping[str, Region], holders: Mapping[str, str]) -> Iterator[str]:
    """Yields every reason why `regions` are no partition of the sites into equal parts.

    Args:
      regions: the regions by name.
      holders: names of the federation's coordinator (`SERVER`) and of its sites, by public key.
    """
    keys = dict(holders)
    for name, region in regions.items():
        if not NAME.fullmatch(name):
            yield f"{name!r} is no valid name; expected {EXPECTED_NAME}"
        if region.coordinator in keys:
            yield f"{name} has the key of {keys[region.coordinator]}; expected a key of its own"
        keys[region.coordinator] = f"the coordinator of {name}"
    named = [site for region in regions.values() for site in region.sites]
    sites = {name for key, name in holders.items() if name != SERVER}
    if regions and sorted(named) != sorted(sites):
        yield "they do not name each site exactly once; correct the sites of the regions"
    if len({len(region.sites) for region in regions.values()}) > 1:
        yield "they have different numbers of sites; expected equal numbers"
    if len(regions) == 1:
        yield "there is a single region; expected none, or two or more"
