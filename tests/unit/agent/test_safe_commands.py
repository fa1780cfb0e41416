"""The commands that need no approval: by their arguments, their names and the locations of their programs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from parley.agent.safe import is_safe
from parley.ports.tools import RunCommand
from parley.wire.ids import CallId


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that the agent cannot write to, with a program of every requested name."""
    place = tmp_path_factory.mktemp("programs")
    names = (
        "bash sh zsh cat cd echo false grep head ls nl pwd rg tail true wc which find git sed rm env cargo python3"
    )
    for name in names.split():
        make_program(place / name)
    return place


def make_program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o755)


def run_command(*argv: str, search_path: str | None, cwd: str = "/project", home: str | None = None) -> RunCommand:
    return RunCommand(call_id=CallId("call"), argv=argv, cwd=cwd, search_path=search_path, home=home)


SAFE = """
cat
cat a.txt b.txt
cat -n a -- -x
cat -vETn a
cat --number a -
cd
cd src
cd -P src
cd -- -x
echo -n 'rm -rf /' $HOME
false --whatever
find
find . -name '*.py' -not -path './.git/*'
find . -type f,d -mtime -7 -size +10k -perm -u+x
find -L . ( -name a -o -iname b ) -prune -o -print0
find . -maxdepth 2 -newermt '2 days ago' -printf '%p\\n' -ls
git status
git status -sb --porcelain=v2 -uno --ignored
git --no-pager log -5 --oneline
git log -n 3 -p -U5 --stat=100 --format='%h %an%x09%s' -- src
git log --pretty=oneline --since '2 weeks ago' --author=me -S text -L 1,5:a.py
git log --format=format:%C(auto)%H%n%+b%% --graph --all
git diff
git diff --cached --name-only -M90% HEAD~1 -- a b
git diff --no-ext-diff --no-textconv main...HEAD
git show HEAD:README.md
git show --stat --format=%B HEAD
git branch
git branch -avv --sort=-committerdate
git branch --show-current
git branch --list 'feature/*'
git branch --contains HEAD~3
git branch --merged
git branch -r --no-merged=main
grep -rn --include='*.py' -A3 -e TODO src
grep -E 'a|b' file -i
grep -3 --color=never x y
grep -inC2 x -- -f
head
head -20 a
head -n 5 -qc10 a b
head -n -5 a
head --lines=3 a
ls
ls -la --color=auto src
ls -lt --sort=size -I '*.o' -w 80
nl -ba -w3 a
nl -b a -s ': ' a
pwd
pwd -P
rg --files -g '!*.lock' --hidden
rg -nS -C 3 -tpy 'def main' src
rg -uu --max-depth 2 --sort path x
sed -n 1,200p a.txt
sed -n 7p a.txt b.txt
sed -n 1,200p
sed -n 10,$p a
sed -n '1,20p;40,60p;$p' a
sed -n -e 1,5p a b
tail -n 5 +1 +x
tail -n +5 a
tail -5 a b
true
true -x
wc -l a b
wc --lines
which -a git python3
/bin/ls -l
/usr/bin/wc -l a
bash -lc 'ls -la && cat README.md | head -n 3'
bash -c 'cd src; pwd; git diff'
sh -c 'rg --files | wc -l'
/bin/bash -lc "grep -rn 'a b' ."
/bin/sh -c true
bash -c 'nl -ba a | sed -n 1,80p'
bash -lc 'git diff HEAD~1 main^^ 2>/dev/null | head -n 5'
bash -lc 'ls a 2>&1 >/dev/null && echo "=== a ==="'
bash -c 'grep -rn "foo\\|bar" .'
"""

