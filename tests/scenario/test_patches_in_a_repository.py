"""Patches in a real repository over several turns: the diff of a turn is the same as Git's diff."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from kit.builders.trees import patch
from kit.clients.codex_calls import EITHER_API, Wire, speaking
from kit.clients.patch_turns import calls_for, outputs, patch_output, shell_call, success, turn_diffs
from kit.system.needs import SANDBOX
from parley.testing import Call, ScriptedModel
from parley.testing.render import Api

_GIT_SECONDS: Final = 90


class Repository:
    """A directory as Git sees it."""

    def __init__(self, root: Path, **files: bytes) -> None:
        """Create a repository; `__` in a name stands for a dot."""
        self.root = root
        self.git("init", "--quiet")
        # Git guesses the function around a hunk and writes its name after the hunk header. The protocol has no such
        # names.
        (root / ".git/info").mkdir(exist_ok=True)
        (root / ".git/info/attributes").write_text("* diff=unnamed\n")
        for name, content in files.items():
            (root / name.replace("__", ".")).write_bytes(content)
        self.commit()

    def git(self, *arguments: str) -> str:
        settings = (
            "core.autocrlf=false",
            "core.fsmonitor=false",
            "commit.gpgSign=false",
            "diff.unnamed.xfuncname=^ no such line$",
            "gc.auto=0",
            "user.email=user@example.invalid",
            "user.name=user",
        )
        done = subprocess.run(
            ["git", *(word for setting in settings for word in ("-c", setting)), *arguments],
            cwd=self.root,
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
            capture_output=True,
            check=True,
            timeout=_GIT_SECONDS,
        )
        return done.stdout.decode()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a turn")

    def diff(self) -> str:
        """Return the changes since the last commit in the format of the protocol.

        Index lines have no mode, and a file that was renamed without changes has only its two names.
        """
        self.git("add", "--all")
        diff = self.git("diff", "--cached", "--full-index", "--find-renames", "--no-ext-diff")
        diff = re.sub(r"(?m)^(index \w+\.\.\w+) \d+$", r"\1", diff)
        return re.sub(r"(?m)^similarity index .*\nrename from .*\nrename to .*\n(?=index )", "", diff)


LONG: Final = b"".join(b"line %d\n" % number for number in range(1, 61))
APP: Final = b"""\
import sys


def greet(name):
    print("Hello, " + name)


def main():
    greet(sys.argv[1])


if __name__ == "__main__":
    main()
