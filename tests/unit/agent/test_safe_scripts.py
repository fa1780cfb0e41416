"""The shell scripts that the check understands, and the commands in them."""

from __future__ import annotations

import pytest

from parley.agent.safe import commands_in


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("ls", [("ls",)]),
        ("  ls\t-la  ", [("ls", "-la")]),
        ("a && b || c ; d | e", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("a&&b||c;d|e", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("a\nb\n\n\nc\n", [("a",), ("b",), ("c",)]),
        ("a &&\n b |\n\n c", [("a",), ("b",), ("c",)]),
        ("a ;\n b;", [("a",), ("b",)]),
        ("a 'b c' \"d e\"", [("a", "b c", "d e")]),
        ('a \'it is "so"\' "it\'s"', [("a", 'it is "so"', "it's")]),
        ("a b'c'\"d\"e ''", [("a", "bcde", "")]),
        ("a '$x `y` \\ !' '*'", [("a", "$x `y` \\ !", "*")]),
        ("a 'x\ny' \"x\n\ty\"", [("a", "x\ny", "x\n\ty")]),
        ("a 'é \u00a0 日本'", [("a", "é \u00a0 日本")]),
        ("'l's -l", [("ls", "-l")]),
        ("a -x=y --z=/a/b,c:d@e%f+g", [("a", "-x=y", "--z=/a/b,c:d@e%f+g")]),
        ("a if then {}".replace("{}", "'{'"), [("a", "if", "then", "{")]),
        ("a HEAD~1 HEAD^ main^^~2 v1.0~", [("a", "HEAD~1", "HEAD^", "main^^~2", "v1.0~")]),
        ('a "b\\|c" "\\d+\\.e\\ "', [("a", "b\\|c", "\\d+\\.e\\ ")]),
        ("a '=b' \"=== c ===\" ''=", [("a", "=b", "=== c ===", "=")]),
        ("a b 2>/dev/null | c >/dev/null 2>&1; d 2>&1&& e", [("a", "b"), ("c",), ("d",), ("e",)]),
        ("a 2>&1 b", [("a", "b")]),
        ("", []),
        (" \n ", []),
    ],
)
def test_plain_scripts_are_their_commands(script: str, commands: list[tuple[str, ...]]) -> None:
    assert commands_in(script) == commands


@pytest.mark.parametrize(
    "script",
    [
        *("a $x", 'a "$x"', "a ${x}", "a $(b)", "a `b`", 'a "`b`"', "a $((1))", "a $'b'", 'a $"b"'),
        *("a *", "a ?", "a [b]", "a {b,c}", "a ~", "a ~/b", "a b=~", "a #b", "# a", "a \\b", "a \\\nb"),
        *(
            "a 1>/dev/null",
            "a b1>/dev/null",
            "a 12>/dev/null",
            "a>/dev/null",
            "a >/dev/null/x",
            "a 2>&12",
            "a 2>&1'b'",
        ),
        *(
            "a >>/dev/null",
            "a &>/dev/null",
            "2>&1 a",
            "a; 2>&1",
            "a | >/dev/null",
            "a |2>&1",
            "a >/dev/null&",
            "a 2>&1 &",
        ),
        *("a ~b", "a b:~", "a b/~", "a 'b'~", "a b-~", "a ^b", "a 'b'^", "a;~", "a b~ ~", "a [^b]"),
        *('a "\\$b"', 'a "\\`"', 'a "\\""', 'a "b\\\\"', 'a "\\\n"', 'a "\\!"', 'a "\\é"', 'a "b\\'),
        *("a > b", "a >> b", "a < b", "a << E\nb\nE", "a <<< b", "a <(b)", "a &> b"),
        *(
            "a &",
            "a & b",
            "a |& b",
            "a ;; b",
            "a ; ; b",
            "; a",
            "&& a",
            "| a",
            "a &&",
            "a |",
            "a || ; b",
            "a\n; b",
            "a ! b",
        ),
        *("(a)", "{ a; }", "! a", "[[ a ]]", "if a; then b; fi", "for a in b; do c; done", "while a; do b; done"),
        *(
            "case a in b) c;; esac",
            "function a",
            "a() { b; }",
            "time a",
            "coproc a",
            "select a",
            "until a",
            "a; do",
        ),
        *("x=1 a", "x=1", "'x=1' a", "x+=1 a", "a =b", "=a", "a ='b'", "'=a'", "-a", "+a", "%1", "'' a", "a; -b"),
        *("a 'b", 'a "b', "a b'", "a 'b' \"", 'a "!b"', "a !b", "a é", "a\u00a0b", "a\u2028b", "\ufeffa"),
        *(
            "a\rb",
            "a\x0bb",
            "a\x0cb",
            "a\x00b",
            "a\x01",
            "a '\x1b[2J'",
            "a '\x7f'",
            "a '\r'",
            "a\r\nb",
            "a '\ud800'",
        ),
    ],
)
def test_everything_else_is_not_understood(script: str) -> None:
    assert commands_in(script) is None
