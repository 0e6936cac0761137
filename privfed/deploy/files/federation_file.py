"""`federation.toml`: a federation's members, who agree on it out of band.

Messages are bound to the file's digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from accounting.documents import from_toml
from accounting.durable import create, write_atomically
from privfed.config.config import Config
from privfed.config.mistakes import listed_mistakes, mistakes
from privfed.config.reading import read_toml
from privfed.config.sections import FORMAT
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.deploy.files.keys import EXPECTED_NAME, NAME, PublicKey
from privfed.deploy.files.regions import SERVER, Region, problems, spelt
from privfed.secure.limits import FEWEST
from privfed.secure.masked.policy import least_threshold

Threat = Literal["curious", "malicious"]


class FederationFile(Part):
    """The names and public keys of a federation's members, and the threshold they agreed on."""

    name: str
    coordinator: str
    """The public key of the coordinator, which signs every invitation and identifies the ledger."""
    threshold: int = Field(0, ge=0, le=10_000)
    """t, the number of shares that open a secret. Let k of the n sites possibly collude with the
    server: 0 means the smallest t >= 2 with t > k and, for a malicious server, 2 t > n + k.
    """
    sites: dict[str, str] = {}
    """The public key of each site, by name."""
    regions: dict[str, Region] = {}
    """The regions, by name; empty if the coordinator asks all sites. Messages between a region's
    coordinator and its sites are signed by that coordinator (`privfed.deploy.region`)."""

    @field_validator("name")
    @classmethod
    def _word(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected {EXPECTED_NAME}")
        return name

    @field_validator("coordinator")
    @classmethod
    def _spelt(cls, text: str) -> str:
        return spelt(text)

    @field_validator("sites")
    @classmethod
    def _distinct(cls, sites: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        mistaken, names, normal = [], dict[str, str](), dict[str, str]()
        keys = {info.data.get("coordinator"): "the coordinator"}
        for name, text in sites.items():
            if not NAME.fullmatch(name):
                mistaken.append(f"{name!r} is no valid name; expected {EXPECTED_NAME}")
            if (other := names.setdefault(name.casefold(), name)) != name:
                mistaken.append(f"{name} and {other} differ only in the case of letters")
            try:
                normal[name] = spelt(text)
            except ValueError as error:
                mistaken.append(f"{name}: {error}")
                continue
            if (other := keys.setdefault(normal[name], name)) != name:
                mistaken.append(f"{name} has the key of {other}, but each site needs its own key")
        if mistaken:
            raise ValueError("; ".join(mistaken))
        return normal

    @field_validator("regions")
    @classmethod
    def _partition(cls, regions: dict[str, Region], info: ValidationInfo) -> dict[str, Region]:
        if "sites" in info.data and "coordinator" in info.data:
            holders = {key: name for name, key in info.data["sites"].items()}
            holders[info.data["coordinator"]] = SERVER
            if mistaken := [*problems(regions, holders)]:
                raise ValueError("; ".join(mistaken))
        return regions

    @staticmethod
    def read(path: Path) -> FederationFile:
        """Reads the federation in the file at `path`.

        Raises:
          Refused: if the file is invalid; the message lists all mistakes.
        """
        return agreed(read_toml(path, "federation"), f"{path}: ")

    def write_new(self, path: Path) -> None:
        """Writes a new file at `path` durably. Raises `Refused` if the file exists."""
        try:
            create(path, self.toml().encode())
        except FileExistsError as error:
            raise Refused(
                f"{path} exists already, and nothing was changed; name another file"
            ) from error

    def with_site(self, name: str, key: str) -> FederationFile:
        """Returns the federation with one more site.

        Raises:
          Refused: if another site has the name or the key, or if either is invalid.
        """
        if name in self.sites:
            raise Refused(
                f"the federation has a site {name} already, and nothing was changed; choose "
                "another name"
            )
        return agreed({**self.model_dump(), "sites": {**self.sites, name: key}})

    def toml(self) -> str:
        """Returns the text of a file from which `read` restores this federation."""
        return _TEXT.format(
            format=FORMAT, name=self.name, coordinator=self.coordinator, threshold=self.threshold
        ) + "".join(
            [
                *(_line(name, key) for name, key in self.sites.items()),
                *(_table(name, region) for name, region in self.regions.items()),
            ]
        )

    def stated(self) -> dict[str, Any]:
        """Returns the values of the file, without `regions` if there are none."""
        return self.model_dump(exclude=None if self.regions else {"regions"})

    def digest(self) -> str:
        """Returns the SHA-256 digest, in hexadecimal, of all values; it ignores the layout."""
        facts = {**self.stated(), "format": FORMAT}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"privfed federation\n" + text.encode()).hexdigest()

    @property
    def order(self) -> tuple[str, ...]:
        """The sites' names, sorted; a site's number is its position, from 0.

        With R regions the names alternate between the regions, by their names: site i is in region
        i mod R, as in a simulation (`privfed.secure.regional`).
        """
        if not self.regions:
            return tuple(sorted(self.sites))
        sites = (region.sites for _, region in sorted(self.regions.items()))
        return tuple(name for names in zip(*sites, strict=True) for name in names)

    def directory(self, region: str | None = None) -> Mapping[int, bytes]:
        """Returns the public key, 32 bytes, of each site (of a region) by the site's number."""
        named = self.regions[region].sites if region is not None else self.order
        numbers = {name: number for number, name in enumerate(self.order)}
        return {numbers[name]: self.key_of(name).raw for name in named}

    def region_of(self, site: int) -> str | None:
        """Returns the name of the region of a site, given by number; None without regions."""
        return sorted(self.regions)[site % len(self.regions)] if self.regions else None

    @property
    def parties(self) -> Mapping[str, PublicKey]:
        """The public keys of those that the coordinator asks, by name, in the order of numbers.

        They are the sites or, if there are regions, the regions' coordinators.
        """
        if not self.regions:
            return {name: self.key_of(name) for name in self.order}
        return {name: self.key_asking(name) for name in sorted(self.regions)}

    def key_asking(self, region: str | None) -> PublicKey:
        """Returns the key of the coordinator that asks the sites (of a region)."""
        return PublicKey.parse(self.regions[region].coordinator if region else self.coordinator)

    @property
    def coordinator_key(self) -> PublicKey:
        """The public key of the coordinator."""
        return PublicKey.parse(self.coordinator)

    def key_of(self, name: str) -> PublicKey:
        """Returns the public key of the site `name`. Raises `KeyError` if there is no such site."""
        return PublicKey.parse(self.sites[name])

    def name_of(self, key: PublicKey) -> str | None:
        """Returns the name of the site with this key; None if no site has it."""
        return next((name for name, text in self.sites.items() if text == str(key)), None)

    def other_parties(self, config: Config) -> str:
        """Returns the reason why a run does not fit the federation's sites and regions, or "".

        The parties of the server's sums have to be the sites, or the regions' coordinators.
        """
        sites, protocol = config.data.sites, config.row_hiding
        asked = protocol.top_parties(sites) if protocol else sites
        if asked == len(self.parties):
            return ""
        regions = f"{len(self.regions)} regions" if self.regions else "no regions"
        return (
            f"the server's sums have {asked} parties, but the federation {self.name} has "
            f"{len(self.sites)} sites and {regions}; set secure.protocol and secure.regions "
            "accordingly"
        )

    @property
    def sharing(self) -> int:
        """The number of sites that share secrets with each other: all, or those of a region."""
        return len(self.sites) // (len(self.regions) or 1)

    def least_shares(self, colluders: int, threat: Threat) -> int:
        """Returns t, the number of shares that open a secret.

        This is `threshold` or, if that is 0, the smallest secure t (`least_threshold`, and at least
        `FEWEST`).

        Args:
          colluders: number of sites that may collude with the server.
          threat: whether the server follows the protocol ("curious") or may deviate ("malicious").

        Raises:
          Refused: if there are too few sites, `colluders` is negative or not below their number, or
            `threshold` exceeds their number or is neither 0 nor at least the smallest secure t.
        """
        sites = self.sharing
        if sites < FEWEST or not 0 <= colluders < sites:
            each = " in each region" if self.regions else ""
            raise Refused(
                f"the federation {self.name} has {sites} sites{each}, but {colluders} sites may "
                f"collude with the server; expected at least {FEWEST} sites, and at least one that "
                "does not collude"
            )
        least = max(least_threshold(sites, colluders, threat), FEWEST)
        if self.threshold > sites:
            raise Refused(
                f"threshold is {self.threshold}, but there are {sites} sites; expected at most "
                "that number, or 0",
                key="threshold",
            )
        if self.threshold and self.threshold < least:
            raise Refused(
                f"threshold is {self.threshold}, but {colluders} of {sites} sites may collude "
                f"with a {threat} server and could open secrets; set threshold to 0 (automatic) "
                f"or at least {least}",
                key="threshold",
            )
        return self.threshold or least


def agreed(document: dict[str, Any], where: str = "") -> FederationFile:
    """Validates the content of a federation file, and returns the federation.

    Args:
      document: parsed content of the file.
      where: prefix of error messages.

    Raises:
      Refused: if the content is invalid; the message lists all mistakes.
    """
    try:
        return FederationFile.model_validate(document)
    except ValidationError as error:
        wrong = mistakes(error, "", document, FederationFile)
    shown = f"sites is {document.get('sites')!r}: "  # the mistakes name the sites
    raise Refused(listed_mistakes(wrong, where).replace(shown, "[sites] "), key=wrong[0].key)


def add_site(path: Path, name: str, key: str) -> FederationFile:
    """Adds a site to a federation file durably, and returns the new federation.

    Comments are kept if appending a line suffices; otherwise the file is rewritten.

    Args:
      path: the federation file.
      name: name of the new site.
      key: public key of the new site, as text.

    Returns:
      The new federation.

    Raises:
      Refused: if the site cannot be added; the file is unchanged.
    """
    before = FederationFile.read(path)
    after = before.with_site(name, key)
    text = path.read_text(encoding="utf-8-sig").rstrip("\n") + "\n" + _line(name, after.sites[name])
    write_atomically(path, (text if _says(text, after) else after.toml()).encode())
    return after


def _says(text: str, federation: FederationFile) -> bool:
    """Whether `text`, read as the content of a federation file, states `federation`."""
    try:
        document = from_toml(text)
        return document.pop("format", FORMAT) == FORMAT and (
            FederationFile.model_validate(document) == federation
        )
    except ValueError:
        return False


def _line(name: str, key: str) -> str:
    return f'{json.dumps(name)} = "{key}"\n' if "." in name else f'{name} = "{key}"\n'


def _table(name: str, region: Region) -> str:
    sites = f"coordinator = {json.dumps(region.coordinator)}\nsites = {json.dumps(region.sites)}\n"
    return f"[regions.{json.dumps(name)}]\n{sites}"


_TEXT = """\
# The members of the federation. All members compare the digest that `privfed federation check`
# prints, for example by telephone.
format = {format}
name = "{name}"
coordinator = "{coordinator}"  # its key signs every invitation and identifies the ledger
threshold = {threshold}  # shares that open a secret; 0: the smallest number that is secure
[sites]
"""
