"""The files in `deploy/`: they fit together, and they use endpoints, settings and paths that exist."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from parley.config.load import Loader
from parley.server.http.health import LIVE_PATH, READY_PATH

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
DOCKERFILE: Final = (DEPLOY / "Dockerfile").read_text()
INSTALL_SECONDS: Final = 600
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
KUBERNETES: Final[list[dict[str, Any]]] = list(
    yaml.safe_load_all((DEPLOY / "kubernetes" / "parley.yaml").read_text())
)
NODES: Final = ("node-1", "node-2")


def instructions(name: str) -> list[str]:
    """Return the arguments of all instructions of the Dockerfile with a name."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [line.partition(" ")[2] for line in joined.splitlines() if line.startswith(f"{name} ")]


def resource(kind: str, name: str = "parley") -> dict[str, Any]:
    (found,) = [one for one in KUBERNETES if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def accepted(home: Path, config: str, arguments: list[str]) -> Loader:
    """Return the settings in a config.toml and in the options `-c` of a command. Fail if one of them is unknown."""
    home.mkdir()
    (home / "config.toml").write_text(config)
    overrides = [value for option, value in itertools.pairwise(arguments) if option == "-c"]
    loader = Loader(environ={"PARLEY_HOME": str(home)}, server_dir=str(home), overrides=overrides)
    assert list(loader.unknown_keys()) == []
    return loader


def test_the_image_runs_as_an_ordinary_user_and_contains_what_it_copies() -> None:
    copied = [word for one in instructions("COPY") if "--from" not in one for word in one.split()[:-1]]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()

    assert instructions("USER") == ["10001:10001"]
    assert [name for name in copied if not (ROOT / name).exists() or f"!{name}" not in ignored] == []
    assert LIVE_PATH in DOCKERFILE
    assert json.loads(instructions("CMD")[-1])[:2] == ["parley", "serve"]


@pytest.mark.long
def test_the_commands_of_the_dockerfile_install_a_working_server(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for one in instructions("COPY"):
        *names, target = one.split()
        if "--from" in one:
            continue
        for name in names:
            place = source / target / ("" if target == "./" else name if target == "src" else "")
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target)
            else:
                shutil.copy(ROOT / name, place)
    build = instructions("RUN")[0].replace("/opt/parley", str(tmp_path / "parley"))
    build = build.replace("python -m venv", f"{shlex.quote(sys.executable)} -m venv")
    subprocess.run(("sh", "-ec", build), cwd=source, check=True, timeout=INSTALL_SECONDS)
    program = tmp_path / "parley" / "bin" / "parley"
    (tmp_path / "home").mkdir()
    environ = {"PATH": os.environ["PATH"], "PARLEY_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    version = subprocess.run((program, "--version"), env=environ, capture_output=True, check=True, text=True)
    driver = subprocess.run((tmp_path / "parley/bin/python", "-c", "import asyncpg"), env=environ, check=False)

    assert version.stdout.startswith("parley ")
    assert driver.returncode == 0


def test_the_compose_file_needs_only_values_that_its_script_creates(tmp_path: Path) -> None:
    directory = shutil.copytree(DEPLOY / "compose", tmp_path / "compose")
    environ = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-1"}
    subprocess.run((directory / "env.sh",), env=environ, check=True)
    env = dict(line.split("=", 1) for line in (directory / ".env").read_text().splitlines())
    again = subprocess.run((directory / "env.sh",), env=environ, check=False, capture_output=True)
    used = set(re.findall(r"\$\{(\w+)", (directory / "compose.yaml").read_text()))

    assert used == set(env)
    assert env["OPENAI_API_KEY"] == "sk-1"
    assert [name for name, value in env.items() if name != "OPENAI_API_KEY" and len(value) != 64] == []
    assert len(set(env.values())) == len(env)
    assert (directory / ".env").stat().st_mode & 0o777 == 0o600
    assert again.returncode == 1


def test_the_nodes_of_the_compose_file_have_addresses_of_their_own(tmp_path: Path) -> None:
    config = (DEPLOY / "compose" / "config.toml").read_text()
    backends = dict(
        re.findall(r"^    server (\S+) (\S+)$", (DEPLOY / "compose/haproxy.cfg").read_text(), re.MULTILINE)
    )
    for name in NODES:
        service = COMPOSE["services"][name]
        loader = accepted(tmp_path / name, config, service["command"])
        node, serve = loader.node_settings(), loader.serve_settings()

        assert (node.id, node.url) == (name, f"http://{name}:8080")
        assert backends[name] == f"{name}:8080"
        assert serve.drain_seconds < int(service["stop_grace_period"].removesuffix("s"))
        assert READY_PATH in service["healthcheck"]["test"][-1]
    (port,) = COMPOSE["services"]["proxy"]["ports"]
    assert tomllib.loads(config)["serve"]["public_url"] == f"http://localhost:{port.split(':')[1]}"
    assert f"option httpchk GET {READY_PATH}" in (DEPLOY / "compose/haproxy.cfg").read_text()


def test_the_files_and_volumes_of_the_compose_file_exist() -> None:
    mounts = [one.split(":") for service in COMPOSE["services"].values() for one in service["volumes"]]
    files = [source for source, *_ in mounts if source.startswith("./")]
    volumes = {source for source, *_ in mounts if not source.startswith("./")}

    assert [one for one in files if not (DEPLOY / "compose" / one).is_file()] == []
    assert volumes == set(COMPOSE["volumes"])
    assert all(mode == ["ro"] for source, _, *mode in mounts if source.startswith("./"))


def test_the_manifests_refer_to_each_other() -> None:
    node = resource("StatefulSet")
    pod = node["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    job = resource("CronJob", "gc")["spec"]["jobTemplate"]["spec"]["template"]
    claims = [
        one["persistentVolumeClaim"]["claimName"]
        for one in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in one
    ]

    assert all(one["metadata"]["namespace"] == "parley" for one in KUBERNETES if one["kind"] != "Namespace")
    assert node["spec"]["serviceName"] == resource("Service", "nodes")["metadata"]["name"]
    assert node["spec"]["selector"]["matchLabels"] == labels
    assert resource("Service")["spec"]["selector"] == resource("Service", "nodes")["spec"]["selector"] == labels
    assert resource("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert job["metadata"]["labels"] != labels  # the services must not send clients to the job
    assert job["spec"]["containers"][0]["image"] == container["image"]
    assert claims == [resource("PersistentVolumeClaim", "projects")["metadata"]["name"]]
    for one in (pod["spec"], job["spec"]):
        names = {volume["name"] for volume in one["volumes"]}
        assert {mount["name"] for mount in one["containers"][0]["volumeMounts"]} == names


def test_the_nodes_in_kubernetes_are_checked_and_drained(tmp_path: Path) -> None:
    pod = resource("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = [word.replace("$(POD_NAME)", "parley-0") for word in container["command"]]
    loader = accepted(tmp_path / "home", resource("ConfigMap")["data"]["config.toml"], command)
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    secrets = resource("Secret")["stringData"]
    stop = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    seconds = sum(map(int, re.findall(r"(?:sleep|timeout) (\d+)", stop)))

    assert [probes[name]["path"] for name in probes] == [LIVE_PATH, LIVE_PATH, READY_PATH]
    assert {probe["port"] for probe in probes.values()} == {container["ports"][0]["name"]}
    assert loader.serve_settings().drain_seconds + seconds < pod["terminationGracePeriodSeconds"]
    assert loader.node_settings().url == "http://parley-0.nodes.parley.svc:8080"
    assert stop.endswith("parley serve --drain")
    assert {"PARLEY_STORE_URL", "PARLEY_NODE_TOKEN"} <= set(secrets)
    assert all("<" in value for value in secrets.values())  # placeholders, no secrets


@pytest.mark.parametrize("kind", ["StatefulSet", "CronJob"])
def test_containers_in_kubernetes_have_no_privileges(kind: str) -> None:
    found = resource(kind, "gc" if kind == "CronJob" else "parley")["spec"]
    pod = (found["jobTemplate"]["spec"] if kind == "CronJob" else found)["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


SCHEMAS: Final = {
    "compose": ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose/compose.yaml"),
    "kubernetes": ("kubernetes-validate", "--strict", "kubernetes/parley.yaml"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_files_match_the_published_schemas(tmp_path: Path, name: str) -> None:
    """The packages with the schemas are large, so only this test installs them."""
    program, *options, path = SCHEMAS[name]
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv/bin"
    install = (programs / "python", "-m", "pip", "install", "-q", program)
    if subprocess.run(install, check=False, timeout=INSTALL_SECONDS).returncode != 0:
        pytest.skip(f"{program} cannot be installed")
    command = (str(programs / program), *options, str(DEPLOY / path))
    checked = subprocess.run(command, check=False, capture_output=True, text=True)

    assert checked.returncode == 0, checked.stdout + checked.stderr
