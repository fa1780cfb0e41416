"""The part of `parley doctor` that checks the model and its provider."""

from __future__ import annotations

from parley.cli.doctor_home import shown_address
from parley.cli.doctor_report import DoctorReport
from parley.common.files import read_file
from parley.common.os_errors import os_detail
from parley.config.load import Loader
from parley.config.provider_keys import key_variable
from parley.config.providers import READY_PROVIDERS
from parley.config.types import Settings

__all__ = ["check_model", "check_online", "list_providers"]


def check_model(report: DoctorReport, settings: Settings) -> None:
    """Check the model, its price and the key of its provider, without sending a request."""
    from parley.app.standalone import has_price, why_no_key

    provider = settings.provider
    address = shown_address(provider.base_url)
    report.info("model", f"{settings.model}, by {provider.id} ({provider.wire_api}{address})")
    if (settings.limits.turn_cost or settings.limits.conversation_cost) and not has_price(settings):
        report.warn(
            "price",
            "unknown for this model, so the limits on the cost have no effect",
            to_do=_price_advice(settings),
        )
    if key_variable(provider) is None:
        report.ok("key", "not needed")
    elif (missing := why_no_key(settings)) is None:
        report.ok("key", "is set")
    else:
        report.lack("key", missing, lacks=missing.rstrip("."))
    report.info("policy", f"approval_policy {settings.approval_policy}, sandbox_mode {settings.sandbox_mode}")
    if provider.script is not None:
        _check_script(report, provider.script)


def _price_advice(settings: Settings) -> str:
    from parley.config.toml_lines import written_key

    table = written_key(("prices", settings.model))
    return f"set `{table}.input` and `{table}.output` to the prices of a million tokens"


def _check_script(report: DoctorReport, path: str) -> None:
    try:
        read_file(path)
    except OSError as error:
        report.fail("script", f"{path}: {os_detail(error)}", problem="the script cannot be read")


def list_providers(report: DoctorReport, loader: Loader) -> None:
    """Print the known providers with a key, the known providers without a key, and the model servers on this
    computer.
    """
    missing = loader.ready_providers()
    local = [name for name in missing if "env_key" not in READY_PROVIDERS[name]]
    services = {name: variable for name, variable in missing.items() if name not in local}
    if keyed := [name for name, variable in services.items() if variable is None]:
        report.info("providers", f"with a key: {', '.join(keyed)}")
    if lacking := [f"{name} ({variable})" for name, variable in services.items() if variable is not None]:
        report.info("providers", f"without a key: {', '.join(lacking)}")
    report.info("providers", f"on this computer, if their server runs: {', '.join(local)}")


async def check_online(report: DoctorReport, settings: Settings) -> None:
    """Send one tiny request to the provider, and print whether the provider responded."""
    from parley.app.provider_check import ProviderFault, check_provider

    found = await check_provider(settings)
    if isinstance(found, ProviderFault):
        report.fail("online", found.reason, problem="the provider did not answer the request", to_do=found.to_do)
        return
    usage = found.usage
    tokens = "" if usage is None else f" with {usage.input_tokens} input and {usage.output_tokens} output tokens"
    report.ok("online", f"{settings.provider.id} answered after {found.seconds:.1f} s{tokens}")
