"""Errors that are raised only when settings are resolved, or when config.toml is changed."""

from __future__ import annotations

from parley.errors import ConfigError, ParleyError

__all__ = ["ProfileNotFound", "ProviderNotFound", "UneditableFile"]


class ProfileNotFound(ConfigError):
    """Raised when the settings have no profile with the given name."""

    code = "profile_not_found"

    def __init__(self, profile: str, *, source: str | None = None) -> None:
        super().__init__(f"config profile `{profile}` not found")
        self.profile, self.source = profile, source


class ProviderNotFound(ConfigError):
    """Raised when the settings have no model provider with the given name."""

    code = "provider_not_found"

    def __init__(self, provider: str, *, source: str | None = None) -> None:
        super().__init__(f"Model provider `{provider}` not found")
        self.provider, self.source = provider, source


class UneditableFile(ParleyError):
    """Raised when a setting in config.toml cannot be changed without changing more than this setting.

    Only `parley config` changes the file, so no client of a server gets this error.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"`{key}` cannot be changed automatically in this file; change it with an editor")
        self.key = key
