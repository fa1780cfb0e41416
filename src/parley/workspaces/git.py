"""Runs Git in the sandbox, without hooks, helpers and settings of the user.

The repository and the files of a worktree are not trusted. Git gets its settings only from environment variables,
which take precedence over every file, and may use only the protocol in the URL of the repository. Commands that the
model runs do not get these variables.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import stat
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from parley.common.git_addresses import GIT_SEARCH_PATH, GitAddress, parse_git_address
from parley.common.paths import is_below
from parley.config.types import Repository, Settings
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Command, CommandRunner, SandboxPolicy, WritableRoot
from parley.wire.events import OutputStream

__all__ = ["LOCAL_SECONDS", "NETWORK_SECONDS", "Git", "GitFailed", "Remote", "expanded"]

LOCAL_SECONDS: Final = 300.0
"""The timeout, in seconds, for a Git command that uses only the disk."""
NETWORK_SECONDS: Final = 1800.0
"""The timeout, in seconds, for a Git command that uses the network. The timeout is long because the first fetch of
a large repository takes a long time.
"""

_MAX_OUTPUT_BYTES: Final = 1024 * 1024
_READ_INPUT: Final = ("/bin/sh", "-c", 'exec "$0" "$@" <&3')
"""The beginning of a command line that runs a program with descriptor 3 as its stdin."""
_MAX_ERROR_CHARACTERS: Final = 600
_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_FROM_SERVER: Final = (*_PROXIES, "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""The environment variables of the server that are passed to Git commands with network access."""

_VARIABLES: Final = {
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "PATH": GIT_SEARCH_PATH,
}
_SETTINGS: Final = {
    "commit.gpgSign": "false",
    "core.askPass": "",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.logAllRefUpdates": "false",
    "core.untrackedCache": "false",
    "credential.helper": "",
    "diff.ignoreSubmodules": "all",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",
    "gc.auto": "0",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "60",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.ext.allow": "never",
    "push.gpgSign": "false",
    "push.recurseSubmodules": "no",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
}


class GitFailed(Exception):
    """Raised when a Git command fails. The message contains neither secrets nor the URL of the repository."""


class Remote(Struct, frozen=True, kw_only=True):
    """A configured repository with its credentials."""

    name: str
    address: GitAddress
    password: str | None
    ssh_key: str | None
    ssh_known_hosts: str | None

    @classmethod
    def of(cls, name: str, repository: Repository, environ: Mapping[str, str]) -> Remote:
        """Create a `Remote` from the settings of the repository with the name `name`. `environ` are the server's
        environment variables, one of which may contain the password.

        Raises:
            GitFailed: the environment variable that must contain the password is not set.
        """
        address = parse_git_address(repository.url or "")
        password = address.password
        if repository.token_env is not None:
            password = environ.get(repository.token_env)
            if not password:
                raise GitFailed(f"the environment variable {repository.token_env} is not set")
        return cls(
            name=name,
            address=address,
            password=password,
            ssh_key=expanded(repository.ssh_key, environ),
            ssh_known_hosts=expanded(repository.ssh_known_hosts, environ),
        )

    @property
    def settings(self) -> dict[str, str]:
        """The Git settings for this repository. They may contain the password of the repository."""
        found = {
            "remote.origin.url": self.address.url,
            "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
            f"protocol.{self.address.protocol}.allow": "always",
        }
        if self._login is not None:
            found[f"http.{self.address.url}.extraHeader"] = f"Authorization: Basic {self._login}"
        if self.address.protocol == "ssh":
            found["core.sshCommand"] = self._ssh
        return found

    @property
    def _login(self) -> str | None:
        if self.password is None or self.address.protocol not in ("http", "https"):
            return None
        login = f"{self.address.user or 'x-access-token'}:{self.password}"
        return base64.b64encode(login.encode(errors="surrogateescape")).decode()

    @property
    def _ssh(self) -> str:
        options = ["BatchMode=yes", "IdentitiesOnly=yes", "IdentityAgent=none", "StrictHostKeyChecking=yes"]
        options += ["ConnectTimeout=30", "ServerAliveInterval=15", "ServerAliveCountMax=4"]
        options += ["ForwardAgent=no", "ClearAllForwardings=yes", "PermitLocalCommand=no", "ControlMaster=no"]
        if self.ssh_known_hosts is not None:
            options.append(f"UserKnownHostsFile={self.ssh_known_hosts}")
        key = () if self.ssh_key is None else ("-i", self.ssh_key)
        return shlex.join(["ssh", "-F", "/dev/null", *(part for one in options for part in ("-o", one)), *key])

    @property
    def needed_files(self) -> tuple[str, ...]:
        """The paths that Git must be able to read to use this repository: the SSH key, the SSH `known_hosts` file,
        and the directory of a repository on this disk.
        """
        return tuple(path for path in (self.ssh_key, self.ssh_known_hosts, self.address.path) if path is not None)

    def redacted(self, text: str) -> str:
        """Return `text` with the URL and the secrets of this repository replaced by the name of the repository."""
        secrets = {self.address.url, self.address.path, self.password, self._login, self.ssh_key}
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, f"<{self.name}>")
        if self.address.protocol in ("http", "https"):
            text = text.replace(self.address.url.rstrip("/"), f"<{self.name}>")
        return text


