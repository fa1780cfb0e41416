"""On kernels that lack a feature, commands run in another sandbox or are refused. They never run unconfined.

The server is a real process. Its kernel is made to appear to lack namespaces, Landlock or bubblewrap.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kit.builders.trees import patch, tree
from kit.system.kernels import Lack, on_kernel
from kit.system.needs import BUBBLEWRAP, LANDLOCK
from parley.client import Approval, Client, ServerProcess, connect
from parley.testing import Call, ScriptedModel
from parley.testing.home import MODEL, Home
from parley.wire.tools import ApprovalPolicy, SandboxMode

NO_NAMESPACES: Final = (
    "bubblewrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged"
    " user namespaces"
)
REFUSED: Final = "no sandbox is available on this system: "


class Kernel(NamedTuple):
    """The features that a kernel lacks, and the expected results."""

    lacks: tuple[Lack, ...]
    mechanism: str | None
    why_none: tuple[str, ...] = ()
    """The reasons in the refusal if no mechanism is left."""


KERNELS: Final = {
    "one without user namespaces": Kernel((Lack.USER_NAMESPACES,), "landlock"),
    "one with useless user namespaces": Kernel((Lack.RIGHTS_IN_NAMESPACES,), "landlock"),
    "one without bubblewrap": Kernel((Lack.BUBBLEWRAP,), "landlock"),
    "one without Landlock": Kernel((Lack.LANDLOCK,), "bubblewrap"),
    "one without both": Kernel(
        (Lack.USER_NAMESPACES, Lack.LANDLOCK), None, (NO_NAMESPACES, "; Landlock: the kernel does not have it")
    ),
    "one without bubblewrap and with Landlock switched off": Kernel(
        (Lack.BUBBLEWRAP, Lack.LANDLOCK_SWITCHED_ON),
        None,
        ("bubblewrap: it is not installed; Landlock: it is disabled in the kernel",),
    ),
}

BRIEFLY: Final = frozenset({"one with useless user namespaces", "one without Landlock", "one without both"})
"""The kernels with which `make test` runs commands: one for each mechanism, and one without any."""

ALL: Final = [pytest.param(kernel, marks=(BUBBLEWRAP, LANDLOCK), id=name) for name, kernel in KERNELS.items()]
"""The cases. Each case needs a computer with both bubblewrap and Landlock, because it removes one of them."""

LOOK: Final = """
echo x 2>/dev/null > inside && echo inside
echo x 2>/dev/null > "$1/outside" && echo outside
[ "$(readlink /proc/self/ns/pid)" = "$2" ] && echo among all processes
cat "$3/config.toml" >/dev/null 2>&1 && echo settings of the server
exit 0
"""
"""A script that prints where it can write, whether it sees only its own processes, and whether it can read hidden
files.
"""

CONFINED: Final[tuple[SandboxMode, ...]] = ("read-only", "workspace-write")

ANYWHERE: Final = "inside\noutside\namong all processes\nsettings of the server\n"


def sees(mechanism: str, mode: SandboxMode) -> str:
    """Return the expected output of the command in the sandbox."""
    inside = "inside\n" if mode == "workspace-write" else ""
    return inside + ("among all processes\n" if mechanism == "landlock" else "")


class Server:
    """A server on such a kernel, and the outputs that its model gets."""

    def __init__(self, client: Client, model: ScriptedModel, home: Home, outside: Path) -> None:
        self._client, self._model, self._home, self._outside = client, model, home, outside
        self.approvals: list[Approval] = []

    @property
    def work(self) -> Path:
        return self._home.work

    async def output_of(self, call: Call, mode: SandboxMode, policy: ApprovalPolicy = "never") -> str:
        """Return the output that the model gets for a call in a new conversation."""
        self._model.says(call)
        await self._client.codex(
            "go",
            model=MODEL,
            cwd=str(self.work),
            sandbox=mode,
            approval_policy=policy,
            config={
                "sandbox_workspace_write.exclude_slash_tmp": True,
                "sandbox_workspace_write.exclude_tmpdir_env_var": True,
            },
        )
        said = self._model.requests[-1].body["messages"][-1]["content"]
        assert isinstance(said, str)
        return said

    def log(self) -> str:
        return self._home.stderr_text()

    async def look(self, mode: SandboxMode, policy: ApprovalPolicy = "never") -> str:
        """Run `LOOK`. Return its output, or the reason why it did not run."""
        arguments = (str(self._outside), os.readlink("/proc/self/ns/pid"), str(self._home.path))
        words = ("sh", "-c", LOOK, "sh", *arguments)
        said = await self.output_of(Call("shell", {"command": words}, "c1"), mode, policy)
        return json.loads(said)["output"] if said.startswith("{") else said


@asynccontextmanager
async def serving(model: ScriptedModel, lacks: Sequence[Lack], outside: Path) -> AsyncIterator[Server]:
    home = Home(model)
    async with AsyncExitStack() as stack:
        home.open()
        stack.callback(home.close)
        asked: list[Approval] = []

        async def say_yes(approval: Approval) -> None:
            asked.append(approval)
            await approval.approve()

        client = await stack.enter_async_context(
            connect(
                ServerProcess(on_kernel(lacks, home.command), env=home.environ, cwd=home.work, stderr=home.stderr),
                on_approval=say_yes,
            )
        )
        server = Server(client, model, home, outside)
        server.approvals = asked
        yield server


@pytest.mark.promises("decide.no-sandbox", "sandbox.closed")
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(
            kernel, marks=(BUBBLEWRAP, LANDLOCK, *([] if name in BRIEFLY else [pytest.mark.long])), id=name
        )
        for name, kernel in KERNELS.items()
    ],
)
async def test_a_command_runs_in_what_there_is_or_not_at_all(
    parley_model: ScriptedModel, tmp_path: Path, kernel: Kernel
) -> None:
    async with serving(parley_model, kernel.lacks, tmp_path) as server:
        confined = {mode: await server.look(mode) for mode in CONFINED}
        patched = await server.output_of(add("new"), "workspace-write")
        unconfined = await server.look("danger-full-access")
        by_person = await server.look("read-only", "untrusted")
        await server.output_of(add("by-person"), "workspace-write", "untrusted")
        found = {*tree(server.work), *tree(tmp_path)}
        warned = server.log().count("Landlock does not prevent changes to files that control Git")

    if kernel.mechanism is None:
        assert_refused(confined.values(), f"exec command rejected: {REFUSED}", kernel.why_none)
        assert_refused([patched], f"patch rejected: {REFUSED}", kernel.why_none)
    else:
        assert confined == {mode: sees(kernel.mechanism, mode) for mode in confined}
    assert (unconfined, by_person, len(server.approvals)) == (ANYWHERE, ANYWHERE, 2)
    assert warned == (kernel.mechanism == "landlock")
    assert found == {"inside", "outside", "by-person", *(["new"] if kernel.mechanism else [])}


def add(name: str) -> Call:
    """Return a patch that adds a file."""
    return Call("shell", {"command": ("apply_patch", patch(f"*** Add File: {name}", "+x"))}, "c1")


def assert_refused(said: Iterable[str], beginning: str, why: tuple[str, ...]) -> None:
    for sentence in said:
        assert sentence.startswith(beginning + why[0])
        assert all(part in sentence for part in why)


@pytest.mark.promises("sandbox.doctor")
@pytest.mark.parametrize("kernel", ALL[1::2])
def test_the_doctor_says_what_is_used_and_what_is_missing(tmp_path: Path, kernel: Kernel) -> None:
    done = subprocess.run(
        on_kernel(kernel.lacks, (sys.executable, "-m", "parley", "doctor")),
        env={**os.environ, "PARLEY_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line)
    if kernel.mechanism is None:
        assert said["sandbox"].startswith(f"none: {kernel.why_none[0]}")
    else:
        assert said["sandbox"] == f"{kernel.mechanism}, the first that works"
    assert (done.returncode, done.stderr) == (1 if kernel.mechanism is None else 0, "")
