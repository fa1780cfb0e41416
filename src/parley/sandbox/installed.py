"""Explains to the model that commands cannot write to directories in which Parley itself is installed."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from parley.common.paths import is_below
from parley.errors import SandboxUnavailable
from parley.ports.commands import CommandResult, Output
from parley.sandbox.paths import real_cwd
from parley.sandbox.resolved_policy import ResolvedPolicy
from parley.wire.events import OutputStream
from parley.wire.text import quoted

__all__ = ["Denials", "refuse_installed"]

_READ_ONLY: Final = (b"read-only file system", b"erofs")
_FORBIDDEN: Final = (b"permission denied", b"eacces")
"""Lower-case phrases in the error messages of programs whose writes Landlock denied."""
_LONGEST: Final = max(map(len, (*_READ_ONLY, *_FORBIDDEN)))
_MAX_NAMED: Final = 3


def refuse_installed(policy: ResolvedPolicy, cwd: str) -> None:
    """Check that the command's working directory is not in a root that is read-only because Parley is installed
    there.

    Raises:
        SandboxUnavailable: the working directory is in a root where Parley is installed.
    """
    if not policy.refused:
        return
    if (real := real_cwd(cwd)) is None:
        return
    within = [root for root in (*policy.roots, *policy.refused) if is_below(real, root)]
    if within and max(within, key=len) in policy.refused:
        raise SandboxUnavailable(_refusal(max(within, key=len)))


def _refusal(root: str) -> str:
    why = "Parley itself is installed there, and Landlock cannot protect its files"
    return f"commands cannot write to {quoted(root)}: {why}; use bubblewrap, or install Parley elsewhere"


class Denials:
    """Forwards the output of a command, and detects error messages about denied writes to Parley's installation."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._tails: dict[OutputStream, bytes] = {}
        self._is_denied = False
        self._sentences: tuple[str, ...] = ()
        self._words: tuple[bytes, ...] = ()

    def begin(self, policy: ResolvedPolicy) -> None:
        """Set the policy of the command. The policy determines how denied writes are detected and explained."""
        named = ", ".join(map(quoted, policy.installed[:_MAX_NAMED]))
        protected = f"{named}: Parley itself is installed here, so it is read-only for commands"
        self._sentences = (*((protected,) if named else ()), *map(_refusal, policy.refused))
        self._words = (*(_READ_ONLY if named else ()), *(_FORBIDDEN if policy.refused else ()))

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        if self._sentences and not self._is_denied:
            text = self._tails.get(stream, b"") + data.lower()
            self._is_denied = any(words in text for words in self._words)
            self._tails[stream] = text[-_LONGEST:]
        self._output(stream, data)

    def explained(self, ended: CommandResult) -> CommandResult:
        """Return `ended`, the result of the command. If the command failed and has reported a denied write, append
        an explanation to the stderr output of the command and to the remarks of the returned result.
        """
        if not self._is_denied or ended.exit_code == 0:
            return ended
        for sentence in self._sentences:
            self._output("stderr", f"{sentence}\n".encode())
        return replace(ended, remarks=(*ended.remarks, *self._sentences))
