"""Settings over stdio: precedence and refusals. The server continues after a refusal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from kit.builders.json import as_json
from kit.system.commands import TIMEOUT_SECONDS
from parley.client.errors import ToolFailed
from parley.testing import ParleyProcess, RawParley, RecordedRequest, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.jsonrpc import encode
from parley.wire.mcp import PLAIN_VERSION

Make = Callable[..., Awaitable[ParleyProcess]]

DONE = {"content": [{"type": "text", "text": "Done"}]}


async def codex(parley: ParleyProcess, **arguments: Any) -> Any:
    """Return the result of a `codex` call with these arguments."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return as_json(await parley.client.call_tool("codex", {"prompt": "hi", **arguments}))


async def create(parley: ParleyProcess, **arguments: Any) -> Any:
    """Return the result of a `conversationCreate` with these arguments."""
    given = {"prompt": "", "model": MODEL, "cwd": str(parley.work), **arguments}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return as_json(await parley.client.call_tool("conversationCreate", given))


async def asked_by(parley: ParleyProcess, **arguments: Any) -> RecordedRequest:
    """Return the model request of a `codex` call with these arguments."""
    before = len(parley.model.requests)
    assert await codex(parley, **arguments) == DONE
    (request,) = parley.model.requests[before:]
    return request


async def model_of(parley: ParleyProcess, **arguments: Any) -> str:
    return str((await asked_by(parley, **arguments)).body["model"])


