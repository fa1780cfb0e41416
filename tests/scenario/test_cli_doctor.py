"""`parley doctor`: its findings, with stable names."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from kit.models.model_service import CHAT_REPLY, model_service
from kit.servers.command_line import run_parley
from kit.servers.hangups import hangups
from kit.servers.resident_process import ResidentProcess
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.kernels import Lack, on_kernel
from kit.system.needs import BUBBLEWRAP, LANDLOCK, SANDBOX, no_bubblewrap
from kit.system.ports import free_port
from parley.cli.main import main
from parley.testing import ScriptedModel
from parley.version import __version__

SECRET = {path(f"{pwd.getpwuid(os.geteuid()).pw_dir}/.aws") for path in (str, os.path.realpath)}
"""A path in the user's home that is hidden by default, under each of its possible names."""


class Outcome(NamedTuple):
    lines: list[tuple[str, str]]
    stderr: str
    exit_code: int | None

    def text(self, name: str) -> list[str]:
        """Return the texts of all lines with this name."""
        return [text for found, text in self.lines if found == name]


async def doctor(home: Path, *arguments: str, without: Iterable[Lack] = (), **variables: str) -> Outcome:
    process = await asyncio.create_subprocess_exec(
        *on_kernel(without, (sys.executable, "-m", "parley", "doctor", *arguments)),
        env={"PATH": os.environ["PATH"], "HOME": str(home), **variables},
        cwd=home,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate()
    lines = [(line[:12].rstrip(), line[12:]) for line in out.decode().splitlines() if line]
    return Outcome(lines, err.decode(), process.returncode)


@pytest.mark.promises("sandbox.doctor")
@SANDBOX
async def test_it_says_what_there_is_and_that_commands_can_be_confined(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    found = await doctor(tmp_path, OPENAI_API_KEY="sk-never-told")

    mechanisms = [name for name, _ in found.lines if name in ("bubblewrap", "landlock")]
    used = "landlock" if no_bubblewrap() else "bubblewrap"
    assert (found.stderr, found.exit_code, mechanisms) == ("", 0, ["bubblewrap", "landlock"])
    assert [(name, text) for name, text in found.lines if name not in (*mechanisms, "namespaces", "to do")] == [
        ("parley", __version__),
        ("python", f"{sys.version.split()[0]}, {sys.executable}"),
        ("sqlite", found.text("sqlite")[0]),
        ("system", f"{os.uname().sysname} {os.uname().release}, {os.uname().machine}"),
        ("home", f"{tmp_path}/.parley: does not exist yet; Parley creates it when needed"),
        ("disk", found.text("disk")[0]),
        (
            "settings",
            f"{tmp_path}/.parley/config.toml: does not exist; defaults are used (`parley config init` creates it)",
        ),
        ("database", f"SQLite, {tmp_path}/.parley/parley.db, which the first conversation creates"),
        ("model", "gpt-5, by openai (responses at https://api.openai.com/v1)"),
        ("key", "is set"),
        ("policy", "approval_policy on-request, sandbox_mode read-only"),
        (
            "providers",
            "without a key: anthropic (ANTHROPIC_API_KEY), gemini (GEMINI_API_KEY), openrouter (OPENROUTER_API_KEY)"
            ", deepseek (DEEPSEEK_API_KEY), kimi (MOONSHOT_API_KEY), mistral (MISTRAL_API_KEY), "
            "groq (GROQ_API_KEY), azure (AZURE_OPENAI_API_KEY)",
        ),
        ("providers", "on this computer, if their server runs: ollama, vllm, llamacpp, lmstudio"),
        ("resident", "not running (`parley serve` starts it)"),
        ("limits", found.text("limits")[0]),
        ("hidden", f"commands cannot read: {tmp_path}/.ssh"),
        (
            "missing",
            "hidden paths that do not exist: "
            + ", ".join(
                f"{tmp_path}/{name}"
                for name in (".parley", ".aws", ".gnupg", ".config/gh", ".netrc", ".docker/config.json")
            ),
        ),
        ("sandbox", f"{used}, the first that works"),
        ("verdict", "ready"),
    ]


@pytest.mark.promises("sandbox.doctor")
@SANDBOX
async def test_the_last_line_says_whether_it_is_ready(tmp_path: Path) -> None:
    unset = await doctor(tmp_path)
    wrong = await doctor(tmp_path, "-c", "sandbox_mode=nonsense", OPENAI_API_KEY="sk-never-told")

    missing = "Missing environment variable: `OPENAI_API_KEY`. "
    hint = "Set it to your API key for OpenAI, or run `parley config init` to store a key or to choose a provider"
    assert (unset.exit_code, unset.lines[-1]) == (0, ("verdict", f"not ready: {missing}{hint}"))
    assert (wrong.exit_code, wrong.lines[-1][0]) == (1, "verdict")
    assert wrong.lines[-1][1].startswith("not ready: the home or its settings cannot be used")


@pytest.mark.promises("config.unknown")
async def test_unknown_settings_are_listed_with_the_nearest_known_one(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('sandbox_mod = "read-only"\n[store]\nkeepdays = 3\n[tui]\n')
    found = await doctor(tmp_path, PARLEY_HOME=str(tmp_path))

    assert found.text("settings") == [f"{file}: ok"]
    assert found.text("unknown") == [
        f"{file}, line 1: `sandbox_mod`: unknown setting, ignored; did you mean `sandbox_mode`?",
        f"{file}, line 3: `store.keepdays`: unknown setting, ignored; did you mean `store.keep_days`?",
        f"{file}, line 4: `tui`: unknown setting, ignored",
    ]


async def test_it_checks_the_address_and_the_secret_of_the_webhook(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[webhook]\nurl = "https://example.com/parley?key=never-told"\nsecret_env = "HOOK"\n')
    unset = await doctor(tmp_path, PARLEY_HOME=str(tmp_path))
    ready = await doctor(tmp_path, PARLEY_HOME=str(tmp_path), HOOK="never told" * 3)

    missing = "`webhook.secret_env`: the environment variable `HOOK` is not set"
    assert unset.text("webhook") == [f"is not notified: {file}, line 3: {missing}"]
    assert ready.text("webhook") == ["notified at https://example.com/parley, the secret is set"]


async def test_it_names_the_repositories_without_their_addresses(tmp_path: Path) -> None:
    table = '[workspace]\nmode = "git"\ndirectory = "/srv/git"\nroots = ["/srv/missing"]\n'
    repository = '[workspace.repositories.app]\nurl = "https://ada:never-told@example.com/app.git"\n'
    (tmp_path / "config.toml").write_text(table + repository)
    found = await doctor(tmp_path, PARLEY_HOME=str(tmp_path))
    (tmp_path / "config.toml").write_text(repository + 'branch = "--x"\n')
    wrong = await doctor(tmp_path, PARLEY_HOME=str(tmp_path))

    assert found.text("workspace") == [
        "git, below /srv/missing",
        "repositories: app; /srv/git",
        "/srv/missing does not exist, so turns in its subdirectories fail",
    ]
    assert "never-told" not in f"{found} {wrong}"
    assert wrong.exit_code == 1
    assert "not the name of a branch" in wrong.text("workspace")[0]


@pytest.mark.promises("sandbox.doctor")
async def test_it_says_what_limits_all_commands_together_or_why_nothing_does(tmp_path: Path) -> None:
    found = await doctor(tmp_path)
    pattern = r"(\d+\.\d GiB of memory and \d+ processes|none) for all commands together(, by systemd|: .+)"

    assert [re.fullmatch(pattern, text) is not None for text in found.text("limits")] == [True]


@BUBBLEWRAP
async def test_bubblewrap_is_named_with_its_place_and_version(tmp_path: Path) -> None:
    found = await doctor(tmp_path, "-c", "sandbox.mechanism=bubblewrap")
    pattern = r"works; path: /\S+/bwrap, version: \d+\.\d+\S*, .*"

    assert [re.fullmatch(pattern, text) is not None for text in found.text("bubblewrap")] == [True]
    assert found.text("sandbox") == ["bubblewrap, chosen by the settings"]


@LANDLOCK
async def test_landlock_is_named_with_its_version(tmp_path: Path) -> None:
    found = await doctor(tmp_path, "--config=sandbox.mechanism=landlock")

    pattern = r"works; abi: \d+, .*, `\.git`: restored after each command: changes are detected, not prevented"
    assert [re.fullmatch(pattern, text) is not None for text in found.text("landlock")] == [True]
    assert found.text("sandbox") == ["landlock, chosen by the settings"]


@SANDBOX
async def test_mechanisms_are_tried_out_in_the_home_and_not_where_commands_may_write(tmp_path: Path) -> None:
    home, writable = tmp_path / ".parley", tmp_path / "writable"
    for folder in (home, writable):
        folder.mkdir()
        os.utime(folder, (0, 0))
    found = await doctor(tmp_path, TMPDIR=str(writable))

    assert (found.exit_code, os.listdir(home), os.listdir(writable)) == (0, [], [])
    assert [folder.stat().st_mtime == 0 for folder in (home, writable)] == [False, True]


@pytest.mark.promises("sandbox.doctor")
@BUBBLEWRAP
async def test_where_nothing_confines_it_says_why_and_what_to_do(tmp_path: Path) -> None:
    found = await doctor(tmp_path, without=(Lack.BUBBLEWRAP, Lack.LANDLOCK_SWITCHED_ON))

    why = "bubblewrap: it is not installed; Landlock: it is disabled in the kernel"
    assert (found.stderr, found.exit_code) == ("", 1)
    assert found.text("bubblewrap") == ["does not work: it is not installed"]
    assert found.text("landlock") == ["does not work: it is disabled in the kernel"]
    assert found.text("sandbox") == [f"none: {why}"]
    installs = ("`apt install bubblewrap`", "`dnf install bubblewrap`")
    assert found.text("to do") == [
        f"install bubblewrap, 0.4 or newer: {', '.join(installs)} or `apk add bubblewrap`",
        "for Landlock: use kernel 6.2 or newer, with `landlock` in /sys/kernel/security/lsm",
    ]


@pytest.mark.promises("sandbox.doctor")
@BUBBLEWRAP
@LANDLOCK
async def test_where_bubblewrap_may_do_nothing_landlock_takes_its_place(tmp_path: Path) -> None:
    found = await doctor(tmp_path, without=(Lack.USER_NAMESPACES,))

    assert (found.text("sandbox"), found.exit_code) == (["landlock, the first that works"], 0)
    assert [text.partition(": ")[0] for text in found.text("bubblewrap")] == ["does not work"]
    assert [text.partition(": ")[0] for text in found.text("to do")] == ["let bubblewrap create user namespaces"]


async def test_invalid_settings_are_reported_with_their_line(tmp_path: Path) -> None:
    (tmp_path / ".parley").mkdir()
    (tmp_path / ".parley" / "config.toml").write_text('model = "o3"\n\napproval_policy = "sometimes"\n')
    found = await doctor(tmp_path)

    problem = "unknown variant `sometimes`, expected one of `untrusted`, `on-failure`, `on-request`, `never`"
    file = tmp_path / ".parley" / "config.toml"
    assert (found.stderr, found.exit_code) == ("", 1)
    assert found.text("home") == [f"{tmp_path}/.parley: ok"]
    assert found.text("settings") == [f"cannot be used: {file}, line 3: `approval_policy`: {problem}"]
    assert (found.text("model"), len(found.text("sandbox"))) == ([], 1)


async def test_a_file_that_is_not_toml_comes_with_advice_that_works(tmp_path: Path) -> None:
    (tmp_path / ".parley").mkdir()
    file = tmp_path / ".parley" / "config.toml"
    file.write_text('model = "o3"\nmodel_provider = "scripted\n')
    found = await doctor(tmp_path)

    assert found.text("to do")[0] == f"correct line 2 of {file} with a text editor"
    assert found.exit_code == 1


async def test_a_provider_that_is_not_defined_comes_with_advice(tmp_path: Path) -> None:
    found = await doctor(tmp_path, "-c", "model_provider=locl")

    file = tmp_path / ".parley" / "config.toml"
    assert found.text("settings") == ["cannot be used: Model provider `locl` not found"]
    assert found.text("to do")[0] == f"correct `model_provider`, or add a table [model_providers.locl] to {file}"
    assert found.exit_code == 1


async def test_a_missing_home_is_reported(tmp_path: Path) -> None:
    found = await doctor(tmp_path, PARLEY_HOME=str(tmp_path / "gone"))

    why = (
        f"PARLEY_HOME: {tmp_path}/gone: No such file or directory (os error 2); "
        "create the directory, for example with `mkdir -p`"
    )
    assert (found.text("settings"), found.exit_code) == ([f"cannot be used: {why}"], 1)


async def test_files_that_other_users_can_change_or_read_are_named(tmp_path: Path) -> None:
    home = tmp_path / ".parley"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    for name, mode in (("config.toml", 0o666), ("auth.json", 0o644), ("serve.key", 0o644)):
        (home / name).write_text("" if name == "config.toml" else "{}")
        (home / name).chmod(mode)
    found = await doctor(tmp_path)
    home.chmod(0o700)
    (home / "config.toml").chmod(0o644)
    corrected = await doctor(tmp_path)

    assert found.text("exposed") == [
        f"other users can change {home}/config.toml; correct it with `chmod go-w`",
        f"other users can read {home}/auth.json; correct it with `chmod go-r`",
        f"other users can read {home}/serve.key; correct it with `chmod go-r`",
    ]
    assert corrected.text("exposed") == []


async def test_a_home_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = await doctor(tmp_path, HOME=str(tmp_path / "file"))

    assert found.exit_code == 1
    assert found.text("home") == [f"{tmp_path}/file/.parley: cannot be created: {tmp_path}/file is not a directory"]


@pytest.mark.promises("sandbox.doctor")
@SANDBOX
async def test_conversations_that_cannot_be_used_are_reported_and_not_changed(tmp_path: Path) -> None:
    home = tmp_path / ".parley"
    home.mkdir()
    (home / "parley.db").write_text("no database" * 100)
    found = await doctor(tmp_path)

    why = (
        "the database is damaged (file is not a database); nothing in it was changed. "
        "`parley doctor --repair DIRECTORY` saves what can be read into a new home"
    )
    assert (found.text("home"), found.exit_code) == ([f"{home}: {why}"], 1)
    assert os.listdir(home) == ["parley.db"]


async def test_existing_hidden_paths_are_listed(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "link").symlink_to("keys")
    (tmp_path / "lost").symlink_to("gone")
    paths = [f"{tmp_path}/{name}" for name in ("link", "lost", "missing")]
    found = await doctor(tmp_path, "-c", f"sandbox.hidden_paths={paths}")

    assert found.text("hidden") == [f"commands cannot read: {tmp_path}/keys"]
    absent = ", ".join((f"{tmp_path}/.parley", *paths[1:]))
    assert found.text("missing") == [f"hidden paths that do not exist: {absent}"]


async def test_the_secrets_of_a_user_without_a_home_variable_are_those_of_the_account(tmp_path: Path) -> None:
    found = await doctor(tmp_path, HOME="", PARLEY_HOME=str(tmp_path))

    named = ", ".join((*found.text("hidden"), *found.text("missing"))).replace(": ", ", ").split(", ")
    assert {*named} & SECRET


async def test_possible_secrets_of_a_provider_are_not_shown(tmp_path: Path) -> None:
    overrides = ("model_provider=mine", "model_providers.mine.env_key=MINE")
    address = "model_providers.mine.base_url=https://ada:hush@example.invalid:8000/v1?token=hush"
    words = [word for setting in (*overrides, address) for word in ("-c", setting)]
    without, with_key = await doctor(tmp_path, *words), await doctor(tmp_path, *words, MINE="hush")

    shown = ["gpt-5, by mine (chat at https://example.invalid:8000/v1)"]
    assert without.text("model") == with_key.text("model") == shown
    assert without.text("key") == ["Missing environment variable: `MINE`."]
    assert with_key.text("key") == ["is set"]
    assert "hush" not in f"{without}{with_key}"


async def test_a_limit_on_the_cost_without_a_price_is_reported(tmp_path: Path) -> None:
    limited = ("-c", "limits.turn_cost=1", "-c", "model=unknown")
    lacking = await doctor(tmp_path, *limited)
    priced = await doctor(tmp_path, *limited, "-c", "prices.unknown.input=1", "-c", "prices.unknown.output=2")
    known = await doctor(tmp_path, "-c", "limits.turn_cost=1")

    assert lacking.text("price") == ["unknown for this model, so the limits on the cost have no effect"]
    advice = "set `prices.unknown.input` and `prices.unknown.output` to the prices of a million tokens"
    assert advice in lacking.text("to do")
    assert priced.text("price") == known.text("price") == []


async def test_a_provider_without_a_key_needs_none(tmp_path: Path) -> None:
    found = await doctor(tmp_path, "-c", "model_provider=scripted")

    assert (found.text("model"), found.text("key")) == (["gpt-5, by scripted (scripted)"], ["not needed"])


# --- JSON, a request to the provider, and the resident server -------------------------------


@pytest.mark.promises("doctor.json", "doctor.online")
@SANDBOX
async def test_each_row_is_a_json_object_with_its_state_and_what_to_do(tmp_path: Path) -> None:
    with model_service("small") as service:
        service.status, service.body = 404, '{"error": {"message": "no such model"}}'
        (tmp_path / "config.toml").write_text(
            'model = "mine/smal"\nsandbox_mod = 1\n[model_providers.mine]\nstream_usage = true\n'
            f'base_url = "{service.base_url}"\n'
        )
        refused = await run_parley(tmp_path, "doctor", "--online", "--json")
        service.status, service.body = 200, CHAT_REPLY
        done = await run_parley(tmp_path, "doctor", "--online", "--json", "-c", "model=mine/small")
    rows = [json.loads(line) for line in refused.stdout.splitlines()]

    assert (refused.exit_code, refused.stderr) == (1, "")
    assert [row for row in rows if row.get("state") in ("warning", "failed")] == [
        {
            "type": "check",
            "name": "unknown",
            "state": "warning",
            "text": f"{tmp_path}/config.toml, line 2: `sandbox_mod`: unknown setting, ignored; "
            "did you mean `sandbox_mode`?",
        },
        {
            "type": "check",
            "name": "online",
            "state": "failed",
            "text": "mine does not offer the model 'smal' (status 404: no such model)",
            "to_do": "choose another model with `parley config set model`, for example small",
        },
    ]
    assert rows[-1] == {"type": "verdict", "ready": False, "problems": ["the provider did not answer the request"]}
    answered = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.exit_code, answered[-1]) == (0, {"type": "verdict", "ready": True, "problems": []})
    [online] = [row for row in answered if row.get("name") == "online"]
    assert re.fullmatch(r"mine answered after \d+\.\d s with 9 input and 1 output tokens", online["text"])


@pytest.mark.promises("doctor.resident")
async def test_a_resident_server_is_reported_with_its_version_and_its_settings(tmp_path: Path) -> None:
    async with ScriptedModel() as model, ResidentProcess(model, tmp_path) as resident:
        found = await doctor(tmp_path, without=(), **resident.environ)
        (tmp_path / "config.toml").write_text('[serve]\npublic_url = "https://parley.example"\n')
        changed = await doctor(tmp_path, without=(), **resident.environ)
        resident.process.send_signal(signal.SIGSTOP)
        silent = await doctor(tmp_path, without=(), **resident.environ)
        resident.process.send_signal(signal.SIGCONT)

    process = f"process {resident.process.pid}, Parley {__version__}, since "
    assert [text.startswith(process) for text in found.text("resident")] == [True]
    assert found.text("address") == [f"{resident.description['url']}, this computer only"]
    assert changed.text("resident")[1:] == [
        "was started before these settings were changed in config.toml: serve.public_url"
    ]
    assert "restart it: `parley serve --stop`, and then `parley serve`" in changed.text("to do")
    assert (silent.exit_code, "cannot be reached" in silent.text("resident")[0]) == (1, True)
    assert silent.lines[-1][1].startswith("not ready: the resident server does not answer")


@pytest.mark.promises("doctor.resident")
@SANDBOX
async def test_options_of_the_resident_server_and_an_unreachable_public_url_are_no_problems(tmp_path: Path) -> None:
    """In a container, a server is started with options, and often cannot reach the URL of its proxy."""
    public_url = f"https://127.0.0.1:{free_port()}"
    options = ("--host=0.0.0.0", "--port=0", "-c", "node.id=pod-0", "-c", "node.url=http://pod-0:8080")
    config = f'[serve]\npublic_url = "{public_url}"\n'
    async with (
        ScriptedModel() as model,
        ResidentProcess(model, tmp_path, config=config, arguments=options) as resident,
    ):
        found = await doctor(tmp_path, without=(), **resident.environ)
        with (tmp_path / "config.toml").open("a") as file:
            file.write('\n[node]\nid = "other"\n')
        overridden = await doctor(tmp_path, without=(), **resident.environ)

    own, public = found.text("address")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp, other computers can connect, with a token", own)
    assert public == (
        f"{public_url}/mcp (serve.public_url) cannot be reached from this computer: Connection refused "
        "(os error 111); clients on other computers may reach it"
    )
    assert (found.exit_code, len(found.text("resident")), found.lines[-1]) == (0, 1, ("verdict", "ready"))
    assert (overridden.exit_code, overridden.text("resident")) == (0, found.text("resident"))


async def test_settings_for_http_do_not_matter_to_a_resident_server_without_http(tmp_path: Path) -> None:
    async with ScriptedModel() as model, ResidentProcess(model, tmp_path, arguments=("--no-http",)) as resident:
        with (tmp_path / "config.toml").open("a") as file:
            file.write("\n[serve]\nport = 1\n")
        found = await doctor(tmp_path, without=(), **resident.environ)

    assert (len(found.text("resident")), found.text("address")) == (1, [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("--fast",), "unknown option '--fast'; see `parley doctor --help`"),
        (("-c",), "argument -c/--config: expected one argument; see `parley doctor --help`"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(
    line: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(("doctor", *line))

    assert (code, capsys.readouterr()) == (2, ("", f"parley doctor: {said}\n"))


def test_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(("doctor", "--help"))

    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.startswith("usage: parley doctor ")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)]
)
async def test_a_signal_ends_it_silently_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with hangups(ignored=False):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", "doctor"),
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(scratch)},
            cwd=tmp_path,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await process.stdout.readline() != b"\n":  # the checks after this line run programs
            pass
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)  # `send_signal` takes the exit code of an ended process from `communicate`
        _, err = await process.communicate()

    assert process.returncode in (128 + number, -number, 0, 1)  # all checks may be complete by then
    assert (err, os.listdir(scratch)) == (b"", [])


# --- what cannot be written or started -----------------------------------------------------


@pytest.mark.parametrize("exists", [True, False], ids=["home", "no home yet"])
async def test_it_reports_a_disk_on_which_no_file_can_be_written(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / ".parley").mkdir()
    process = await asyncio.create_subprocess_exec(
        *("prlimit", "--fsize=4096", sys.executable, "-m", "parley", "doctor"),
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=tmp_path,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate()

    full = "cannot be written: File too large (os error 27)"
    what = full if exists else f"cannot be created: {tmp_path} {full}"
    assert f"\nhome        {tmp_path}/.parley: {what}\n" in out.decode()
    assert (err, process.returncode) == (b"", 1)
    assert os.listdir(tmp_path) == ([".parley"] if exists else [])


@pytest.mark.skipif(not os.access("/sys/kernel", os.W_OK), reason="needs root and a writable /sys")
async def test_it_reports_a_file_system_without_files(tmp_path: Path) -> None:
    found = await doctor(tmp_path, PARLEY_HOME="/sys/kernel")

    assert found.text("home")[0].startswith("/sys/kernel: cannot be written: ")
    assert found.exit_code == 1


async def test_it_reports_a_missing_script(tmp_path: Path) -> None:
    (tmp_path / ".parley").mkdir()
    (tmp_path / ".parley/config.toml").write_text(
        'model_provider = "scripted"\n[model_providers.scripted]\nscript = "missing.json"\n'
    )
    found = await doctor(tmp_path)

    assert found.text("script") == [f"{tmp_path}/.parley/missing.json: No such file or directory (os error 2)"]
    assert found.exit_code == 1


async def test_it_reports_missing_programs(tmp_path: Path) -> None:
    (tmp_path / ".parley").mkdir()
    (tmp_path / ".parley/config.toml").write_text(
        'notify = ["no-such-notifier"]\n'
        '[mcp_servers.there]\ncommand = "sh"\n'
        f'[mcp_servers.path]\ncommand = "{tmp_path}/missing"\n'
        '[mcp_servers.name]\ncommand = "no-such-program"\n'
    )
    found = await doctor(tmp_path)

    assert found.text("program") == [
        f"tool server path: {tmp_path}/missing does not exist or is not executable",
        "tool server name: no-such-program does not exist or is not executable",
        "notify: no-such-notifier does not exist or is not executable",
    ]


@pytest.mark.long
async def test_it_says_whether_the_server_is_a_node(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[node]\nid = "node-1"\nurl = "https://node-1.example.com"\n')
    url = "postgresql://parley@127.0.0.1:1/parley"
    without = await doctor(tmp_path, PARLEY_HOME=str(tmp_path), PARLEY_STORE_URL=url)
    at_home = await doctor(tmp_path, PARLEY_HOME=str(tmp_path), PARLEY_NODE_TOKEN="t" * 32)
    node = await doctor(tmp_path, PARLEY_HOME=str(tmp_path), PARLEY_NODE_TOKEN="t" * 32, PARLEY_STORE_URL=url)

    assert without.text("node") == ["a server with this environment is not a node: PARLEY_NODE_TOKEN is not set"]
    assert at_home.text("node") == [
        "a server with this environment is not a node: its conversations are not in PostgreSQL"
    ]
    assert node.text("node") == ["node-1 at https://node-1.example.com"]
