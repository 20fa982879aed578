"""deploy/ and Dockerfile agree with proxyd and with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxyd import __version__
from proxyd.config import Config, Parsed, parse_file, read_arguments, resolve
from proxyd.kube.kubeconfig import read_settings
from tests.deployment import CLEANUP, DAEMON_SET, METRICS_SERVICE, ROOT, one, pod, proxyd_container

IMAGE = f"localhost/proxyd:{__version__}"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def data() -> dict[str, str]:
    texts: dict[str, str] = one("ConfigMap")["data"]
    return texts


def parsed() -> Parsed:
    return parse_file(data()["config.yaml"])


def configuration() -> Config:
    return resolve(parsed(), read_arguments(proxyd_container()["args"]))


def test_the_configuration_is_accepted_without_a_warning() -> None:
    config = configuration()
    assert (config.warnings, config.unused) == ((), ())
    assert (config.mode, config.detect_local_mode) == ("nftables", "NodeCIDR")


def test_the_flags_name_the_file_and_the_node() -> None:
    [place] = [each["mountPath"] for each in proxyd_container()["volumeMounts"] if each["name"] == "config"]
    assert proxyd_container()["args"] == [f"--config={place}/config.yaml", "--hostname-override=$(NODE_NAME)"]
    assert configuration().kubeconfig == f"{place}/kubeconfig"
    assert f"--init-only --config {place}/config.yaml" in pod()["initContainers"][0]["command"][-1]


def test_the_kubeconfig_is_accepted_once_the_server_is_named(tmp_path: Path) -> None:
    text = data()["kubeconfig"]
    assert text.count("https://API-SERVER:6443") == 1
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("secret")
    # The cluster's authority is looked at elsewhere.
    text = re.sub(r"\n *certificate-authority: .*", "", text).replace("API-SERVER:6443", "192.0.2.1:6443")
    file = tmp_path / "kubeconfig"
    file.write_text(text.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(account)))
    settings = read_settings(str(file), "", "")
    assert settings.host == "https://192.0.2.1:6443"
    assert settings.files == (str(file), str(account / "token"))


def test_probes_and_ports_are_those_of_the_configuration() -> None:
    container, config = proxyd_container(), configuration()
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert config.healthz_address is not None
    assert config.metrics_address is not None
    assert ports == {"healthz": config.healthz_address[1], "metrics": config.metrics_address[1]}
    asked = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert asked == {
        "livenessProbe": {"path": "/livez", "port": "healthz"},
        "readinessProbe": {"path": "/readyz", "port": "healthz"},
    }


def test_all_run_the_image_of_this_version() -> None:
    pods = [pod(), pod(CLEANUP)]
    assert {each["image"] for spec in pods for each in (*spec["initContainers"], *spec["containers"])} == {IMAGE}


def test_what_stays_may_do_no_more_than_it_needs() -> None:
    security = proxyd_container()["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert "privileged" not in security


def test_it_runs_on_every_linux_node_whatever_its_taints() -> None:
    assert pod()["tolerations"] == [{"operator": "Exists"}]
    assert pod()["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert (pod()["hostNetwork"], pod()["priorityClassName"]) == (True, "system-node-critical")


def test_the_service_for_metrics_finds_the_pods() -> None:
    spec = one("Service", METRICS_SERVICE)["spec"]
    assert spec["selector"].items() <= one("DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    assert [each["targetPort"] for each in spec["ports"]] == ["metrics"]


def test_the_image_answers_to_kube_proxys_name_too() -> None:
    for name in ("proxyd", "kube-proxy"):
        assert f"ln -s /opt/proxyd/bin/proxyd /usr/local/bin/{name}\n" in DOCKERFILE.replace(" \\\n", "\n")
    assert 'ENTRYPOINT ["/usr/local/bin/proxyd"]' in DOCKERFILE
    assert "HEALTHCHECK" not in re.sub(r"#.*", "", DOCKERFILE)


def test_what_the_image_is_built_from_is_not_ignored() -> None:
    copied = {
        word.strip("/") for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M) for word in line.split()
    }
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_in
    assert [each for each in copied if not (ROOT / each).exists()] == []


@pytest.mark.parametrize(("pins", "of"), [("run", "project"), ("build", "build-system")])
def test_the_image_pins_what_the_project_asks_for(pins: str, of: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project[of]["dependencies" if of == "project" else "requires"]
    pinned = dict(re.findall(r"^(\S+)==(\S+) ", (ROOT / "requirements" / f"{pins}.txt").read_text(), re.M))
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert pinned[name] in requirement.specifier, name


def test_the_file_says_where_the_address_goes() -> None:
    lines = DAEMON_SET.read_text().splitlines()
    [at] = [i for i, line in enumerate(lines) if "API-SERVER" in line]
    assert "CHANGE THIS" in lines[at - 1]
