"""A run as one site sets it up, from its declaration and from the site's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from privfed.config.config import Config
from privfed.config.reading import read_resolved
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.declaration import ExampleForm
from privfed.deploy.policies.codes import Code, Declined, Refusal
from privfed.deploy.site.people import nobody
from privfed.errors import Refused
from privfed.parts import Part
from privfed.run.prepare import prepare
from privfed.run.setup import Setup


def site_config(text: str, table: SiteTable) -> Config:
    """The run file `text` as a site goes by it: where its data and files lie is the site's matter.

    Raises `Refused` for what is no run file, and `Declined` where the run is not about a table.
    """
    config = read_resolved(text, "the run")
    source = config.parts["source"]
    if not {*table.settled} <= {*type(source).model_fields}:
        raise Declined(Refusal(Code.SOURCE, "the run's data are no table; a site has a table"))
    if config.data.sites_per_client < table.sites_per_client:
        raise Declined(
            Refusal(
                Code.CLIENT,
                f"data.sites_per_client is {config.data.sites_per_client}; people of this site may "
                f"have rows at {table.sites_per_client} sites",
            )
        )
    there: Any = _with_keys(source, table.settled)
    return replace(
        config,
        source=there,
        data=config.data.model_copy(update={"site_partition": "elsewhere"}),
        run=config.run.model_copy(
            update={"heads": "", "watch": [], "device": table.device, "threads": table.threads}
        ),
        start=config.start.model_copy(update={"init": "", "fresh": []}),
        privacy=config.privacy.model_copy(update={"prior": [], "disjoint": []}),
    )


def _with_keys(source: Part, keys: Mapping[str, Any]) -> Part:
    """The source with other `keys`, which go together. Raises `Refused` where they do not."""
    try:
        return type(source).model_validate({**source.model_dump(), **keys})
    except ValidationError as error:
        raise Refused("the run's columns do not go with this site's client column") from error


def bare_setup(config: Config, form: ExampleForm, constants: Mapping[str, Tensor] | None) -> Setup:
    """Plan and model of the run, over somebody made up: what follows from public facts alone.

    They are the same at every site. `constants` are what the model does not train, as they were
    declared; None: as they are built here. Raises `Refused`.
    """
    return prepare(config, constants=constants, load=lambda config, _: nobody(config, form, 1))