ASKED = """
rm -rf x
env
python3 -c pass
cargo check
zsh -c ls
./ls
bin/ls
/opt/bin/ls
/bin//ls
/bin/../tmp/ls
/usr/local/bin/ls
/bin//usr/bin/ls
//bin/ls
Ls
''
cat --help
cat -nq a
cat --numb a
cat --number=3 a
cd a b
cd -e a
find . -exec rm {} ;
find . -execdir rm {} +
find . -ok rm {} ;
find . -okdir rm {} ;
find . -delete
find . -fprint x
find . -fprint0 x
find . -fprintf x y
find . -fls x
find . -files0-from x
find -files0-from x
find . -name -delete
find . -name
find . -newerXY a
find . -mtime -delete
find . -type x
find . -perm -exec
find -D exec .
find -O3 .
find . -printf '%p' -delete
git
git --version
git -c core.pager=sh log
git -C /elsewhere status
git --git-dir=x status
git --exec-path=x log
git --no-pager
git --no-pager --no-pager log
git -p log
git push
git commit
git checkout .
git config -l
git stash
git Status
git status -v
git status --no-optional-locks
git log --output=x
git log --outp=x
git log --output x
git log -o x
git log --ext-diff
git log --textconv
git log --show-signature
git log --format=%G?
git log --format='%h %GG'
git log --format='%+G?'
git log --pretty=format:%GK
git log --format='%(describe)'
git log --format='%<(20)%G?'
git log --pretty=mine
git log --pretty=reference
git log --stdin
git log --submodule=diff
git log --remerge-diff
git log -n --output=x
git log -n
git log -O/tmp/order
git log --abbre
git diff --no-index a b
git diff -O x
git diff --output=x
git diff --ext-diff
git diff --textconv
git diff --submodule
git diff -pO
git diff --no-e
git show --output=x HEAD
git branch new
git branch -v new
git branch -a new
git branch -d old
git branch -D old
git branch -m a b
git branch -c a b
git branch -f a b
git branch -vd old
git branch -l new
git branch --delete old
git branch --move a
git branch --edit-description
git branch --set-upstream-to=a
git branch --unset-upstream
git branch -u a
git branch -t a b
git branch --format='%(refname)'
git branch --sort --list new
git branch --sort=--list new
git branch --show-current new
git branch --abbrev new
git branch -- --list new
git branch --list -d x
grep -f patterns x
grep --file=patterns x
grep -rf patterns
grep --exclude-from=x y
grep -e
grep -A x y
grep --colo=never x
grep -z x y
head -n
head -n x a
head --bytes --lines a
ls --he
ls -lD
ls --hyperlink=x;y
nl --help
pwd x
pwd --help
rg --pre cat x
rg --pre=cat x
rg --pre-glob x y
rg -z x
rg --search-zip x
rg --hostname-bin=x y
rg -f x
rg --file x
rg --ignore-file x y
rg --hyperlink-format=x y
rg -nz x
rg -e -z
rg -e -- x
sed -n 1,200p -i
sed -i 1,200p a
sed -n 1,200w a
sed -n 1e a
sed -n '1p;w x' a
sed -n '1,2pw x' a
sed -n p a
sed -n 1,p a
sed -n ,2p a
sed -n ٣p a
sed -n '1p;' a
sed -n '1p; 2p' a
sed -n '1p 2p' a
sed -n 1pp a
sed -n '$!p' a
sed -n -e
sed -n -e p a
sed -n -e 1p -e 'w x' a
sed -n -e 1p -i a
sed -n 1p a ''
sed -n 1p ''
sed 1p a
sed -ne 1p a
tail -f a
tail -F a
tail --follow a
tail -5f a
tail -n5f a
tail +f a
tail +1f a
tail +f
tail +10cf a
tail -- +bf
tail -n 5 +1lf
tail --retry a
tail --pid=1 a
wc --files0-from=x
wc --files0-from x
which -s a
which --read-alias a
bash
bash -lc
bash -lc ''
bash -lc ls -la
bash -l -c ls
bash -cl ls
bash -ic ls
bash -xc ls
bash --norc -c ls
sh -lc ls
sh ls
bash -c 'ls; rm x'
bash -c 'ls > x'
bash -c 'ls &'
bash -c 'cat $(rm x)'
bash -c 'cat `rm x`'
bash -c 'cat $HOME'
bash -c 'cat *'
bash -c 'X=1 ls'
bash -c './ls'
bash -c '/opt/ls'
bash -c 'ls #'
bash -c 'eval ls'
bash -c 'alias ls=rm'
bash -c 'command ls'
bash -c 'bash -c ls'
bash -c 'time ls'
bash -c '! ls'
bash -c '-s'
bash -c 'ls && '
bash -c 'find . -delete'
bash -c 'echo a | tail -f'
bash -c 'ls >/dev/nullx'
bash -c 'ls 1>x'
bash -c 'ls | sed -n 1w x'
/tmp/bash -c ls
"""


