"""Determines the effective value of every setting, and the source that sets the value.

`load.py` decides which source takes precedence. This module returns the effective values with their secrets
redacted, so that they can be shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict

from parley.config.checks import Check, Named, Table, address, is_secret, webhook_address
from parley.config.load import STORE_VARIABLE, Loader
from parley.config.providers import AZURE_ENDPOINT
from parley.config.redaction import without_secrets
from parley.config.schema import SETTINGS, check_at, check_below
from parley.config.sources import Source, merge
from parley.config.toml_lines import KeyPath, line_of, written_key
from parley.config.types import ConfigFile, Provider, ResolvedSettings, SettingsOverrides

__all__ = ["EffectiveSetting", "SourceKind", "effective_settings", "shown_value"]

SourceKind = Literal["default", "config.toml", "profile", "environment", "-c"]


class EffectiveSetting(Struct, frozen=True, kw_only=True):
    """A setting with its effective value and the source of the value."""

    path: KeyPath
    value: Any
    """The value; None if the setting has no value, or if `is_secret` is True."""
    source: SourceKind
    is_secret: bool = False
    """True if the value may be a secret. `value` is then None."""
    line: int | None = None
    """The line of config.toml that contains the value; None if the value is not from config.toml."""
    profile: str | None = None
    """The name of the profile that contains the value; None if the value is not from a profile."""
    variable: str | None = None
    """The environment variable that contains the value; None if the value is not from the environment."""

    @property
    def key(self) -> str:
        """The dotted key in TOML notation."""
        return written_key(self.path)

    @property
    def origin(self) -> str:
        """The source of the value as text for people, such as `config.toml, line 3`."""
        line = "" if self.line is None else f"config.toml, line {self.line}"
        match self.source:
            case "config.toml":
                return line
            case "profile":
                return f"profile {self.profile}, {line or '-c'}"
            case "environment":
                return self.variable or ""
            case "default" | "-c":
                return self.source


def effective_settings(loader: Loader) -> Iterator[EffectiveSetting]:
    """Yield every setting, in the order of docs/config.md. The settings in a table whose name the user chose,
    such as the table of a provider, are included if a source sets them, or if a conversation with default settings
    uses the table.

    Raises:
        ConfigError: the settings cannot be used.
    """
    resolved = loader.choose(SettingsOverrides())
    return iter(_Report(loader, resolved).settings())


def shown_value(path: KeyPath, value: Any) -> tuple[Any, bool]:
    """Return the value of a setting with its secrets redacted, and whether the whole value may be a secret.

    If the whole value may be a secret, the returned value is None.
    """
    check = check_at(path)
    # The path of a webhook's URL may be a secret.
    if value and (check is None or is_secret(check) or check is webhook_address):
        return None, True
    if check is address and isinstance(value, str):
        return without_secrets(value)[0], False
    return value, False


class _Report:
    """The settings of one home, together with their sources."""

    def __init__(self, loader: Loader, resolved: ResolvedSettings) -> None:
        self._file, self._overrides = loader.sources()
        self._values = merge(self._overrides.values, into=merge(self._file.values, into={}))
        self._profile: str | None = resolved.values.get("profile")
        if self._profile is not None:
            self._values |= self._values.get("profiles", {}).get(self._profile, {})
        self._store_url = STORE_VARIABLE if loader.variable(STORE_VARIABLE) else None
        self._addresses = {
            name: variable for name, variable in _ADDRESSES.items() if loader.variable(variable) is not None
        }
        self._provider = resolved.settings.provider

    def settings(self) -> list[EffectiveSetting]:
        found = list(self._settings((), SETTINGS, self._values, asdict(ConfigFile())))
        known = {one.path for one in found}
        return [*found, *(one for one in self._provider_in_use() if one.path not in known)]

    def _settings(self, at: KeyPath, check: Check | None, value: Any, default: Any) -> Iterator[EffectiveSetting]:
        match check:
            case Table():
                defaults = asdict(default) if isinstance(default, Struct) else default or {}
                for name, inner in check.fields.items():
                    below = value.get(name) if isinstance(value, Mapping) else None
                    yield from self._settings((*at, name), inner, below, _default_of(defaults, name))
            case Named():
                for name, one in (value or {}).items():
                    if isinstance(check.entry, Table):
                        yield from self._entry((*at, name), check.entry, one)
                    else:
                        yield self._setting((*at, name), one)
            case _:
                yield self._setting(at, default if value is None else value)

    def _entry(self, at: KeyPath, check: Check, value: Mapping[str, Any]) -> Iterator[EffectiveSetting]:
        """Yield the settings that a source sets in a table whose name the user chose, such as the table of a
        provider.

        The other settings in the table have their documented defaults and are not yielded.
        """
        for name, one in value.items():
            inner = check_below(check, name)
            if isinstance(inner, Named | Table):
                yield from self._settings((*at, name), inner, one, None)
            else:
                yield self._setting((*at, name), one)

    def _provider_in_use(self) -> Iterator[EffectiveSetting]:
        """Yield the URL, the API and the key variable of the provider that a conversation with default settings
        uses, even if no source sets them.
        """
        provider: Provider = self._provider
        for name in ("base_url", "wire_api", "env_key"):
            value = "OPENAI_API_KEY" if name == "env_key" and provider.is_openai else getattr(provider, name)
            path = ("model_providers", provider.id, name)
            variable = self._addresses.get(provider.id) if name == "base_url" else None
            if value is not None:
                yield self._setting(path, value, variable=variable)

    def _setting(self, path: KeyPath, value: Any, *, variable: str | None = None) -> EffectiveSetting:
        profile, named_by = self._source_of(path)
        if path == ("store", "url") and self._store_url is not None:
            variable, named_by = self._store_url, None
        source: SourceKind = "default"
        if named_by is not None:
            source = "profile" if profile else "-c" if named_by is self._overrides else "config.toml"
        elif variable is not None:
            source = "environment"
        shown, is_hidden = shown_value(path, value)
        is_hidden = is_hidden or (path == ("store", "url") and variable is not None)
        place = ("profiles", self._profile, *path) if profile and self._profile is not None else path
        return EffectiveSetting(
            path=path,
            value=None if is_hidden else shown,
            source=source,
            is_secret=is_hidden,
            line=line_of(place, self._file.text) if named_by is self._file else None,
            profile=self._profile if profile else None,
            variable=variable if source == "environment" else None,
        )

    def _source_of(self, path: KeyPath) -> tuple[bool, Source | None]:
        """Return whether the value of a setting comes from the profile in use, and the source that contains the
        value. The source is None if no source sets the setting.
        """
        places = [path]
        if self._profile is not None and len(path) == 1:
            places.insert(0, ("profiles", self._profile, *path))
        for place in places:
            for source in (self._overrides, self._file):
                if source.mentions(place):
                    return place is not path, source
        return False, None


_ADDRESSES: Final = {"openai": "OPENAI_BASE_URL", "oss": "CODEX_OSS_BASE_URL", "azure": AZURE_ENDPOINT}
"""The environment variables that contain the URLs of providers, keyed by the name of the provider."""


def _default_of(defaults: Mapping[str, Any], name: str) -> Any:
    """Return the default value of the key `name`. The keys of `defaults` are names of fields. If `name` is a
    keyword of Python, such as `from`, the name of its field ends with an underscore.
    """
    return defaults.get(name, defaults.get(f"{name}_"))
