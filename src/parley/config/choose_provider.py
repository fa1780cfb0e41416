"""Finds the provider of a conversation by its name, among the preconfigured providers and the providers in the
settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from parley.config.checks import described, is_address
from parley.config.errors import ProviderNotFound
from parley.config.providers import AZURE_ENDPOINT, provider_table, split_model
from parley.config.sources import Source, setting_error, utf8
from parley.config.types import Provider
from parley.errors import BadSetting

__all__ = ["URL_OF_OPENAI", "choose_provider", "with_provider_of"]

URL_OF_OPENAI: Final = "https://api.openai.com/v1"


def choose_provider(
    name: str,
    named_by: str | None,
    *,
    tables: Mapping[str, dict[str, Any]],
    environ: Mapping[str, str],
    home: str,
    sources: Sequence[Source],
) -> Provider:
    """Return the provider called `name`.

    `named_by` is the source that sets this name, such as config.toml, and is used in errors; None if no source sets
    the name. `sources` are all sources of settings. An error about a setting of the provider names the source that
    contains the setting. `tables` contains the settings tables of the providers, keyed by the name of the provider.
    `environ` can contain the URLs of some providers. The path of a script is relative to `home`.

    Raises:
        BadSetting: the provider has no URL, or an environment variable contains an invalid URL.
        ProviderNotFound: no provider has this name.
    """
    # A file cannot redefine `openai` and `oss`, because it could then send the OpenAI key to another host.
    if name == "openai":
        return Provider(
            id=name,
            name="OpenAI",
            wire_api="responses",
            base_url=_address_in("OPENAI_BASE_URL", environ) or URL_OF_OPENAI,
            env_http_headers={"OpenAI-Organization": "OPENAI_ORGANIZATION", "OpenAI-Project": "OPENAI_PROJECT"},
            is_openai=True,
        )
    if name == "oss":
        return Provider(id=name, name="Open Source", wire_api="chat", base_url=_oss_base_url(environ))
    if name == "scripted":
        provider = Provider(
            id=name, name="Scripted", wire_api="scripted", script=tables.get(name, {}).get("script")
        )
    else:
        table = provider_table(name, tables, azure_endpoint=_address_in(AZURE_ENDPOINT, environ))
        if table is None:
            raise ProviderNotFound(name, source=named_by)
        provider = Provider(**{"id": name, "name": name} | table)

    if provider.wire_api == "scripted":
        return replace(provider, script=os.path.join(home, provider.script)) if provider.script else provider
    if not provider.base_url:
        detail = f"missing, and a provider with wire_api `{provider.wire_api}` needs it"
        if name == "azure":
            detail += f"; set it, or the environment variable {AZURE_ENDPOINT}"
        raise setting_error(sources, ("model_providers", name, "base_url"), detail)
    return provider


def with_provider_of(before: str, model: str, *, tables: Container[str], environ: Mapping[str, str]) -> str:
    """Return `model` with the provider of the model `before` as its prefix, as in `anthropic/claude-opus-4-5`.

    Return `model` unchanged if it already has a provider, or if `before` has no provider. Also return it unchanged
    if `environ` sets OPENAI_BASE_URL to a URL other than the URL of OpenAI, because a prefix then does not
    select a provider. `tables` contains the names of the providers in the settings.
    """
    if environ.get("OPENAI_BASE_URL", "").strip() not in ("", URL_OF_OPENAI):
        return model
    named = split_model(before, tables)
    if named is None or named[0] == "openai" or split_model(model, tables) is not None:
        return model
    return f"{named[0]}/{model}"


def _address_in(variable: str, environ: Mapping[str, str]) -> str | None:
    url = utf8(environ.get(variable, "").strip(), source=variable)
    if url and not is_address(url):
        raise BadSetting("not an http or https URL", source=variable)
    return url or None


def _oss_base_url(environ: Mapping[str, str]) -> str:
    if url := _address_in("CODEX_OSS_BASE_URL", environ):
        return url
    port = utf8(environ.get("CODEX_OSS_PORT", "").strip(), source="CODEX_OSS_PORT") or "11434"
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        detail = f"invalid value: {described(port)}, expected a port from 1 to 65535"
        raise BadSetting(detail, source="CODEX_OSS_PORT")
    return f"http://localhost:{int(port)}/v1"