def lines(table: str) -> list[tuple[str, ...]]:
    return [tuple(shlex.split(line)) for line in table.strip().splitlines()]


@pytest.mark.parametrize("argv", lines(SAFE), ids=shlex.join)
def test_commands_that_only_read_are_safe(programs: Path, argv: tuple[str, ...]) -> None:
    assert is_safe(run_command(*argv, search_path=str(programs), home="/home/user"), ["/project", "/tmp/scratch"])


@pytest.mark.parametrize("argv", lines(ASKED), ids=shlex.join)
def test_commands_that_could_do_more_are_not_safe(programs: Path, argv: tuple[str, ...]) -> None:
    assert not is_safe(run_command(*argv, search_path=str(programs), home="/home/user"), ["/project"])


def test_no_command_at_all_is_not_safe(programs: Path) -> None:
    assert not is_safe(run_command(search_path=str(programs)), [])


@pytest.mark.parametrize(
    "action",
    [
        run_command("ls", "a\0b", search_path="/bin"),
        run_command("ls\0", search_path="/bin"),
        run_command("bash", "-c", "ls 'a\0b'", search_path="/bin"),
        run_command("ls", search_path="/bin", cwd="/a\0b"),
    ],
    ids=["in a word", "in the program", "in a script", "in the directory"],
)
def test_a_nul_character_is_never_safe(action: RunCommand) -> None:
    assert not is_safe(action, [])


# --- the location of the program ---------------------------------------------------------------


def is_safe_in(search_path: str | None, *writable: Path) -> tuple[bool, bool]:
    """Return whether a command is safe by itself, and in a shell."""
    alone, in_shell = ("ls", "-l"), ("bash", "-c", "ls -l")
    return (
        is_safe(run_command(*alone, search_path=search_path), list(map(str, writable))),
        is_safe(run_command(*in_shell, search_path=search_path), list(map(str, writable))),
    )


def test_a_program_that_the_agent_can_write_is_not_safe(tmp_path: Path, programs: Path) -> None:
    make_program(tmp_path / "venv/bin/ls")
    search_path = f"{tmp_path}/venv/bin:{programs}"

    assert is_safe_in(search_path, tmp_path) == (False, False)
    assert is_safe_in(search_path, tmp_path / "elsewhere") == (True, True)


def test_a_place_that_the_agent_can_write_may_stand_first_as_long_as_it_has_no_such_program(
    tmp_path: Path, programs: Path
) -> None:
    (tmp_path / "bin").mkdir()

    assert is_safe_in(f"{tmp_path}/bin:{programs}", tmp_path) == (True, True)


def test_a_shell_that_the_agent_can_write_is_not_safe(tmp_path: Path, programs: Path) -> None:
    make_program(tmp_path / "bash")

    assert is_safe_in(f"{tmp_path}:{programs}", tmp_path) == (True, False)


def test_a_file_that_cannot_run_still_hides_the_program_after_it(tmp_path: Path, programs: Path) -> None:
    (tmp_path / "ls").touch(mode=0o644)

    assert is_safe_in(f"{tmp_path}:{programs}", tmp_path) == (False, False)
    assert is_safe_in(f"{tmp_path}:{programs}") == (False, False)


