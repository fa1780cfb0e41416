"""Comparison of settings by strictness."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.config.load import Loader
from parley.config.strictness import looser_setting, values_within
from parley.config.types import ResolvedSettings, SettingsOverrides

ALL = ("untrusted", "on-request", "on-failure", "never")


def chosen(home: Path, **values: object) -> ResolvedSettings:
    loader = Loader(environ={"HOME": str(home)}, server_dir=str(home))
    return loader.choose(SettingsOverrides(config=dict(values)))


@pytest.mark.parametrize(
    ("sandbox", "policy", "allowed"),
    [
        ("read-only", "untrusted", ALL[:1]),
        ("workspace-write", "on-failure", ALL[:3]),
        ("workspace-write", "never", ("never",)),
        ("danger-full-access", "never", ALL),
    ],
)
def test_never_is_strict_only_within_a_sandbox(
    tmp_path: Path, sandbox: str, policy: str, allowed: tuple[str, ...]
) -> None:
    limit = chosen(tmp_path, sandbox_mode=sandbox, approval_policy=policy).settings

    assert values_within("approval_policy", limit) == allowed


def test_settings_without_an_order_must_be_equal(tmp_path: Path) -> None:
    network = {"sandbox_workspace_write.network_access": True}
    limit = chosen(tmp_path, sandbox_mode="workspace-write")

    assert looser_setting(chosen(tmp_path, sandbox_mode="read-only", model="other"), limit) is None
    assert looser_setting(chosen(tmp_path, sandbox_mode="danger-full-access"), limit) == "sandbox_mode"
    assert looser_setting(chosen(tmp_path, **network), limit) == "sandbox_workspace_write"
