"""The commands that pass a patch, and similar commands that do not."""

from __future__ import annotations

import pytest

from parley.tools.patch.extract import patch_in

PATCH = "*** Begin Patch\n*** Delete File: gone.txt\n*** End Patch"


@pytest.mark.parametrize("program", ["apply_patch", "applypatch"])
def test_a_patch_may_be_the_only_argument(program: str) -> None:
    assert patch_in([program, PATCH]) == PATCH


@pytest.mark.parametrize(
    "opening",
    [
        "apply_patch <<'EOF'",
        "applypatch <<'EOF'",
        'apply_patch <<"EOF"',
        "apply_patch <<EOF",
        "\napply_patch  << 'EOF' ",
    ],
)
def test_a_patch_may_stand_in_a_heredoc_for_bash(opening: str) -> None:
    assert patch_in(["bash", "-lc", f"{opening}\n{PATCH}\nEOF\n"]) == PATCH


def test_the_word_that_ends_a_heredoc_is_the_one_that_began_it() -> None:
    script = f"apply_patch <<'PATCH'\n{PATCH}\nPATCH"

    assert patch_in(["bash", "-lc", script]) == PATCH


def test_a_wrapped_argument_is_left_for_the_grammar_to_unwrap() -> None:
    assert patch_in(["apply_patch", f"<<'EOF'\n{PATCH}\nEOF"]) == f"<<'EOF'\n{PATCH}\nEOF"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["apply_patch"],
        ["apply_patch", PATCH, "more"],
        ["/bin/apply_patch", PATCH],
        ["echo", PATCH],
        ["bash", "-lc", "apply_patch"],
        ["bash", "-lc", f"apply_patch '{PATCH}'"],
        ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}"],
        ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\n EOF"],
        ["bash", "-lc", f"apply_patch <<'EOF\"\n{PATCH}\nEOF"],
        ["bash", "-lc", f"apply_patch <<'EOF' && id\n{PATCH}\nEOF"],
        ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF\nid"],
        ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF\nid\nEOF"],
        ["bash", "-lc", f"id; apply_patch <<'EOF'\n{PATCH}\nEOF"],
        ["bash", "-lc", f"apply_patch <<EOF\n{PATCH}\n$(id)\nEOF"],
        ["bash", "-lc", f"apply_patch <<EOF\n{PATCH}\n`id`\nEOF"],
        ["bash", "-c", f"apply_patch <<'EOF'\n{PATCH}\nEOF"],
        ["sh", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF"],
    ],
)
def test_everything_else_is_a_command(argv: list[str]) -> None:
    assert patch_in(argv) is None


def test_expansions_are_literal_after_a_quoted_delimiter() -> None:
    assert patch_in(["bash", "-lc", "apply_patch <<'EOF'\n+$HOME `id` \\\nEOF"]) == "+$HOME `id` \\"
