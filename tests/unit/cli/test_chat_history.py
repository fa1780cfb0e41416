"""The history of the input: `parley.cli.chat.history`."""

from __future__ import annotations

from pathlib import Path

from parley.cli.chat.history import MAX_LINES, InputHistory


def test_the_history_keeps_lines_of_several_lines_for_the_next_chat(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    InputHistory(str(path)).append_string("one\ntwo")
    InputHistory(str(path)).append_string("日本語")

    assert list(InputHistory(str(path)).load_history_strings()) == ["日本語", "one\ntwo"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_long_history_is_shortened(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.write_text("".join(f'"{number}"\n' for number in range(2 * MAX_LINES + 1)))

    assert next(iter(InputHistory(str(path)).load_history_strings())) == str(2 * MAX_LINES)
    assert len(path.read_text().splitlines()) == MAX_LINES


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.write_text('"one"\n"tw')

    assert list(InputHistory(str(path)).load_history_strings()) == ["one"]


def test_without_a_home_the_history_lasts_as_long_as_the_chat(tmp_path: Path) -> None:
    history = InputHistory(str(tmp_path / "missing" / "chat_history"))
    history.append_string("one")

    assert history.get_strings() == ["one"]
    assert list(history.load_history_strings()) == []
