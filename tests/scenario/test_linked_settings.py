"""Commands neither read nor change settings and keys of the server that are in a project or are links into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.clients.shell_turns import sh
from kit.clients.wire_client import WireClient, speaking
from kit.servers.in_process_resident import InProcessResident
from kit.servers.resident_process import ResidentProcess
from kit.system.certificates import make_certificate
from kit.system.needs import MECHANISMS
from parley.app.http_choice import HttpChoice
from parley.client import connect
from parley.testing import Call, ScriptedModel
from parley.wire.events import ExecCommandEnd


@pytest.mark.promises("sandbox.hidden")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["config.toml", "auth.json"])
async def test_the_target_of_a_linked_file_of_the_home_is_hidden_in_a_project(
    parley_model: ScriptedModel, tmp_path: Path, mechanism: str, name: str
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project / "dotfiles"):
        folder.mkdir(parents=True)
    target = project / "dotfiles" / name
    script = (
        f"cat dotfiles/{name}; echo evil > dotfiles/{name}; rm -f dotfiles/{name}; mv dotfiles away; echo tried"
    )
    async with speaking(parley_model, home=home) as client:
        text = (home / name).read_text() if name == "config.toml" else '{"OPENAI_API_KEY": "sesame"}'
        target.write_text(text)
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(target)
        output = await _output_of(client, project, mechanism, script)

    assert "tried" in output
    assert text.splitlines()[0] not in output
    assert target.read_text() == text


@pytest.mark.promises("sandbox.hidden")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_the_missing_target_of_a_linked_file_of_the_home_cannot_be_created(
    parley_model: ScriptedModel, tmp_path: Path, mechanism: str
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project / "dotfiles"):
        folder.mkdir(parents=True)
    target = project / "dotfiles" / "auth.json"
    target.write_text("{}")
    (home / "auth.json").symlink_to(target)
    async with speaking(parley_model, home=home) as client:
        first = await _output_of(client, project, mechanism, "echo allowed")
        target.unlink()  # as when the user checks out another branch
        output = await _output_of(client, project, mechanism, "echo evil > dotfiles/auth.json; echo tried")

    assert "allowed" in first
    assert "tried" not in output
    assert "is a symbolic link to" in output
    assert not target.exists()


@pytest.mark.promises("sandbox.hidden")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_the_certificate_and_the_key_of_the_server_are_hidden_in_a_project(
    parley_model: ScriptedModel, tmp_path: Path, mechanism: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "cert.pem").write_text("sesame\n")
    (project / "real.pem").write_text("sesame\n")
    (tmp_path / "key.pem").symlink_to(project / "real.pem")
    config = f'[serve]\ntls_cert = "{project}/cert.pem"\ntls_key = "{tmp_path}/key.pem"\n'
    script = "cat *.pem; echo evil > cert.pem; rm -f cert.pem real.pem; echo tried"
    async with speaking(parley_model, home=tmp_path / "home", config=config) as client:
        output = await _output_of(client, project, mechanism, script)

    assert "tried" in output
    assert "sesame" not in output
    assert [(project / name).read_text() for name in ("cert.pem", "real.pem")] == ["sesame\n", "sesame\n"]


@pytest.mark.promises("sandbox.hidden")
@pytest.mark.child_process
async def test_a_key_that_the_command_line_of_the_resident_server_names_is_hidden_from_all_its_clients(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    cert, key = await make_certificate(project)
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with (
        ResidentProcess(parley_model, tmp_path / "home", arguments=tls) as resident,
        speaking(parley_model, home=tmp_path / "home") as client,
    ):
        output = await _output_of(client, project, "auto", "cat key.pem; rm -f cert.pem; echo tried")

    assert resident.description["url"].startswith("https:")
    assert "tried" in output
    assert "PRIVATE" not in output
    assert (project / "cert.pem").exists()


@pytest.mark.promises("sandbox.hidden", "resident.reload")
async def test_a_key_that_the_server_loads_later_is_hidden_from_conversations_that_began_before(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        await make_certificate(tmp_path / name)
    files = f'tls_cert = "{tmp_path}/old/cert.pem"\ntls_key = "{tmp_path}/old/key.pem"\n'
    config, http = f'sandbox_mode = "read-only"\n[serve]\n{files}', HttpChoice(host="localhost")
    old, new = (sh(name, f"cat {tmp_path}/{name}/key.pem; echo tried") for name in ("old", "new"))
    async with (
        InProcessResident(parley_model, tmp_path / "home", config=config, http=http) as server,
        connect(server.socket()) as client,
    ):
        conversation = await client.create(cwd=tmp_path)
        parley_model.says(old)
        parley_model.says("Done.")
        output = [
            event.stdout async for event in await conversation.send("go") if isinstance(event, ExecCommandEnd)
        ]
        settings = tmp_path / "home/config.toml"
        settings.write_text(settings.read_text().replace(f"{tmp_path}/old/", f"{tmp_path}/new/"))
        await server.resident.reload()
        parley_model.says(new, old)
        parley_model.says("Done.")
        output += [
            event.stdout async for event in await conversation.send("go") if isinstance(event, ExecCommandEnd)
        ]

    assert output == ["tried\n"] * 3


@pytest.mark.promises("sandbox.hidden")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.child_process
async def test_a_command_cannot_lead_the_log_of_the_server_out_of_the_sandbox(
    parley_model: ScriptedModel, tmp_path: Path, mechanism: str
) -> None:
    project, victim = tmp_path / "project", tmp_path / "victim"
    project.mkdir()
    victim.write_text("mine\n")
    log = project / "parley.log"
    env = {"PARLEY_LOG": f"info,file={log}"}
    script = f"cat parley.log; rm -f parley.log; ln -s {victim} parley.log; echo tried"
    async with (
        ResidentProcess(parley_model, tmp_path / "home", env=env),
        speaking(parley_model, home=tmp_path / "home") as client,
    ):
        output = await _output_of(client, project, mechanism, script)

    assert "tried" in output
    assert "turn.started" not in output
    assert victim.read_text() == "mine\n"
    assert not log.is_symlink()
    assert "turn.ended" in log.read_text()


async def _output_of(client: WireClient, project: Path, mechanism: str, script: str) -> str:
    """Run a script in a project that commands may write to, and return the output that the model gets."""
    conversation = await client.create(
        cwd=str(project),
        approval_policy="never",
        sandbox="workspace-write",
        config={"sandbox.mechanism": mechanism, "sandbox_workspace_write.exclude_slash_tmp": True},
    )
    client.model.says(Call("shell", {"command": ["sh", "-c", script]}, "call"))
    client.model.says("Done")
    await client.say(conversation, "go")
    await client.over(conversation)
    return str(client.model.requests[-1].body["messages"][-1]["content"])