async def refusals(parley: ParleyProcess, **arguments: Any) -> list[Any]:
    """Return the refusals of both tools. Check that no conversation was created and that the server continues."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        before = await parley.client.list()
        results = [await codex(parley, **arguments), await create(parley, **arguments)]
        assert await parley.client.list() == before
    return results


def refused(detail: str) -> list[Any]:
    """Return the answers of both tools to invalid settings."""
    message = f"Failed to load config: {detail}"
    return [
        {
            "content": [{"type": "text", "text": f"Failed to load Codex configuration from overrides: {detail}"}],
            "isError": True,
        },
        {
            "content": [{"type": "text", "text": encode({"message": message}).decode()}],
            "isError": True,
            "structuredContent": {"message": message},
        },
    ]


@pytest.fixture
def plain(parley_process: Make) -> Make:
    """Return a server whose client gets plain results, which can be compared completely."""

    async def make(**options: Any) -> ParleyProcess:
        return await parley_process(protocol_version=PLAIN_VERSION, **options)

    return make


# --- precedence --------------------------------------------------------------------------------


async def test_options_of_the_command_line_win_over_the_file(plain: Make) -> None:
    parley = await plain(
        api="responses",
        config='model = "file"\ninternal_originator = "file"\nmodel_reasoning_effort = "low"\n',
        arguments=(
            "-c",
            "model=first",
            "--config",
            "model=o3",
            "--config=internal_originator='ours'",
            "-c",
            'model_providers.responses.http_headers={ x-team = "tools" }',
        ),
    )

    asked = await asked_by(parley)

    assert (asked.body["model"], asked.headers["originator"], asked.headers["x-team"]) == ("o3", "ours", "tools")
    assert asked.body["reasoning"] == {"effort": "low", "summary": "auto"}


async def test_config_wins_over_options_and_a_profile_over_config_and_a_named_argument_over_all(
    plain: Make,
) -> None:
    parley = await plain(config='[profiles.p]\nmodel = "profile"\n', arguments=("-c", "model=option"))
    config = {"model": "config"}

    models = [
        await model_of(parley),
        await model_of(parley, config=config),
        await model_of(parley, config=config, profile="p"),
        await model_of(parley, config=config, profile="p", model="argument"),
    ]

    assert models == ["option", "config", "profile", "argument"]


async def test_a_profile_is_chosen_by_the_file_or_by_the_call(plain: Make) -> None:
    parley = await plain(
        config="""
        profile = "daily"
        [profiles.daily]
        model = "of daily"
        [profiles.careful]
        model = "of careful"
        model_provider = "responses"
        """
    )

    asked = [
        await asked_by(parley),
        await asked_by(parley, profile="careful"),
        await asked_by(parley, config={"profile": "careful"}),
    ]

    assert [(one.api, one.body["model"]) for one in asked] == [
        ("chat", "of daily"),
        ("responses", "of careful"),
        ("responses", "of careful"),
    ]


async def test_a_profile_and_config_count_for_a_created_conversation_too(plain: Make) -> None:
    parley = await plain(config='[profiles.p]\nmodel_provider = "responses"\n')
    conversation = await parley.create(profile="p", config={"model_providers.responses.http_headers.x-a": "b"})

    async with asyncio.timeout(TIMEOUT_SECONDS), conversation.stream() as stream:
        await conversation.send("hi")
        assert await stream.text() == "Done"

    (asked,) = parley.model.requests
    assert (asked.api, asked.body["model"], asked.headers["x-a"]) == ("responses", MODEL, "b")


SPELLINGS: Final[dict[str, dict[str, Any]]] = {
    "dotted": {"model_providers.chat.http_headers.x-team": "tools", "model_providers.chat.query_params.v": "1"},
    "nested": {"model_providers": {"chat": {"http_headers": {"x-team": "tools"}, "query_params": {"v": "1"}}}},
    "both": {
        "model_providers.chat": {"http_headers": {"x-team": "tools"}},
        'model_providers."chat".query_params.v': "1",
    },
}


async def test_config_may_be_dotted_or_nested_and_is_merged_with_file_and_options(
    plain: Make, parley_model: ScriptedModel
) -> None:
    parley = await plain(
        config='[model_providers.chat.http_headers]\nx-file = "kept"\n',
        arguments=("-c", f"model_providers.chat.base_url={parley_model.base_url}"),
    )

    asked = {name: await asked_by(parley, config=config) for name, config in SPELLINGS.items()}

    assert {name: (one.path, one.headers["x-team"], one.headers["x-file"]) for name, one in asked.items()} == (
        dict.fromkeys(SPELLINGS, ("/v1/chat/completions?v=1", "tools", "kept"))
    )


async def test_unknown_keys_are_ignored_in_every_table(plain: Make) -> None:
    parley = await plain(
        config="""
        of_the_future = { deep = [1, 2] }
        [profiles.p]
        of_the_future = 1
        [another.table]
        model = 5
        """,
        arguments=("-c", "of_the_future=1", "-c", "an.other=[]"),
    )
    config = {"of_the_future": {"model": 5}, "another.one": None, "limits": {"of_the_future": True}}

    asked = await asked_by(parley, config=config, profile="p", of_the_future=1)

    assert asked.body["model"] == MODEL


async def test_nothing_in_the_working_directory_is_a_setting(plain: Make) -> None:
    parley = await plain()
    for name in ("config.toml", ".parley/config.toml", ".codex/config.toml"):
        (parley.work / name).parent.mkdir(exist_ok=True)
        (parley.work / name).write_text('model = "of the workspace"\nmodel_provider = "scripted"\n')
    (parley.work / ".env").write_text(f"PARLEY_HOME={parley.work}\nCODEX_HOME={parley.work}\n")

    assert await model_of(parley, cwd=str(parley.work)) == MODEL


# --- invalid settings --------------------------------------------------------------------------


UNUSABLE: Final[list[tuple[dict[str, Any], str]]] = [
    ({"profile": "nope"}, "config profile `nope` not found"),
    ({"config": {"profile": "nope"}}, "config profile `nope` not found"),
    ({"config": {"model_provider": "nope"}}, "Model provider `nope` not found"),
    ({"profile": "lost"}, "Model provider `gone` not found"),
    (
        {"config": {"model_provider": "x", "model_providers.x.name": "X"}},
        "config argument: `model_providers.x.base_url`: missing, and a provider with wire_api `chat` needs it",
    ),
    (
        {"config": {"notify": "bell"}},
        "config argument: `notify`: invalid type: string, expected a sequence",
    ),
    (
        {"config": {"model_providers": {"chat": {"base_url": "http://[::1/v1"}}}},
        "config argument: `model_providers.chat.base_url`: not an http or https URL",
    ),
    ({"config": {"": 1}}, "config argument: not a key"),
    (
        {"config": {"experimental_resume": "x"}},
        "config argument: `experimental_resume`: not supported; import the session with `parley import FILE`",
    ),
]


@pytest.mark.promises("create.failure", "codex.failure")
async def test_a_call_that_cannot_be_configured_opens_nothing_and_says_why(plain: Make) -> None:
    parley = await plain(config='[profiles.lost]\nmodel_provider = "gone"\n')

    for arguments, detail in UNUSABLE:
        assert await refusals(parley, **arguments) == refused(detail)
    assert await codex(parley) == DONE


BROKEN: Final = [
    (b"model = 'm'\nmodel = [unclosed", "line 2: `model`: not valid TOML: Invalid value (column 10)"),
    (b"model = 'm'\n\nmodel = 'n'\n", "line 3: `model`: not valid TOML: Cannot overwrite a value (column 12)"),
    (b"# caf\xe9\n", "line 1: not valid UTF-8"),
    (
        b"# ours\n[model_providers.chat]\nbase_url = 5\n",
        "line 3: `model_providers.chat.base_url`: invalid type: integer `5`, expected a string",
    ),
    (
        b"[profiles.p]\n\napproval_policy = 'sometimes'\n",
        "line 3: `profiles.p.approval_policy`: unknown variant `sometimes`, "
        "expected one of `untrusted`, `on-failure`, `on-request`, `never`",
    ),
]


async def test_a_broken_file_is_named_with_line_and_key_until_it_is_mended(plain: Make) -> None:
    parley = await plain()
    file = parley.home / "config.toml"
    good = file.read_bytes()
    assert await codex(parley) == DONE  # opens the store, which a server does not do with an invalid file

    for text, detail in BROKEN:
        file.write_bytes(text)
        for _ in range(2):
            assert await refusals(parley) == refused(f"{file}, {detail}")

        file.write_bytes(good)
        assert await codex(parley) == DONE
    assert (await create(parley))["isError"] is False


@pytest.mark.parametrize(
    ("setting", "arguments", "detail"),
    [
        ("model = [unclosed", {"config": {"model": 7}}, None),
        ('profile = "nope"', {"profile": "nope"}, "config profile `nope` not found"),
        ('profile = "nope"', {"config": {"profile": "nope"}}, "config profile `nope` not found"),
        ('model_provider = "nope"', {"config": {"model_provider": "nope"}}, "Model provider `nope` not found"),
        (
            'profile = "a"\n[profiles.a]\nmodel_provider = "nope"',
            {"config": {"model_provider": "nope"}},
            "Model provider `nope` not found",
        ),
        (
            'experimental_instructions_file = "/nowhere"',
            {"config": {"experimental_instructions_file": "/nowhere"}},
            "failed to read experimental instructions file /nowhere: No such file or directory (os error 2)",
        ),
    ],
)
async def test_a_newer_client_gets_no_note_about_overrides_if_the_file_is_invalid(
    parley_server: ParleyProcess, setting: str, arguments: dict[str, Any], detail: str | None
) -> None:
    file = parley_server.home / "config.toml"
    good = file.read_text()
    file.write_text(setting)
    broken = (await codex(parley_server, prompt="go"))["content"][0]["text"]
    file.write_text(good)
    overridden = (await codex(parley_server, **arguments))["content"][0]["text"]

    assert broken.startswith(f"Failed to load config: {detail or f'{file}, line 1'}")
    assert overridden.startswith(
        f"Failed to load Codex configuration from overrides: {detail or 'config argument'}"
    )


async def test_a_conversation_that_is_open_continues_while_the_file_is_broken(plain: Make) -> None:
    parley = await plain()
    conversation = await parley.create()
    (parley.home / "config.toml").write_text("model = [unclosed")

    async with asyncio.timeout(TIMEOUT_SECONDS), conversation.stream() as stream:
        await conversation.send("hi")
        assert await stream.text() == "Done"


async def test_a_changed_file_counts_for_the_next_conversation(plain: Make) -> None:
    parley = await plain(config='model = "before"')
    models = [await model_of(parley)]

    parley.config('model = "after"')
    models.append(await model_of(parley))

    assert models == ["before", "after"]


# --- invalid command lines ---------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-c", "nonsense"], "parley mcp: -c: `nonsense` is not of the form key=value"),
        (["-c", "model=o3", "--config=nonsense"], "parley mcp: -c: `nonsense` is not of the form key=value"),
        (["-c", "model=5"], "parley mcp: -c: `model`: invalid type: integer `5`, expected a string"),
        (["-c", "model_providers.\udcff.name=5"], "parley mcp: -c: not valid UTF-8"),
        (
            ["-c", "model=o3", "-c"],
            "parley mcp: argument -c/--config: expected one argument; see `parley mcp --help`",
        ),
        (["--nonsense", "x"], "parley mcp: unknown option '--nonsense'; see `parley mcp --help`"),
    ],
)
async def test_a_command_line_that_makes_no_sense_ends_the_server_with_one_clear_line(
    parley_model: ScriptedModel, arguments: list[str], line: str
) -> None:
    async with RawParley(parley_model, arguments=arguments) as raw:
        assert await raw.exit_code() == 2
        assert (raw.frames, raw.stderr_text()) == ([], f"{line}\n")


async def test_an_invalid_log_level_ends_the_server_with_one_clear_line(
    parley_model: ScriptedModel,
) -> None:
    async with RawParley(parley_model, env={"PARLEY_LOG": "nonsense"}) as raw:
        assert await raw.exit_code() == 2
        assert (raw.frames, raw.stderr_text()) == (
            [],
            "parley mcp: PARLEY_LOG: unknown part `nonsense`, "
            "expected one of `debug`, `info`, `warning`, `error`, `text`, `json`, or `file=PATH`\n",
        )


# --- the home ------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["PARLEY_HOME", "CODEX_HOME"])
async def test_a_home_that_is_not_there_is_named_until_it_is(plain: Make, tmp_path: Path, variable: str) -> None:
    missing = tmp_path / "missing"
    parley = await plain(env={"PARLEY_HOME": "", variable: str(missing)})

    detail = (
        f"{variable}: {missing}: No such file or directory (os error 2); "
        "create the directory, for example with `mkdir -p`"
    )
    assert [await codex(parley), await create(parley)] == refused(detail)
    with pytest.raises(ToolFailed, match=re.escape(detail)):
        await parley.client.list()

    parley.home.rename(missing)
    assert await codex(parley) == DONE


@pytest.mark.parametrize(
    ("environ", "model"),
    [
        ({"PARLEY_HOME": "ours", "CODEX_HOME": "theirs", "HOME": "user"}, "ours"),
        ({"PARLEY_HOME": "", "CODEX_HOME": "theirs", "HOME": "user"}, "theirs"),
        ({"PARLEY_HOME": "", "CODEX_HOME": "", "HOME": "user"}, "user/.parley"),
    ],
    ids=["PARLEY_HOME", "CODEX_HOME", "HOME"],
)
async def test_the_home_is_that_of_the_first_variable_that_is_set(
    plain: Make, parley_model: ScriptedModel, tmp_path: Path, environ: dict[str, str], model: str
) -> None:
    for name in ("ours", "theirs", "user/.parley"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").write_text(
            f'model = "{name}"\nmodel_provider = "x"\n[model_providers.x]\nbase_url = "{parley_model.base_url}"\n'
        )
    env = {variable: str(tmp_path / name) if name else "" for variable, name in environ.items()}

    parley = await plain(env=env)

    assert await model_of(parley) == model


async def test_without_any_home_everything_has_its_default_and_options_still_count(
    plain: Make, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley = await plain(
        env={"PARLEY_HOME": "", "HOME": str(tmp_path / "nobody")},
        arguments=("-c", "model_provider=x", "-c", f"model_providers.x.base_url={parley_model.base_url}"),
    )

    assert await model_of(parley) == "gpt-5"


# --- instructions --------------------------------------------------------------------------


def instructions_of(request: RecordedRequest) -> Any:
    return request.body["messages"][0]


@pytest.mark.promises("model.instructions")
async def test_instructions_come_from_the_file_in_the_working_directory_as_it_is_then(plain: Make) -> None:
    parley = await plain(config='experimental_instructions_file = "rules.md"\n')
    rules = parley.work / "rules.md"
    cwd = str(parley.work)

    rules.write_text("\n  Be terse. \n")
    first = await asked_by(parley, cwd=cwd)
    rules.write_text("Be kind.")
    second = await asked_by(parley, cwd=cwd)
    rules.unlink()
    third = await asked_by(parley, cwd=cwd, **{"base-instructions": "Be yourself."})

    assert [instructions_of(one) for one in (first, second, third)] == [
        {"role": "system", "content": "Be terse."},
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": "Be yourself."},
    ]


async def test_instructions_that_cannot_be_used_open_no_conversation(plain: Make) -> None:
    parley = await plain()
    path = parley.work / "rules.md"

    async def found() -> list[Any]:
        config = {"experimental_instructions_file": "rules.md"}
        return await refusals(parley, cwd=str(parley.work), config=config)

    reading = f"failed to read experimental instructions file {path}"
    assert await found() == refused(f"{reading}: No such file or directory (os error 2)")
    path.write_bytes(b" \n")
    assert await found() == refused(f"experimental instructions file is empty: {path}")
    path.write_bytes(b"\xe9")
    assert await found() == refused(f"{reading}: not valid UTF-8")
