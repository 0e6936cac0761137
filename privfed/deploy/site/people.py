"""A site's own people, as its table holds them: the columns are the run's, the table is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privfed.config.config import Config
from privfed.data.federation import Examples, Federation
from privfed.data.sites import Entries, entry_identities, places_among_owners
from privfed.data.sources.declared_example import declared_columns
from privfed.data.sources.declared_table import DeclaredTable
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.declaration import ExampleForm
from privfed.errors import Refused
from privfed.run.population import sites_of


def nobody(config: Config, form: ExampleForm, count: int = 0) -> Federation:
    """A site without people; `count` made-up ones have an example each, to build a model by.

    No check may read these as data: there is no test set, and what columns and labels mean is as
    the run declares it.
    """
    made_up = form.zeros(count)
    if isinstance(config.source, DeclaredTable):
        known = declared_columns(config.source)
        made_up = replace(made_up, meaning=known.meaning, preprocessing=known.preprocessing)
    return Federation(
        made_up,
        np.arange(count + 1, dtype=np.int64),
        made_up.take(np.empty(0, dtype=np.int64)),
        stands_for=config.data.clients,
        sites=np.zeros(count, dtype=np.int64),
    )


def site_people(
    examples: Examples, config: Config, table: SiteTable, form: ExampleForm, site: str
) -> Federation:
    """The people of a site's `examples`, which were read from its `table`, who are at `site` alone.

    All of them are at the first site that this process knows of, which is this one. Of whoever has
    more than `table.rows` rows, the first ones count. Raises `Refused` for a table
    that is not as the run declares it, or as the site does.
    """
    if examples.owners is None:
        raise Refused("data.client names no column: say whose a row is")
    if ExampleForm.of(examples) != form:
        raise Refused(
            "the table gives examples of another form than the run's: its columns are others than "
            "those that were declared, or are of another type",
            private=f"{ExampleForm.of(examples)}; expected {form}",
        )
    clients = len(examples.clients)
    first = np.flatnonzero(places_among_owners(examples.owners) < table.rows)
    bounded = examples.take(first)
    entries = Entries(examples.owners, np.zeros(clients, dtype=np.int64), np.arange(clients))
    owners = examples.owners[first]
    return replace(
        Federation.of(bounded, owners, clients, form.zeros(0)),
        identities=entry_identities(entries, examples.clients, (site,), sites_of(config)),
        stands_for=config.data.clients,
        sites=np.zeros(clients, dtype=np.int64),
    )