"""

ADDS = (
    patch("*** Add File: README.md", "+# A title", "+", "+Some words.", "*** Add File: empty.txt"),
    patch(
        *("*** Add File: src/app/näme.py", "+größe = 7"),
        *("*** Add File: with blanks.txt", "+a b c"),
        *("*** Add File: 日本語/説明.txt", "+こんにちは"),
    ),
)

CHANGES = (
    patch(
        *("*** Update File: crlf.txt", " one", "-two", "+TWO", "+two and a half", " three"),
        *("*** Update File: open.txt", " alpha", "-beta", "+BETA"),
        *("*** Update File: bom.txt", "-first", "+FIRST"),
    ),
    patch(
        *("*** Update File: long.txt", "@@ line 4", "-line 5", " line 6", "-line 7", "+line seven"),
        *("@@", " line 50", "+line fifty and a half"),
        *("*** Update File: app.py", "@@ def main():", "-    greet(sys.argv[1])", "+    greet(sys.argv[-1])"),
        *("*** Update File: src/app/näme.py", "-größe = 7", "+größe = 8"),
    ),
    patch("*** Update File: long.txt", "-line 60", "+the end", "*** End of File"),
)

MOVES = (
    patch(
        *("*** Delete File: README.md", "*** Delete File: empty.txt"),
        *("*** Update File: long.txt", "*** Move to: text/länger.txt", "-line 20", "+line twenty"),
        *("*** Update File: crlf.txt", "*** Move to: text/crlf.txt"),
        *("*** Update File: 日本語/説明.txt", "*** Move to: explanation.txt"),
    ),
    patch("*** Update File: text/länger.txt", "*** Move to: longer.txt", "-line 30", "+line thirty"),
    patch("*** Add File: crlf.txt", "+another of that name"),
)

MODES = (
    patch(
        *("*** Update File: app.py", "-import sys", "+import os, sys"),
        *("*** Update File: bom.txt", " FIRST"),  # changes nothing
        *("*** Update File: run.sh", "-true", "+false"),
        *("*** Add File: new.sh", "+true"),
    ),
    ("chmod", "755", "app.py", "bom.txt", "new.sh"),
    ("chmod", "644", "run.sh"),
    patch("*** Update File: app.py", "-    main()", "+    sys.exit(main())"),
)

BACK_AND_FORTH = (
    patch("*** Add File: passing.txt", "+x", "*** Delete File: open.txt"),
    patch("*** Delete File: passing.txt", "*** Update File: app.py", "-def main():", "+def run():"),
    patch("*** Add File: open.txt", "+alpha", "+BETA again"),
    patch("*** Update File: app.py", "-def run():", "+def main():"),
)

SWAPS = (
    patch(
        *("*** Update File: app.py", "*** Move to: passing.txt"),
        *("*** Update File: longer.txt", "*** Move to: app.py"),
        *("*** Update File: passing.txt", "*** Move to: longer.txt"),
        *("*** Delete File: explanation.txt", "*** Update File: open.txt", "*** Move to: explanation.txt"),
    ),
)

TURNS = {
    "adds": ADDS,
    "changes": CHANGES,
    "moves": MOVES,
    "modes": MODES,
    "back and forth": BACK_AND_FORTH,
    "swaps": SWAPS,
}


def _calls(steps: tuple[str | tuple[str, ...], ...]) -> list[Call]:
    """Return the calls for the steps. A string is a patch, and several strings are a command."""
    return [
        calls_for(step)[0] if isinstance(step, str) else shell_call(*step, call_id=f"x{number}")
        for number, step in enumerate(steps)
    ]


@pytest.mark.promises("patch.turn-diff", "patch.keeps")
@pytest.mark.parametrize("api", EITHER_API)
async def test_turn_after_turn_a_repository_changes_as_git_shows_it(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as wire:
        repository = Repository(
            wire.work,
            app__py=APP,
            bom__txt=b"\xef\xbb\xbffirst\nsecond\n",
            crlf__txt=b"one\r\ntwo\r\nthree\r\n",
            long__txt=LONG,
            open__txt=b"alpha\nbeta",
            run__sh=b"true\n",
        )
        (wire.work / "run.sh").chmod(0o755)
        repository.commit()

        for number, (name, steps) in enumerate(TURNS.items(), start=1):
            diffs = await _turn(wire, number, _calls(steps))

            assert diffs[-1] == repository.diff() != "", name
            repository.commit()

        assert repository.git("status", "--porcelain") == ""
        assert (wire.work / "text/crlf.txt").read_bytes() == b"one\r\nTWO\r\ntwo and a half\r\nthree\r\n"
        assert (wire.work / "bom.txt").read_bytes() == b"\xef\xbb\xbfFIRST\nsecond\n"


async def test_each_patch_of_a_turn_shows_all_that_git_shows_by_then(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        repository = Repository(wire.work, open__txt=b"alpha\nBETA", app__py=APP)
        expected: list[str] = []
        for number in range(1, len(BACK_AND_FORTH) + 1):
            diffs = await _turn(wire, number, _calls(BACK_AND_FORTH[:number]))
            expected.append(repository.diff())
            # The next turn repeats the steps of this turn, and adds one step.
            repository.git("reset", "--quiet", "--hard")

            assert diffs == expected


async def test_a_patch_that_keeps_an_open_end_open_reads_as_in_git(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        repository = Repository(wire.work, open__txt=b"alpha\nbeta")
        [diff] = await _turn(wire, 1, calls_for(patch("*** Update File: open.txt", " alpha", "-beta", "+BETA")))

        assert (wire.work / "open.txt").read_bytes() == b"alpha\nBETA"
        assert diff == repository.diff()
        assert diff.endswith("-beta\n\\ No newline at end of file\n+BETA\n\\ No newline at end of file\n")


async def test_names_are_read_from_the_root_of_the_repository_wherever_the_conversation_works(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as wire:
        repository = Repository(wire.work, top__txt=b"top\n")
        inner = wire.work / "inner"
        inner.mkdir()
        (inner / "a.txt").write_bytes(b"a\n")
        repository.commit()
        text = patch(
            *("*** Update File: a.txt", "-a", "+A"),
            *("*** Update File: ../top.txt", "-top", "+TOP"),
            *("*** Add File: deep/er/b.txt", "+b"),
        )
        parley_model.says(*calls_for(text))
        wire.codex(1, "go", cwd=str(inner), **{"approval-policy": "on-failure"})
        [diff] = turn_diffs(await wire.answer(1))

        assert diff == repository.diff()
    assert outputs(parley_model) == [("c1", patch_output(success("A deep/er/b.txt", "M a.txt", "M ../top.txt")))]


async def _turn(wire: Wire, number: int, calls: list[Call]) -> list[str]:
    """Run a turn in which the model makes these calls, one in each response. Return the diff after each patch."""
    for call in calls:
        wire.model.says(call)
    if number == 1:
        wire.codex(number, "go")
    else:
        wire.reply(number, "again")
    diffs = turn_diffs(await wire.answer(number))
    assert len(diffs) == sum(call.name == "apply_patch" for call in calls), outputs(wire.model)
    return diffs


RECORDING: Final = """\
#!/bin/sh
echo "$*" >> {record}
"""


@pytest.mark.promises("patch.no-git")
@SANDBOX
async def test_the_server_itself_never_runs_git(parley_model: ScriptedModel, tmp_path: Path) -> None:
    programs, record = tmp_path / "programs", tmp_path / "record"
    programs.mkdir()
    (programs / "git").write_text(RECORDING.format(record=record))
    (programs / "git").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    async with speaking(parley_model, env={"PATH": path}) as wire:
        repository = Repository(wire.work, long__txt=LONG, AGENTS__md=b"Be brief.\n")
        modes = "danger-full-access", "workspace-write"
        for number, sandbox in enumerate(modes, start=1):
            lines = f"line {number}", f"LINE {number}"
            parley_model.says(
                *calls_for(patch("*** Update File: long.txt", f"-{lines[0]}", f"+{lines[1]}")),
                shell_call("ls", call_id="c2"),
            )
            wire.codex(number, "go", sandbox=sandbox, config={"model_context_window": 1000})
            messages = await wire.answer(number)
            assert turn_diffs(messages) == [repository.diff()]
            repository.commit()
        runs_before = record.exists()

        parley_model.says(shell_call("git", "status", call_id="c3"))
        wire.codex(len(modes) + 1, "go")
        await wire.answer(len(modes) + 1)

        assert (runs_before, record.read_text()) == (False, "status\n")
