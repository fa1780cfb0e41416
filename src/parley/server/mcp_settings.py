"""Reads the settings for MCP clients. If the settings file cannot be read, the server runs with the default
settings.
"""

from __future__ import annotations

import logging

from parley.config.load import Loader
from parley.config.types import McpSettings
from parley.errors import ConfigError

__all__ = ["mcp_settings"]

log = logging.getLogger(__name__)


def mcp_settings(loader: Loader) -> McpSettings:
    """Return the settings for MCP clients. If the settings file cannot be read, return the default settings."""
    try:
        return loader.mcp_settings()
    except ConfigError as error:
        log.warning("cannot read the settings for clients, using their defaults: %s", error)
        return McpSettings()
