"""Invalid URLs of a PostgreSQL database: commands and servers refuse them without showing a part of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.servers.command_line import Outcome, run_parley

SECRET = "hidden-in-no-log"
BAD = {
    "slash": f"postgresql://ada:{SECRET}/w@127.0.0.1:1/db",
    "slash after a number": f"postgresql://ada:1/{SECRET}@127.0.0.1:1/db",
    "at sign": f"postgresql://ada:w@{SECRET}@127.0.0.1:1/db",
    "bracket": f"postgresql://ada:{SECRET}@[bad/db",
    "port": f"postgresql://ada:{SECRET}@127.0.0.1:port/db",
}
WHY = (
    "expected a URL such as postgresql://user@host/database;"
    " special characters of the password must be percent-encoded"
)


async def parley(home: Path, *arguments: str, url: str | None = None) -> Outcome:
    """Run a command of Parley, and check that it prints no part of the URL."""
    done = await run_parley(home, *arguments, variables={} if url is None else {"PARLEY_STORE_URL": url})
    assert SECRET not in done.stdout + done.stderr
    return done


def refusal(command: str, source: str) -> Outcome:
    return Outcome("", f"parley {command}: {source}: {WHY}\n", 2)


@pytest.mark.parametrize("kind", BAD)
async def test_a_command_refuses_an_invalid_url(tmp_path: Path, kind: str) -> None:
    assert await parley(tmp_path, "gc", url=BAD[kind]) == refusal("gc", "PARLEY_STORE_URL")


async def test_a_command_that_would_start_a_server_refuses_an_invalid_url(tmp_path: Path) -> None:
    assert await parley(tmp_path, "ls", url=BAD["slash"]) == refusal("ls", "PARLEY_STORE_URL")


@pytest.mark.parametrize("command", [("serve",), ("mcp",), ("mcp", "--in-process"), ("migrate",)])
async def test_a_server_does_not_start_with_an_invalid_url(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = await parley(tmp_path, *command, url=BAD["bracket"])

    assert done == refusal(command[0], "PARLEY_STORE_URL")
    assert not (tmp_path / "parley.db").exists()


async def test_a_server_does_not_start_with_an_invalid_url_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'[store]\nurl = "{BAD["bracket"]}"\n')
    done = await parley(tmp_path, "serve")

    assert done == refusal("serve", f"{tmp_path}/config.toml, line 2: `store.url`")
    assert not (tmp_path / "parley.db").exists()


@pytest.mark.parametrize("kind", BAD)
async def test_doctor_reports_an_invalid_url(tmp_path: Path, kind: str) -> None:
    done = await parley(tmp_path, "doctor", url=BAD[kind])

    assert (done.stderr, done.exit_code) == ("", 1)
    assert f"\ndatabase    cannot be used: PARLEY_STORE_URL: {WHY}\n" in done.stdout


@pytest.mark.parametrize("kind", BAD)
async def test_a_migration_refuses_an_invalid_url(tmp_path: Path, kind: str) -> None:
    done = await parley(tmp_path, "migrate", "--to", BAD[kind])

    assert done == Outcome("", f"parley migrate: invalid --to: {WHY}; see `parley migrate --help`\n", 2)