class Git:
    """Runs Git commands for the turn of one conversation."""

    def __init__(self, commands: CommandRunner, settings: Settings, remote: Remote, directory: str) -> None:
        """Create the object. `commands` runs each Git command in the sandbox, `settings` are the settings of the
        turn, and `directory` is the directory with the clones and the worktrees.
        """
        self._commands, self._settings, self._remote, self._directory = commands, settings, remote, directory

    async def run(
        self,
        *arguments: str,
        writable: Sequence[str] = (),
        network: bool = False,
        variables: Mapping[str, str] = MappingProxyType({}),
        work_tree: str | None = None,
        seconds: float = LOCAL_SECONDS,
        stdin: bytes | None = None,
        max_output: int = _MAX_OUTPUT_BYTES,
        must_be_complete: bool = False,
        stdout_on_error: bool = False,
        exit_codes: tuple[int, ...] = (0,),
    ) -> str:
        """Run a Git command and return its stdout without the line feed at its end.

        `writable` are the directories that the command may write to. If `network` is True, the command can reach
        the repository over the network. `variables` are environment variables that name the Git directories that
        the command uses. `work_tree` is the path of the worktree; None if the command uses no worktree. `seconds`
        is the timeout of the command. `stdin` is the input of the command; None if the command reads no input.
        Output after the first `max_output` bytes is discarded. If `must_be_complete` is True, a longer stdout is an
        error. If `stdout_on_error` is True, the error message includes stdout. `exit_codes` are the exit codes that
        mean success.

        Raises:
            GitFailed: the command failed or could not be started, or its stdout must be complete and is too long.
        """
        program = shutil.which("git", path=GIT_SEARCH_PATH)
        if program is None:
            raise GitFailed("git is not installed")
        remote = self._remote
        settings = {**_SETTINGS, **remote.settings} if network else _SETTINGS
        env = {**_VARIABLES, "GIT_ALLOW_PROTOCOL": remote.address.protocol if network else "none"}
        if network:
            env |= {name: value for name in _FROM_SERVER if (value := self._settings.environ.get(name))}
        env |= variables
        env |= {"GIT_WORK_TREE": work_tree} if work_tree is not None else {}
        env["GIT_CONFIG_COUNT"] = str(len(settings))
        for index, (key, value) in enumerate(settings.items()):
            env[f"GIT_CONFIG_KEY_{index}"], env[f"GIT_CONFIG_VALUE_{index}"] = key, value
        printed: dict[OutputStream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        truncated: set[OutputStream] = set()

        def output(stream: OutputStream, data: bytes) -> None:
            left = max_output - len(printed[stream])
            printed[stream] += data[:left]
            if len(data) > left:
                truncated.add(stream)

        repository = remote.address.path if network else None
        try:
            result = await self._commands.run(
                Command(
                    argv=(*(() if stdin is None else _READ_INPUT), program, *arguments),
                    files=() if stdin is None else (stdin,),
                    cwd=work_tree or self._directory,
                    env=env,
                    timeout_seconds=seconds,
                    policy=SandboxPolicy(
                        writable=_roots(writable, repository),
                        network=network and remote.address.protocol != "file",
                        hidden=self._hidden(network=network),
                        mechanism=self._settings.sandbox.mechanism,
                    ),
                ),
                output=output,
            )
        except (CommandNotStarted, SandboxUnavailable) as error:
            raise GitFailed(remote.redacted(str(error))) from None
        if result.exit_code in exit_codes and not result.timed_out:
            if must_be_complete and "stdout" in truncated:
                raise GitFailed(f"git {arguments[0]} printed more than {max_output:,} bytes")
            return printed["stdout"].decode(errors="surrogateescape").removesuffix("\n")
        if result.timed_out:
            raise GitFailed(f"git {arguments[0]} took longer than {seconds:g} seconds")
        text = printed["stderr"] + (b"\n" + printed["stdout"] if stdout_on_error else b"")
        raise GitFailed(self._explained(arguments[0], text.decode(errors="replace")))

    def _hidden(self, *, network: bool) -> tuple[str, ...]:
        needed = self._remote.needed_files if network else ()
        hidden = self._settings.withheld_paths
        return tuple(path for path in hidden if not any(is_below(one, path) for one in needed))

    def _explained(self, command: str, stderr: str) -> str:
        text = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", self._remote.redacted(stderr)).strip()
        return f"git {command}: {text[-_MAX_ERROR_CHARACTERS:] or 'failed without a message'}"


def expanded(path: str | None, environ: Mapping[str, str]) -> str | None:
    """Return a path from the settings with a leading `~/` replaced by the user's home directory; None if `path` is
    None.
    """
    if path is None or not path.startswith("~/"):
        return path
    return os.path.join(environ.get("HOME") or os.path.expanduser("~"), path.removeprefix("~/"))


def _roots(paths: Sequence[str], repository: str | None) -> tuple[WritableRoot, ...]:
    """Return the writable roots for the directories `paths` and, unless `repository` is None, for the directory
    `repository`.

    Only `repository` may be a symbolic link.
    """
    others = () if repository is None else (os.path.realpath(repository),)
    return tuple(map(_root, (*paths, *others)))


def _root(path: str) -> WritableRoot:
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    try:
        found = os.lstat(real)
    except OSError as error:
        raise GitFailed(f"a directory cannot be used: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise GitFailed(f"{os.path.basename(path)} is not a directory")
    return WritableRoot(path=real, device=found.st_dev, inode=found.st_ino)
