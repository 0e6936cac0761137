"""NVIDIA FLARE's programs of three hospitals and a server on this machine, with mutual TLS."""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from waiting import LONG, until

from experiments.federation.hospitals import NAMES
from experiments.federation.processes import Programs, free_ports, listens
from privfed.deploy.carriers.nvflare.new_job import COORDINATOR, SITE
from privfed.deploy.carriers.nvflare.site_relay import LINK

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/deploy.md"
GUIDE_SETTINGS = re.compile(r"```json\n(.*?)```", re.DOTALL)
"""The guide's keys of a site's `resources.json`, and its `authorization.json`."""
ADMIN = "admin@privfed.example"
_PROJECT = """\
api_version: 3
name: privfed
participants:
- {{name: server, type: server, org: office, default_host: localhost, fed_learn_port: {port}}}
- {{name: {admin}, type: admin, org: office, role: project_admin}}
{sites}
builders:
- path: nvflare.lighter.impl.workspace.WorkspaceBuilder
- {{path: nvflare.lighter.impl.static_file.StaticFileBuilder, args: {{config_folder: config}}}}
- path: nvflare.lighter.impl.cert.CertBuilder
- path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def environment(folder):
    """Returns the environment of all programs; the command's own files are in `folder`."""
    return {
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": "1",
    }


@dataclass
class Flare:
    """A server and the sites, under `folder`; a site's folder `local` links its agent's socket."""

    folder: Path
    programs: Programs

    @property
    def job(self):
        """The folder of the run's job."""
        return self.folder / "job"

    def provision(self, sockets):
        """Makes the folders of all participants, with the settings that the guide shows.

        `sockets` maps the name of a participant to the socket of its agent.
        """
        (self.port,) = free_ports(1)
        sites = "\n".join(f"- {{name: {name}, type: client, org: {name}}}" for name in sockets)
        project = self.folder / "project.yml"
        project.write_text(_PROJECT.format(port=self.port, admin=ADMIN, sites=sites))
        self._flare("provision", "-p", project, "-w", self.folder / "flare", "--force")
        (made,) = (self.folder / "flare").glob("*/prod_00")
        self.kits = made
        self._restrict("server", COORDINATOR)
        for name, socket in sockets.items():
            self._restrict(name, SITE)
            (made / name / "local" / LINK).symlink_to(socket)

    def _restrict(self, name, allowed):
        """Sets the keys of the guide's two files for the participant `name`."""
        local = self.kits / name / "local"
        keys, permissions = (
            json.loads(block) for block in GUIDE_SETTINGS.findall(GUIDE.read_text())
        )
        resources = json.loads((local / "resources.json.default").read_text())
        others = [each for each in resources["components"] if each["id"] != "site_log_streamer"]
        resources |= {**keys, "class_allow_list": [allowed], "components": others}
        text = json.dumps(resources).replace("/tmp/nvflare", str(self.folder / "store"))
        (local / "resources.json").write_text(text)
        (local / "authorization.json").write_text(json.dumps(permissions))

    def start(self):
        """Starts the server, then all sites."""
        self.start_server()
        for name in NAMES:
            self._start(name, "client.client_train", "fed_client.json", name, f"uid={name}")

    def start_server(self):
        """Starts the server, and returns when it listens."""
        self._start("server", "server.server_train", "fed_server.json", "office")
        until(lambda: listens(self.port), "the server of NVIDIA FLARE")

    def log(self, name):
        """Returns the output of a participant's program, job processes included."""
        return self.programs.log(f"flare-{name}")

    def _start(self, name, module, config, org, *more):
        command = [sys.executable, "-m", f"nvflare.private.fed.app.{module}"]
        command += ["-m", str(self.kits / name), "-s", config, "--set", "secure_train=true"]
        (self.kits / name / "transfer").mkdir(exist_ok=True)
        self.programs.start(
            f"flare-{name}", [*command, *more, f"org={org}", "config_folder=config"]
        )

    def submit(self, job):
        """Submits a job, and returns its number."""
        told = self._admin("job", "submit", "-j", job)
        return re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", told)[0]

    def abort(self, number):
        """Aborts the job with this number."""
        self._admin("job", "abort", number, "--force")

    def kill_job_process(self, site):
        """Kills the process of the running job at `site`, as a power cut does."""
        assert self.programs.kill_started(f"-c\0{site}\0")

    def works(self):
        """Whether a job's process runs at the server."""
        return self.programs.runs("server.runner_process")

    def _admin(self, *words):
        return self._flare(*words, "--startup-kit", self.kits / ADMIN)

    def _flare(self, *words):
        return self.programs.call([sys.executable, "-m", "nvflare.cli", *map(str, words)], LONG)
