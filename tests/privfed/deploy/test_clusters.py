"""The recipes for containers and Kubernetes: valid, confined, and with commands that exist."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from documents.lookups import wrong_arguments
from waiting import LONG

from privfed.core.failures import EXIT_CODES, INTERRUPTED

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
CONTAINERS = EXPERIMENTS / "federation/containers"
MANIFESTS = sorted((EXPERIMENTS / "clusters").glob("kubernetes_*.yaml"))
SITES = {"berlin", "paris", "rome"}


def resources(kind):
    """Every resource of a kind in the manifests."""
    texts = [path.read_text("utf-8") for path in MANIFESTS]
    return [each for text in texts for each in yaml.safe_load_all(text) if each["kind"] == kind]


@pytest.fixture
def pods():
    return [
        each["spec"]["template"]["spec"] for each in resources("Job") + resources("StatefulSet")
    ]


@pytest.fixture
def services():
    return yaml.safe_load((CONTAINERS / "compose.yaml").read_text("utf-8"))["services"]


def test_pods_have_no_privilege_and_bounded_resources(pods):
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        assert not pod["automountServiceAccountToken"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"].keys() == {"cpu", "memory"}


def test_one_pod_at_a_time_has_a_site_or_a_run():
    (site,), (job,) = resources("StatefulSet"), resources("Job")
    claims = [*site["spec"]["volumeClaimTemplates"], *resources("PersistentVolumeClaim")]
    assert [each["spec"]["accessModes"] for each in claims] == [["ReadWriteOncePod"]] * 2
    assert site["spec"]["replicas"] == 1
    assert job["spec"]["podReplacementPolicy"] == "Failed"


def test_a_job_is_tried_again_only_after_an_interruption():
    (job,) = resources("Job")
    fail, ignore = job["spec"]["podFailurePolicy"]["rules"]
    assert {*fail["onExitCodes"]["values"]} == EXIT_CODES.keys() - {0, INTERRUPTED}
    assert ignore["action"] == "Ignore"


def test_the_carrier_has_the_socket_and_no_file_of_the_site():
    (site,) = resources("StatefulSet")
    agent, carrier = site["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in carrier["volumeMounts"]} == {"carrier", "ssh"}
    assert "data" in {each["name"] for each in agent["volumeMounts"]}


def test_containers_have_no_network_no_privilege_and_the_folder_of_one_party(services):
    assert services.keys() == SITES | {"coordinator"}
    for name, service in services.items():
        assert service["network_mode"] == "none"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["mem_limit"]
        assert service["pids_limit"]
        own, carrier = (each.split(":")[0] for each in service["volumes"])
        folders = (
            ("./office", "./carriers") if name == "coordinator" else (name, f"carriers/{name}")
        )
        assert [Path(own), Path(carrier)] == [*map(Path, folders)]


def test_commands_of_containers_exist(pods, services):
    commands = [each["command"] for each in services.values()]
    commands += [services[name]["healthcheck"]["test"][2:] for name in SITES]
    agent = pods[1]["containers"][0]
    commands += [agent["args"], agent["livenessProbe"]["exec"]["command"][1:]]
    shell = pods[0]["containers"][0]["args"][0]
    lines = [line.partition("exec privfed ")[2].split() for line in shell.splitlines()]
    commands += filter(None, lines)
    assert len(commands) == 4 + 3 + 2 + 2
    assert [wrong for each in commands if (wrong := wrong_arguments(each))] == []


@pytest.mark.slow
def test_manifests_follow_the_schemas_of_kubernetes(tmp_path):
    validate = pytest.importorskip("kubernetes_validate").validate
    for path in MANIFESTS:
        for resource in yaml.safe_load_all(path.read_text("utf-8")):
            validate(resource, "1.30", strict=True)
    (site,) = resources("StatefulSet")
    site["spec"]["replica"] = site["spec"].pop("replicas")
    with pytest.raises(Exception, match="replica"):
        validate(site, "1.30", strict=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_the_containerfile_is_what_a_linter_recommends():
    command = ["hadolint", CONTAINERS / "Containerfile"]
    subprocess.run(command, check=True, timeout=LONG)
