"""Errors that are raised only when settings are resolved."""

from __future__ import annotations

from parley.errors import ConfigError

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


class UneditableFile(ConfigError):
    """Raised when a setting in config.toml cannot be changed without changing more than this setting."""

    code = "uneditable_file"

    def __init__(self, key: str) -> None:
        super().__init__(f"`{key}` cannot be changed automatically in this file; change it with an editor")
        self.key = key
