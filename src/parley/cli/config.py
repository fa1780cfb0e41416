"""`parley config`: shows the effective settings and their sources, and changes config.toml."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from parley.cli import config_init
from parley.cli.printing import print_json, print_note, print_text
from parley.cli.runner import FAILED, UsageError, add_config_option
from parley.cli.settings import report_override, settings_loader
from parley.config.toml_lines import written_key
from parley.errors import BadSetting, ConfigError

if TYPE_CHECKING:
    from parley.config.effective import EffectiveSetting

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Show the effective settings, or change config.toml in the home.

Without an action, or with `show`, print every setting with its value and its source:
the default, a line of config.toml, the selected profile, an environment variable or
-c. The output is TOML. Values that may be secrets are not shown.

`get` prints one value, and exits with 1 if the setting has no value. `set` and
`unset` change one setting of config.toml and keep its comments and its order. VALUE
is a TOML value; a value that is not TOML is text. An invalid value changes nothing.
`init` asks for a provider, a model and the permissions of the agent, and writes
config.toml.

examples:
  parley config --changed
  parley config get model
  parley config set model anthropic/claude-opus-4-5
  parley config set limits.turn_cost 2.5
  parley config unset limits.turn_cost

With --json, each setting is a JSON object `{"type": "setting"}` with `key`, `value`
and `source` (`default`, `config.toml`, `profile`, `environment` or `-c`). It also has
`line` for a line of config.toml, `profile` or `variable` for a profile or an
environment variable, and `is_secret` for a secret.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

HIDDEN: Final = "<hidden>"
COST_LIMITS: Final = (("limits", "turn_cost"), ("limits", "conversation_cost"))


def configure(parser: argparse.ArgumentParser) -> None:
    _add_show_options(parser, "config")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")

    def action(name: str, summary: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = actions.add_parser(
            name,
            formatter_class=parser.formatter_class,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
            add_help=False,
            # without SUPPRESS, the default would replace an option that is given before the action
            argument_default=argparse.SUPPRESS,
        )
        added.add_argument("-h", "--help", action="help", help="show this help")
        return added

    _add_show_options(action("show", "show the effective settings and their sources"), "action_config")
    get = action("get", "print the value of one setting, or of each setting of a table")
    get.add_argument("key", metavar="KEY", help="the dotted key, such as limits.turn_cost")
    _add_json_option(get)
    add_config_option(get, dest="action_config")
    change = action("set", "set one setting in config.toml")
    change.add_argument("key", metavar="KEY", help="the dotted key, such as limits.turn_cost")
    change.add_argument("value", metavar="VALUE", help="a TOML value, or a text")
    _add_json_option(change)
    unset = action("unset", "remove one setting, or a table of settings, from config.toml")
    unset.add_argument("key", metavar="KEY", help="the dotted key, such as limits.turn_cost")
    _add_json_option(unset)
    init = action("init", "ask for a provider, a model and permissions, and write config.toml")
    init.description = config_init.DESCRIPTION
    config_init.configure(init)
    _add_json_option(init)
    _add_json_option(action("path", "print the path of config.toml, even if the file does not exist"))


def _add_show_options(parser: argparse.ArgumentParser, config: str) -> None:
    parser.add_argument("--changed", action="store_true", help="show only the settings that are not defaults")
    _add_json_option(parser)
    add_config_option(parser, dest=config)


def _add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")


def run(args: argparse.Namespace) -> int:
    # the option can be given before and after the action
    overrides = [*args.config, *getattr(args, "action_config", ())]
    match args.action:
        case "get":
            return _get(args.key, overrides, as_json=args.json)
        case "set":
            return _set(args.key, args.value, as_json=args.json)
        case "unset":
            return _unset(args.key, as_json=args.json)
        case "init":
            if overrides:
                raise UsageError("`init` writes the settings to config.toml, so -c has no effect")
            return config_init.run(args)
        case "path":
            return _path(as_json=args.json)
        case _:
            return _show(overrides, changed=args.changed, as_json=args.json)


# --- show and get ------------------------------------------------------------------------


def _show(overrides: Sequence[str], *, changed: bool, as_json: bool) -> int:
    from parley.app.config_file import config_path
    from parley.config.effective import effective_settings

    loader = settings_loader(overrides)
    settings = [one for one in effective_settings(loader) if not changed or one.source != "default"]
    if as_json:
        for one in settings:
            print_json(_as_json(one))
        return 0
    path = config_path(loader.home)
    print_text(f"# {path}{'' if os.path.exists(path) else ' does not exist; defaults are used'}")
    lines = [(_as_toml(one), one.origin) for one in settings]
    width = min(max((len(line) for line, _ in lines), default=0), COLUMN)
    for line, origin in lines:
        print_text(f"{line:<{width}}  # {origin}")
    for sentence in loader.unknown_keys():
        print_note("config", sentence)
    return 0


COLUMN: Final = 60
"""The maximum column at which the sources of the settings are aligned. If a setting extends beyond this column, its
source follows the setting directly.
"""


def _get(key: str, overrides: Sequence[str], *, as_json: bool) -> int:
    from parley.config.effective import effective_settings
    from parley.config.schema import check_at
    from parley.config.sources import parse_setting
    from parley.config.unknown_keys import unknown_setting

    _, path = parse_setting(key, "0")
    if check_at(path) is None:
        raise unknown_setting(path)
    settings = [one for one in effective_settings(settings_loader(overrides)) if one.path[: len(path)] == path]
    for one in settings:
        if as_json:
            print_json(_as_json(one))
        elif one.path != path:
            print_text(_as_toml(one))
        elif one.value is not None or one.is_secret:
            print_text(one.value if isinstance(one.value, str) else _written(one))
    has_value = any(one.value is not None or one.is_secret for one in settings)
    return 0 if has_value else FAILED


def _as_toml(setting: EffectiveSetting) -> str:
    if setting.value is None and not setting.is_secret:
        return f"# {setting.key} is not set"
    return f"{setting.key} = {_written(setting)}"


def _written(setting: EffectiveSetting) -> str:
    from parley.config.toml_lines import written_value

    return written_value(HIDDEN if setting.is_secret else setting.value)


def _as_json(setting: EffectiveSetting) -> dict[str, Any]:
    members = {"line": setting.line, "profile": setting.profile, "variable": setting.variable}
    return {
        "type": "setting",
        "key": setting.key,
        "value": setting.value,
        "source": setting.source,
        **{name: value for name, value in members.items() if value is not None},
        **({"is_secret": True} if setting.is_secret else {}),
    }


# --- set, unset and path -----------------------------------------------------------------


def _set(key: str, value: str, *, as_json: bool) -> int:
    from parley.app.config_file import change_config
    from parley.config.editing import with_setting
    from parley.config.effective import shown_value
    from parley.config.toml_lines import written_value

    home, done = settings_loader().home, {}

    def change(text: str) -> str:
        changed, done["path"], done["value"] = with_setting(text, key, value)
        _check_usable(text, changed)
        return changed

    file = change_config(home, change)
    path: tuple[str, ...] = done["path"]
    shown, is_secret = shown_value(path, done["value"])
    if as_json:
        hidden = {"is_secret": True} if is_secret else {}
        print_json({"type": "setting_changed", "key": written_key(path), "value": shown, **hidden, "file": file})
    else:
        print_text(f"{written_key(path)} = {written_value(HIDDEN if is_secret else shown)}  # {file}")
    report_override(path)
    if path in COST_LIMITS and done["value"]:
        _report_missing_price()
    return 0


def _report_missing_price() -> None:
    """If the price of the model is unknown, print a note that a limit on the cost has no effect."""
    from parley.app.standalone import has_price
    from parley.config.types import SettingsOverrides

    try:
        settings = settings_loader().choose(SettingsOverrides()).settings
    except ConfigError:
        return
    if not has_price(settings):
        table = written_key(("prices", settings.model))
        print_note(
            "config",
            f"the limit has no effect for the model {settings.model}, because its price is unknown; "
            f"set `{table}.input` and `{table}.output` to the prices of a million tokens",
        )


def _unset(key: str, *, as_json: bool) -> int:
    from parley.app.config_file import change_config, config_path
    from parley.config.editing import without_setting

    home = settings_loader().home
    removed: list[tuple[str, ...]] = []

    def change(text: str) -> str | None:
        if (found := without_setting(text, key)) is None:
            return None
        changed, path = found
        _check_usable(text, changed)
        removed.append(path)
        return changed

    if not os.path.lexists(config_path(home)):
        change("")
        print_note("config", f"{config_path(home)} does not exist")
        return FAILED
    file = change_config(home, change)
    if not removed:
        print_note("config", f"{file} does not set `{key}`")
        return FAILED
    if as_json:
        print_json({"type": "setting_removed", "key": written_key(removed[0]), "file": file})
    else:
        print_text(f"removed {written_key(removed[0])} from {file}")
    report_override(removed[0])
    return 0


def _check_usable(before: str, after: str) -> None:
    """Check that a server can use the changed config.toml. `before` and `after` are the contents of the file.

    If the file was already unusable, only print the error as a note, so that a file with several errors can be
    corrected in steps.

    Raises:
        ConfigError: the change makes the file unusable.
    """
    from parley.config.load import why_unusable

    if (error := why_unusable(settings_loader(text=after))) is None:
        return
    if why_unusable(settings_loader(text=before)) is None:
        # The changed file does not exist, so the error must not name one of its lines.
        raise BadSetting(error.detail, key=error.key) if isinstance(error, BadSetting) else error
    print_note("config", f"the settings still cannot be used: {error}")


def _path(*, as_json: bool) -> int:
    from parley.app.config_file import config_path

    path = config_path(settings_loader().home)
    if as_json:
        print_json({"type": "config_path", "path": path, "exists": os.path.exists(path)})
    else:
        print(path)
    return 0
