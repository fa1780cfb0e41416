"""The services of `deploy/compose/compose.yaml` as processes of this computer, with the same scripts, settings and
commands. Only names, ports and paths differ.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from kit.servers.postgres import programs, with_connection
from kit.servers.resident_process import ResidentProcess, parley
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.ports import free_port
from parley.testing import ScriptedModel

__all__ = ["COMPOSE", "ComposeOnHost", "no_proxy"]

DEPLOY: Final = Path(__file__).parents[3] / "deploy"
COMPOSE: Final = DEPLOY / "compose"
OPTIONS: Final = ("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")


def no_proxy() -> str | None:
    """Return why the proxy cannot be started; None if it can."""
    return None if shutil.which("haproxy") else "haproxy is not installed"


class ComposeOnHost:
    """The services: `async with ComposeOnHost(model, directory) as services`."""

    def __init__(self, model: ScriptedModel, directory: Path) -> None:
        self._model, self._directory = model, directory
        self._compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
        self._ports = {name: free_port() for name in ("node-1", "node-2", "proxy", "db-1", "db-2")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._owned = AsyncExitStack()
        self.nodes: dict[str, ResidentProcess] = {}
        self.projects = directory / "projects"
        self.url = f"http://localhost:{self._ports['proxy']}/mcp"
        """The URL for clients."""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        self.secrets = await asyncio.to_thread(self._create_secrets)
        self.projects.mkdir()
        # The database servers may run as another user.
        self._databases = Path(tempfile.mkdtemp(prefix="parley-compose-"))
        self._databases.chmod(0o755)
        await asyncio.to_thread(self._start_primary)
        await self.until_database("db-1", "SELECT true")
        await asyncio.to_thread(self._start_standby)
        await self.until_database("db-1", "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        for name in ("node-1", "node-2"):
            self.nodes[name] = await self._owned.enter_async_context(self._node(name))
        await asyncio.to_thread(self._start_proxy)

    async def _stop(self) -> None:
        await self._owned.aclose()
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGQUIT if process is not self._processes.get("proxy") else signal.SIGTERM)
        for process in self._processes.values():
            await asyncio.to_thread(process.wait, TIMEOUT_SECONDS)
        shutil.rmtree(self._databases, ignore_errors=True)

    def _create_secrets(self) -> dict[str, str]:
        copy = shutil.copytree(COMPOSE, self._directory / "compose")
        subprocess.run((copy / "env.sh",), check=True, env={"PATH": os.environ["PATH"]})
        lines = (copy / ".env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    # --- databases ---------------------------------------------------------------------

    def _as_postgres(self) -> dict[str, Any]:
        """Return options of `subprocess` for programs that refuse to run as root."""
        return {"user": "nobody" if os.geteuid() == 0 else None, "cwd": "/"}

    def _database_environ(self, name: str) -> dict[str, str]:
        found = programs()
        assert found is not None
        service = self._compose["services"][name]["environment"]
        given = {key: self.secrets[value.partition(":?")[0][2:]] for key, value in service.items() if ":?" in value}
        data = str(self._databases / name)
        return {"PATH": f"{found}:{os.environ['PATH']}", "PGDATA": data, **given}

    def _new_directory(self, name: str) -> Path:
        directory = self._databases / name
        directory.mkdir(mode=0o700)
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(directory, user.pw_uid, user.pw_gid)
        return directory

    def _script(self, name: str) -> Path:
        """Return a script of the directory, where the user of the databases can read it."""
        copy = self._databases / name
        shutil.copy(COMPOSE / name, copy)
        copy.chmod(0o644)
        return copy

    def _start_primary(self) -> None:
        """Do what the image of PostgreSQL does at its first start."""
        data, environ = self._new_directory("db-1"), self._database_environ("db-1")
        sockets = self._new_directory("sockets")
        run = {**self._as_postgres(), "env": environ, "check": True, "timeout": TIMEOUT_SECONDS}
        password = self._databases / "password"
        password.write_text(environ["POSTGRES_PASSWORD"])
        words = ("--username", "postgres", "--pwfile", password, "--auth-host", "scram-sha-256")
        subprocess.run(("initdb", "-D", data, "--auth-local", "trust", *words), capture_output=True, **run)
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all scram-sha-256\n")
        temporary = f"-c listen_addresses='' -c unix_socket_directories={sockets}"
        log = ("-l", data / "first.log", "-s")
        subprocess.run(("pg_ctl", "start", "-w", *log, "-D", data, "-o", temporary), **run)
        run["env"] = {**environ, "PGHOST": str(sockets)}
        subprocess.run(("sh", self._script("primary.sh")), **run)
        subprocess.run(("pg_ctl", "stop", "-w", "-s", "-m", "fast", "-D", data), **run)
        self._run_database("db-1", ("postgres", *OPTIONS, "-c", f"port={self._ports['db-1']}"), environ)

    def _start_standby(self) -> None:
        self._new_directory("db-2")
        environ = self._database_environ("db-2")
        environ |= {"PRIMARY_HOST": "127.0.0.1", "PRIMARY_PORT": str(self._ports["db-1"])}
        command = ("sh", self._script("standby.sh"), *OPTIONS, "-c", f"port={self._ports['db-2']}")
        self._run_database("db-2", command, environ)

    def _run_database(self, name: str, command: tuple[str | Path, ...], environ: dict[str, str]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._as_postgres()
            )

    async def until_database(self, name: str, condition: str) -> None:
        """Wait until a query on a database returns true."""
        url = f"postgresql://postgres:{self.secrets['POSTGRES_PASSWORD']}@127.0.0.1:{self._ports[name]}/postgres"
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while True:
                    with suppress(OSError, *_not_ready()):
                        if await with_connection(url, lambda db: db.fetchval(condition)):
                            return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError((self._directory / f"{name}.log").read_text()) from None

    async def kill_primary(self) -> None:
        """Kill the primary."""
        await asyncio.to_thread(_kill, self._processes.pop("db-1"))

    async def promote(self) -> None:
        """Promote the standby."""
        await self.until_database("db-2", "SELECT pg_promote()")

    # --- nodes and proxy ---------------------------------------------------------------

    def _local(self, text: str) -> str:
        """Replace the names, ports and paths of the containers."""
        for name in ("node-1", "node-2"):
            text = text.replace(f"{name}:8080", f"127.0.0.1:{self._ports[name]}")
        text = text.replace("localhost:8080", f"localhost:{self._ports['proxy']}")
        return text.replace("/srv/projects", str(self.projects))

    def _node(self, name: str) -> ResidentProcess:
        program, serve, *arguments = self._compose["services"][name]["command"]
        assert (program, serve) == ("parley", "serve")
        port = str(self._ports[name])
        login = f"parley:{self.secrets['PARLEY_DB_PASSWORD']}"
        hosts = ",".join(f"127.0.0.1:{self._ports[one]}" for one in ("db-1", "db-2"))
        return ResidentProcess(
            self._model,
            self._directory / name / "home",
            config=self._local((COMPOSE / "config.toml").read_text()),
            arguments=[port if one == "8080" else self._local(one) for one in arguments],
            env={
                "PARLEY_STORE_URL": f"postgresql://{login}@{hosts}/parley",
                "PARLEY_NODE_TOKEN": self.secrets["PARLEY_NODE_TOKEN"],
            },
        )

    def _start_proxy(self) -> None:
        settings = self._local((COMPOSE / "haproxy.cfg").read_text())
        path = self._directory / "haproxy.cfg"
        path.write_text(settings.replace("bind :8080", f"bind 127.0.0.1:{self._ports['proxy']}"))
        subprocess.run(("haproxy", "-c", "-q", "-f", path), check=True)
        with (self._directory / "proxy.log").open("wb") as log:
            self._processes["proxy"] = subprocess.Popen(("haproxy", "-db", "-f", path), stdout=log, stderr=log)
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._ports["proxy"])):
                return
            time.sleep(0.02)
        raise AssertionError((self._directory / "proxy.log").read_text())

    async def token(self) -> str:
        """Create a token as the documentation describes."""
        words = ("token", "create", "ada", "--role", "admin", "--json")
        code, out, errors = await parley(*words, env=self.nodes["node-1"].environ)
        assert code == 0, errors
        return str(json.loads(out)["token"])

    async def kill_node(self, pid: int) -> None:
        """Kill the node with a process id."""
        (node,) = [one for one in self.nodes.values() if one.process.pid == pid]
        node.process.kill()
        await node.process.wait()


def _kill(server: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a database server."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in (server.pid, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.wait(TIMEOUT_SECONDS)


def _not_ready() -> tuple[type[Exception], ...]:
    from asyncpg import InterfaceError, PostgresError

    return InterfaceError, PostgresError
