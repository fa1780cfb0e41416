"""The settings after several calls: later overrides take precedence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley.config.errors import ProfileNotFound, ProviderNotFound
from parley.config.load import Loader
from parley.config.types import ResolvedSettings, Settings, SettingsOverrides
from parley.errors import BadSetting, ConfigError
from unit.config.home import SERVER_DIR, Home

CONFIG = """
model = "of the file"
model_provider = "one"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[profiles.fast]
model = "fast one"
approval_policy = "on-failure"

[profiles.slow]
model = "slow one"
model_provider = "two"

[model_providers.one]
base_url = "http://localhost:1/v1"

[model_providers.two]
base_url = "http://localhost:2/v1"
wire_api = "responses"
"""


def chosen_by(loader: Loader, *calls: SettingsOverrides) -> ResolvedSettings:
    chosen: ResolvedSettings | None = None
    for call in calls:
        chosen = loader.choose(call, chosen)
    assert chosen is not None
    return chosen


def after(home: Home, *calls: SettingsOverrides, config: str = CONFIG) -> Settings:
    """Return the settings of a conversation after calls with these overrides, in this order."""
    home.write(config)
    return chosen_by(home.loader(), *calls).settings


def config(**settings: Any) -> SettingsOverrides:
    return SettingsOverrides(config=settings)


OPENED = SettingsOverrides(model="first", cwd="/project")


def test_a_call_without_settings_changes_none(home: Home) -> None:
    home.write(CONFIG)
    loader = home.loader()
    opened = loader.choose(OPENED)

    assert loader.choose(SettingsOverrides(), opened) == opened
    assert loader.choose(SettingsOverrides(), opened).settings is opened.settings


@pytest.mark.parametrize(
    ("wanted", "name", "value"),
    [
        (SettingsOverrides(model="m"), "model", "m"),
        (SettingsOverrides(cwd="/other"), "cwd", "/other"),
        (SettingsOverrides(cwd="other"), "cwd", f"{SERVER_DIR}/other"),
        (SettingsOverrides(approval_policy="untrusted"), "approval_policy", "untrusted"),
        (SettingsOverrides(sandbox="read-only"), "sandbox_mode", "read-only"),
        (SettingsOverrides(base_instructions="Be brief."), "base_instructions", "Be brief."),
        (SettingsOverrides(base_instructions=""), "base_instructions", ""),
        (config(model_context_window=1000), "model_context_window", 1000),
    ],
)
def test_a_later_call_changes_only_the_settings_that_it_names(
    home: Home, wanted: SettingsOverrides, name: str, value: object
) -> None:
    before = after(home, OPENED)
    now = after(home, OPENED, wanted)

    changed = {field for field in Settings.__struct_fields__ if getattr(before, field) != getattr(now, field)}
    assert changed == {name, *({"model_name"} if name == "model" else ())}
    assert getattr(now, name) == value


def test_every_choice_stays_until_another_is_made(home: Home) -> None:
    settings = after(
        home,
        OPENED,
        SettingsOverrides(sandbox="read-only"),
        config(model_context_window=1000),
        SettingsOverrides(cwd="/other"),
        SettingsOverrides(profile="slow"),
        SettingsOverrides(approval_policy="untrusted"),
        config(show_raw_agent_reasoning=True),
    )

    assert (settings.sandbox_mode, settings.model_context_window, settings.cwd) == ("read-only", 1000, "/other")
    assert (settings.model, settings.provider.id) == ("slow one", "two")
    assert (settings.approval_policy, settings.show_raw_agent_reasoning) == ("untrusted", True)


@pytest.mark.parametrize(
    ("calls", "model"),
    [
        ((SettingsOverrides(profile="fast"),), "fast one"),
        ((config(model="c"),), "c"),
        ((SettingsOverrides(profile="fast"), SettingsOverrides(model="n")), "n"),
        ((SettingsOverrides(profile="fast"), config(model="c")), "c"),
        ((SettingsOverrides(profile="fast"), SettingsOverrides(profile="slow")), "slow one"),
        (
            (SettingsOverrides(profile="fast"), SettingsOverrides(model="n"), SettingsOverrides(profile="fast")),
            "fast one",
        ),
        ((SettingsOverrides(profile="fast"), config(model="c"), SettingsOverrides(profile="fast")), "fast one"),
        ((config(profile="fast"), SettingsOverrides(model="n")), "n"),
        ((config(profile="fast"), SettingsOverrides(model="n"), config(profile="fast")), "fast one"),
        ((config(profile="fast"), SettingsOverrides(model="n"), config(notify=[])), "n"),
        ((config(model="c"), config(profile="fast")), "fast one"),
        ((config(model="c"), SettingsOverrides(model="n")), "n"),
        ((config(model="c"), SettingsOverrides(model="n"), config(model="c")), "c"),
        ((SettingsOverrides(model="n", config={"model": "c"}),), "n"),
        ((SettingsOverrides(profile="slow", config={"model": "c"}),), "slow one"),
        ((SettingsOverrides(profile="slow", model="n", config={"model": "c"}),), "n"),
        ((SettingsOverrides(profile="slow", model="n"), SettingsOverrides(config={"model": "c"}, cwd="/x")), "c"),
    ],
)
def test_the_last_call_that_says_something_of_a_setting_decides_it(
    home: Home, calls: tuple[SettingsOverrides, ...], model: str
) -> None:
    assert after(home, OPENED, *calls).model == model


@pytest.mark.parametrize(
    "later", [config(notify=[]), SettingsOverrides(cwd="/x"), config(show_raw_agent_reasoning=True)]
)
def test_a_profile_that_a_call_named_stays_although_the_file_names_another(
    home: Home, later: SettingsOverrides
) -> None:
    text = f'profile = "slow"\n{CONFIG}'

    opened = after(home, SettingsOverrides(cwd="/x"), config=text)
    named = after(home, SettingsOverrides(cwd="/x"), SettingsOverrides(profile="fast"), later, config=text)

    assert (opened.model, opened.provider.id) == ("slow one", "two")
    assert (named.model, named.approval_policy) == ("fast one", "on-failure")


def test_the_profile_of_the_file_does_not_come_back_over_a_later_word(home: Home) -> None:
    text = f'profile = "slow"\n{CONFIG}'

    assert after(home, SettingsOverrides(cwd="/x"), config(model="c"), config(notify=[]), config=text).model == "c"


def test_a_profile_may_be_defined_by_one_call_and_used_by_another(home: Home) -> None:
    defined = config(**{"profiles.mine.model": "my own"})

    assert after(home, OPENED, defined).model == "first"
    assert after(home, OPENED, defined, SettingsOverrides(profile="mine")).model == "my own"


def test_tables_of_several_calls_are_laid_over_each_other(home: Home) -> None:
    settings = after(
        home,
        OPENED,
        config(model_providers={"mine": {"base_url": "http://localhost:3/v1", "stream_max_retries": 1}}),
        config(**{"model_providers.mine.stream_max_retries": 2, "model_provider": "mine"}),
    )

    provider = settings.provider
    assert (provider.id, provider.base_url, provider.stream_max_retries) == ("mine", "http://localhost:3/v1", 2)


def test_instructions_are_those_of_the_last_call_that_gave_some(home: Home, tmp_path: Path) -> None:
    written = tmp_path / "written.md"
    written.write_text("From a file.")
    of_file = config(experimental_instructions_file=str(written))
    given = SettingsOverrides(base_instructions="Given.")

    assert after(home, OPENED, of_file).base_instructions == "From a file."
    assert after(home, OPENED, of_file, given).base_instructions == "Given."
    assert after(home, OPENED, given, of_file).base_instructions == "From a file."
    assert after(home, OPENED, given, of_file, SettingsOverrides(cwd="/x")).base_instructions == "From a file."
    assert after(home, OPENED, of_file, given, config(notify=[])).base_instructions == "Given."


def test_instructions_of_a_profile_take_the_place_of_those_given_before(home: Home, tmp_path: Path) -> None:
    (tmp_path / "written.md").write_text("Of the profile.")
    text = f'{CONFIG}\n[profiles.named]\nexperimental_instructions_file = "{tmp_path}/written.md"\n'
    given = SettingsOverrides(base_instructions="Given.")

    assert (
        after(home, given, SettingsOverrides(profile="named"), config=text).base_instructions == "Of the profile."
    )
    assert after(home, SettingsOverrides(profile="named"), given, config=text).base_instructions == "Given."
    assert after(home, given, SettingsOverrides(profile="fast"), config=text).base_instructions == "Given."


@pytest.mark.parametrize(
    ("wanted", "kind", "expected"),
    [
        (
            SettingsOverrides(approval_policy="ask"),
            BadSetting,
            "`approval_policy`: unknown variant `ask`, expected one of "
            "`untrusted`, `on-failure`, `on-request`, `never`",
        ),
        (
            config(sandbox_mode=5),
            BadSetting,
            "config argument: `sandbox_mode`: invalid type: integer `5`, expected a string",
        ),
        (SettingsOverrides(profile="none"), ProfileNotFound, "config profile `none` not found"),
        (SettingsOverrides(profile=""), ProfileNotFound, "config profile `` not found"),
        (config(model_provider="none"), ProviderNotFound, "Model provider `none` not found"),
        (config(**{"a..b": 1}), BadSetting, "config argument: `a..b`: not a key"),
    ],
)
def test_invalid_overrides_are_refused_and_earlier_ones_stay(
    home: Home, wanted: SettingsOverrides, kind: type[ConfigError], expected: str
) -> None:
    home.write(CONFIG)
    loader = home.loader()
    before = chosen_by(loader, OPENED, config(model_context_window=1000))

    with pytest.raises(kind) as refused:
        loader.choose(wanted, before)

    assert str(refused.value) == expected
    assert loader.choose(SettingsOverrides(sandbox="read-only"), before).settings == after(
        home, OPENED, config(model_context_window=1000), SettingsOverrides(sandbox="read-only")
    )


def test_the_same_words_again_add_nothing(home: Home) -> None:
    home.write(CONFIG)
    loader = home.loader()
    everything = SettingsOverrides(model="n", profile="slow", cwd="/x", config={"model_context_window": 1000})
    once = chosen_by(loader, OPENED, everything)

    assert chosen_by(loader, OPENED, *[everything] * 100) == once


def test_two_branches_of_choices_do_not_touch_each_other(home: Home) -> None:
    home.write(CONFIG)
    loader = home.loader()
    trunk = loader.choose(OPENED)
    left = chosen_by(loader, OPENED, config(model="left"))
    right = loader.choose(SettingsOverrides(model="right"), trunk)

    assert loader.choose(SettingsOverrides(cwd="/l"), left).settings.model == "left"
    assert loader.choose(SettingsOverrides(cwd="/r"), right).settings.model == "right"
    assert trunk.settings.model == "first"


def test_a_conversation_stays_with_the_file_that_it_began_with(home: Home) -> None:
    home.write('model = "old"\nsandbox_mode = "danger-full-access"')
    loader = home.loader()
    begun = loader.choose(SettingsOverrides())

    home.write('model = "new"\nsandbox_mode = "read-only"')
    other = loader.choose(SettingsOverrides())
    changed = loader.choose(SettingsOverrides(cwd="/elsewhere"), begun)

    assert (other.settings.model, other.settings.sandbox_mode) == ("new", "read-only")
    assert (changed.settings.model, changed.settings.sandbox_mode) == ("old", "danger-full-access")
    assert changed.settings.cwd == "/elsewhere"