def test_links_are_followed_and_count_by_themselves(tmp_path: Path, programs: Path) -> None:
    reach, place = tmp_path / "reach", tmp_path / "place"
    make_program(reach / "ls")
    place.mkdir()
    (place / "ls").symlink_to(reach / "ls")
    (reach / "links").mkdir()
    (reach / "links/ls").symlink_to(programs / "ls")
    (tmp_path / "way").symlink_to(reach)

    assert is_safe_in(f"{place}:{programs}", reach) == (False, False)
    assert is_safe_in(f"{reach}/links:{programs}", reach) == (False, False)
    assert is_safe_in(f"{tmp_path}/way:{programs}", reach) == (False, False)


@pytest.mark.parametrize("search_path", [None, "", ".", "bin", ":{}", "{}:", "{}:.", "{}::/bin", "{}:~/bin"])
def test_a_search_path_that_depends_on_the_directory_is_not_safe(programs: Path, search_path: str | None) -> None:
    assert is_safe_in(search_path and search_path.format(programs)) == (False, False)


def test_a_program_that_is_not_there_is_not_safe(tmp_path: Path) -> None:
    assert is_safe_in(str(tmp_path)) == (False, False)


def test_where_all_may_be_written_nothing_is_safe(programs: Path) -> None:
    assert is_safe_in(str(programs), Path("/")) == (False, False)
    assert not is_safe(run_command("/bin/ls", search_path=None), ["/"])


def test_in_a_login_shell_programs_of_the_users_own_count_as_well(tmp_path: Path, programs: Path) -> None:
    home, tools = tmp_path / "home", tmp_path / "tools"
    make_program(tools / "ls")
    (home / ".local").mkdir(parents=True)
    (home / ".local/bin").symlink_to(tools)

    def safe(flag: str, *writable: Path) -> bool:
        action = run_command("bash", flag, "ls -l", search_path=str(programs), home=str(home))
        return is_safe(action, list(map(str, writable)))

    assert (safe("-c", tools), safe("-lc", tools), safe("-lc", tmp_path / "other")) == (True, False, True)


def test_in_a_login_shell_programs_of_the_system_count_as_well(programs: Path) -> None:
    def safe(flag: str) -> bool:
        action = run_command("bash", flag, "ls -l", search_path=str(programs), home="/home/user")
        return is_safe(action, ["/usr"])

    assert (safe("-c"), safe("-lc")) == (True, False)


def test_a_program_named_with_its_place_needs_no_search_path() -> None:
    assert is_safe(run_command("/bin/ls", search_path=None), ["/project"])


# --- the start-up files of a login shell ---------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "writable", "login", "plain"),
    [
        ("/home/user", ["/home/user/project"], True, True),
        ("/home/user", ["/home/user"], False, True),
        ("/home/user", ["/home"], False, True),
        ("/home/user", [], True, True),
        ("", [], False, True),
        ("user", [], False, True),
    ],
)
def test_a_login_shell_is_safe_where_the_agent_cannot_write_its_files(
    programs: Path, home: str, writable: list[str], login: bool, plain: bool
) -> None:
    def safe(flag: str) -> bool:
        return is_safe(run_command("bash", flag, "ls", search_path=str(programs), home=home), writable)

    assert (safe("-lc"), safe("-c")) == (login, plain)


def test_a_login_file_that_is_a_link_into_the_workspace_is_not_safe(tmp_path: Path, programs: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "dotfiles"
    home.mkdir()
    workspace.mkdir()
    (home / ".bash_profile").symlink_to(workspace / "bash_profile")
    action = run_command("bash", "-lc", "ls", search_path=str(programs), home=str(home))

    assert not is_safe(action, [str(workspace)])
    assert is_safe(action, [str(tmp_path / "other")])


def test_the_users_own_home_counts_where_none_is_named(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    action = run_command("bash", "-lc", "ls", search_path=str(programs))

    assert (is_safe(action, [str(tmp_path)]), is_safe(action, ["/project"])) == (False, True)
