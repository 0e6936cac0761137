"""The files of an NVIDIA FLARE job that carries a run; the job contains paths, no secrets, no code.

The job only names classes of the privfed that is installed. Writing a job does not require NVIDIA
FLARE.
"""

from __future__ import annotations

import json

from privfed.deploy.carriers.new_job import NewJob
from privfed.deploy.files.federation_file import FederationFile

COORDINATOR = "privfed.deploy.carriers.nvflare.coordinator.RunCoordinator"
SITE = "privfed.deploy.carriers.nvflare.site_relay.SiteRelay"
"""The only classes that a job names: one for the server, one for the sites."""
_POLL = 2.0
"""Seconds between two polls of NVIDIA FLARE's clients for tasks, of which there are none."""


def job_files(job: NewJob) -> dict[str, str]:
    """Returns the contents of a job's three files by path."""
    meta = {
        "name": job.folder.name,
        "min_clients": len(FederationFile.read(job.federation).sites),
        "resource_spec": {},
        "deploy_map": {"app": ["@ALL"]},
    }
    server = {
        "format_version": 2,
        "workflows": [{"id": "privfed", "path": COORDINATOR, "args": job.config()}],
    }
    client = {
        "format_version": 2,
        "default_task_fetch_interval": _POLL,
        "executors": [{"tasks": ["privfed"], "executor": {"path": SITE, "args": {}}}],
    }
    contents = {
        "meta.json": meta,
        "app/config/config_fed_server.json": server,
        "app/config/config_fed_client.json": client,
    }
    return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}
