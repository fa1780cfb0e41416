"""The configuration and the code of the how-tos work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import parley
from kit.builders.snippets import Snippet, snippets
from kit.servers.http_server import HttpServer
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.ports import free_port
from parley.client import ServerProcess, events
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import Home

LARGE: Final = 3_000_000
"""The size of a message that nginx refuses without a larger limit, in characters."""


def of_page(name: str, language: str) -> list[Snippet]:
    return [one for one in snippets() if one.page == f"docs/howto/{name}.md" and one.language == language]


# --- configurations of clients ---------------------------------------------------------


def servers() -> list[Any]:
    """Return the entries for servers in the configurations of the how-tos."""
    found: list[Any] = []
    for page in ("claude", "vs-code"):
        for snippet in of_page(page, "json"):
            table = json.loads(snippet.code)
            for server in (table.get("mcpServers") or table["servers"]).values():
                found.append(pytest.param(server, id=f"{page}-{len(found)}"))
    return found


@pytest.mark.parametrize("server", servers())
async def test_a_configuration_of_a_client_starts_a_server(
    parley_model: ScriptedModel, server: dict[str, Any]
) -> None:
    home = Home(parley_model)
    home.open()
    try:
        if "url" in server:
            assert server == {
                "type": "http",
                "url": "https://parley.example/mcp",
                "headers": {"Authorization": "Bearer ${input:parley-token}"},
            }
            return
        words = [server["command"], *server["args"]]
        if words[:2] == ["wsl.exe", "--exec"]:
            words = words[2:]
        assert words[0].rpartition("/")[2] == "parley"
        # a resident server would outlive the test
        arguments = [word for word in words[1:] if word != "--resident"]
        env = {**home.environ, **server.get("env", {})}
        transport = ServerProcess([sys.executable, "-P", "-m", "parley", *arguments], env=env, cwd=home.work)
        async with parley.connect(transport, client_name="claude-ai") as client:
            names = {tool.name for tool in await client.list_tools()}
    finally:
        home.close()

    assert {"codex", "conversationCreate", "conversationSendMessage"} <= names


# --- proxies ---------------------------------------------------------------------------


def proxies() -> list[Any]:
    named = [(one, "/parley" if "/parley/" in one.code else "") for one in of_page("proxy", "caddy")]
    named += [(one, "/parley" if "/parley/" in one.code else "") for one in of_page("proxy", "nginx")]
    return [pytest.param(one.language, one.code, path, id=f"{one.language}{path}") for one, path in named]


@pytest.mark.parametrize(("program", "text", "path"), proxies())
async def test_a_proxy_passes_streams_at_once_and_large_messages(
    parley_model: ScriptedModel, tmp_path: Path, program: str, text: str, path: str
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"the configuration was not tried: {program} is not installed")
    parley_model.says("first ", HOLD, "second")
    port, inner = free_port(), free_port()
    url = f"http://localhost:{port}{path}"
    config = f'[serve]\npublic_url = "{url}"\nport = {inner}\n'

    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        settings = text.replace("127.0.0.1:8722", f"127.0.0.1:{inner}")
        async with (
            running(program, settings, port, tmp_path),
            parley.connect(url=f"{url}/mcp", token=server.token) as client,
        ):
            conversation = await client.create(cwd=str(server.work))
            async with conversation.stream() as stream:
                turn = await conversation.send("x" * LARGE)
                async for event in stream:
                    if isinstance(event, events.AgentMessageDelta):
                        break
                await parley_model.wait_until_held()
                parley_model.release()
                assert (await turn.result()).text == "first second"

    assert len(str(parley_model.requests[0].body)) > LARGE


@asynccontextmanager
async def running(program: str, settings: str, port: int, directory: Path) -> AsyncIterator[None]:
    """Run a proxy without TLS on a port of the loopback."""
    if program == "caddy":
        settings = re.sub(r"^\S+ \{", f"{{\n    admin off\n}}\nhttp://localhost:{port} {{", settings)
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", "proxy.conf"]
    else:
        settings = re.sub(r"^ +ssl_.*\n", "", settings, flags=re.MULTILINE)
        settings = re.sub("listen 443 ssl", f"listen 127.0.0.1:{port}", settings)
        settings = re.sub("server_name [^;]*", "server_name localhost", settings)
        places = "".join(
            f"{name}_temp_path {directory}/{name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        settings = (
            f"daemon off;\nmaster_process off;\npid {directory}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{places}{settings}}}\n"
        )
        command = ["nginx", "-p", str(directory), "-c", "proxy.conf"]
    (directory / "proxy.conf").write_text(settings)
    env = {"PATH": os.environ["PATH"], "HOME": str(directory)}
    process = await asyncio.create_subprocess_exec(*command, cwd=directory, env=env)
    try:
        await until_listening(port, process)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await process.wait()


async def until_listening(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert process.returncode is None
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


# --- GitHub Actions --------------------------------------------------------------------


def review_job(directory: Path) -> tuple[str, dict[str, str]]:
    """Create a repository with the files of the page, and return the script of the job and its variables."""
    (workflow,) = of_page("github-actions", "yaml")
    (schema,) = of_page("github-actions", "json")
    steps = yaml.safe_load(workflow.code)["jobs"]["review"]["steps"]
    (script,) = (step["run"] for step in steps if step.get("name") == "Review")
    origin, work = directory / "origin", directory / "work"
    for command in (
        f"git init -q -b main {origin}",
        f"git -C {origin} commit -q --allow-empty -m One",
        f"git clone -q {origin} {work}",
        f"git -C {work} checkout -q -b change",
    ):
        subprocess.run(command.split(), env=git_environment(directory), check=True, timeout=TIMEOUT_SECONDS)
    (work / ".github").mkdir()
    (work / schema.title).write_text(schema.code)
    (work / "prices.py").write_text("PRICE = 3\n")
    for command in (f"git -C {work} add .", f"git -C {work} commit -q -m Two"):
        subprocess.run(command.split(), env=git_environment(directory), check=True, timeout=TIMEOUT_SECONDS)
    return script, {
        **git_environment(directory),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_BASE_REF": "main",
        "GITHUB_STEP_SUMMARY": str(directory / "summary.md"),
        "ANTHROPIC_API_KEY": "sk-ant-1",
    }


def git_environment(home: Path) -> dict[str, str]:
    names = {
        f"GIT_{role}_{field}": "a@example.com" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
    }
    return {"PATH": os.environ["PATH"], "HOME": str(home), **names}


@pytest.mark.waits
@pytest.mark.parametrize(
    ("answer", "code", "summary", "log"),
    [
        pytest.param('{"risk": "low", "findings": ["a typo"]}', 0, "**Risk: low**\n\n- a typo\n", "", id="low"),
        pytest.param(
            '{"risk": "high", "findings": []}', 1, "**Risk: high**\n\n", "", id="high", marks=pytest.mark.long
        ),
        pytest.param(
            "It looks good.",
            1,
            "",
            "::error::The review failed (exit code 1).",
            id="no-json",
            marks=pytest.mark.long,
        ),
        pytest.param(
            None,
            0,
            "",
            "::warning::The review was not completed (exit code 124).",
            id="too-slow",
            marks=pytest.mark.long,
        ),
    ],
)
async def test_the_workflow_reviews_a_change(
    parley_model: ScriptedModel, tmp_path: Path, answer: str | None, code: int, summary: str, log: str
) -> None:
    if shutil.which("jq") is None:
        pytest.skip("the workflow was not tried: jq is not installed")
    script, env = review_job(tmp_path)
    provider = f'base_url = "{parley_model.base_url}"\nenv_key = "ANTHROPIC_API_KEY"\n'
    (tmp_path / ".parley").mkdir()
    (tmp_path / ".parley/config.toml").write_text(f"[model_providers.anthropic]\n{provider}")
    parley_model.says(answer or HOLD)
    if answer is None:
        script = script.replace("--timeout 10m", "--timeout 1")

    process = await asyncio.create_subprocess_exec(
        *("bash", "-e", "-c", script), cwd=tmp_path / "work", env=env, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        said, _ = await process.communicate()

    shown = tmp_path / "summary.md"
    assert (process.returncode, said.decode().strip()) == (code, log)
    assert (shown.read_text() if shown.exists() else "") == summary
    for request in parley_model.requests:  # a busy computer may send none within the time limit
        assert request.headers["authorization"] == "Bearer sk-ant-1"
        assert "+PRICE = 3" in str(request.body)
    assert parley_model.requests or answer is None


# --- code ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.waits
def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path) -> None:
    for snippet in (one for one in snippets() if one.page == "docs/howto/testing.md" and one.title):
        (tmp_path / snippet.title).write_text(snippet.code)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert "3 passed" in run.stdout, run.stdout


def test_the_typescript_page_shows_the_example() -> None:
    shown, *_ = of_page("typescript", "ts")

    assert shown.code == (Path(__file__).parents[2] / "docs/examples/approve.ts").read_text()
