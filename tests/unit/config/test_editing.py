"""Changes of config.toml keep everything else in the file."""

from __future__ import annotations

import pytest

from parley.config.editing import with_setting, without_setting
from parley.config.errors import UneditableFile
from parley.errors import BadSetting

FILE = """\
# my settings
model = "a"   # cheap

# about limits
[limits]   # all of them
turn_calls = 3 # three

[model_providers.mine]
base_url = "http://localhost:1/v1"

[profiles.fast]
model = "b"
"""


def edited(before: str, after: str) -> str:
    assert before in FILE
    return FILE.replace(before, after)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model", "o3", edited('model = "a"   # cheap', 'model = "o3"   # cheap')),
        ("approval_policy", "never", edited("# cheap\n", '# cheap\napproval_policy = "never"\n')),
        ("limits.turn_calls", "9", edited("turn_calls = 3 # three", "turn_calls = 9 # three")),
        ("limits.turn_cost", "2.5", edited("# three\n", "# three\nturn_cost = 2.5\n")),
        ("profiles.fast.model", "c", edited('model = "b"', 'model = "c"')),
        ("notify", '["ring", "-x"]', edited("# cheap\n", '# cheap\nnotify = ["ring", "-x"]\n')),
        (
            'model_providers."my.host".base_url',
            "http://localhost:2/v1",
            f'{FILE}\n[model_providers."my.host"]\nbase_url = "http://localhost:2/v1"\n',
        ),
        ("mcp_servers.x.env", '{A = "1"}', f'{FILE}\n[mcp_servers.x]\nenv = {{ A = "1" }}\n'),
        ("approvals.from", "local", f'{FILE}\n[approvals]\nfrom = "local"\n'),
    ],
)
def test_a_setting_is_set_and_everything_else_stays(key: str, value: str, expected: str) -> None:
    assert with_setting(FILE, key, value)[0] == expected


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("", "model", 'model = "x"\n'),
        ('profile = "p"', "model", 'profile = "p"\nmodel = "x"\n'),
        ("# mine\n", "model", '# mine\nmodel = "x"\n'),
        ("# about\n[limits]\n", "model", 'model = "x"\n\n# about\n[limits]\n'),
        ("limits.turn_calls = 3\n", "profiles.p.model", 'limits.turn_calls = 3\n\n[profiles.p]\nmodel = "x"\n'),
        (
            '[profiles]\np = { profile = "q" }\n',
            "profiles.p.model",
            '[profiles]\np = { profile = "q", model = "x"}\n',
        ),
        ("model = '''\na\n'''  # long\n", "model", 'model = "x"  # long\n'),
        ('# é\r\nmodel = "a"\r\n', "model", '# é\r\nmodel = "x"\r\n'),
    ],
)
def test_a_setting_is_set_in_files_of_every_layout(text: str, key: str, expected: str) -> None:
    assert with_setting(text, key, "x")[0] == expected


def test_a_dotted_table_gets_another_dotted_key() -> None:
    text = 'limits.turn_calls = 3\nmodel = "x"\n'

    assert with_setting(text, "limits.turn_cost", "1")[0].splitlines()[:2] == [
        "limits.turn_calls = 3",
        "limits.turn_cost = 1",
    ]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("modle", "x", "`modle`: unknown setting, did you mean `model`?"),
        ("turn_cost", "1", "`turn_cost`: unknown setting, did you mean `limits.turn_cost`?"),
        ("limit.turn_cost", "1", "`limit`: unknown setting, did you mean `limits`?"),
        ("approvalPolicy", "never", "`approvalPolicy`: unknown setting, did you mean `approval_policy`?"),
        (
            "network_access",
            "true",
            "`network_access`: unknown setting, did you mean `sandbox_workspace_write.network_access`?",
        ),
        (
            "sandbox.foo",
            "1",
            "`sandbox.foo`: unknown setting, expected one of `mechanism`, `hidden_paths`, `allow_unix_sockets`",
        ),
        ("store.xyz", "1", "`store.xyz`: unknown setting, `parley config` lists the settings"),
        (
            "model_providers.mine.base_ulr",
            "http://x",
            "`model_providers.mine.base_ulr`: unknown setting, did you mean `model_providers.mine.base_url`?",
        ),
        ("model", "4", "`model`: invalid type: integer `4`, expected a string"),
        ("model.x", "a", "`model`: invalid type: map, expected a string"),
        (
            "approval_policy",
            "sometimes",
            "`approval_policy`: unknown variant `sometimes`, expected one of `untrusted`, `on-failure`, "
            "`on-request`, `never`",
        ),
        (
            "limits",
            "{turn_calls = 1}",
            "`limits`: a table of settings; set one of them, such as `limits.turn_tokens`",
        ),
        ("profiles", "{}", "`profiles`: a table of settings; set one of them, such as `profiles.NAME`"),
        ("a..b", "1", "`a..b`: not a key"),
        ("", "1", "not a key"),
    ],
)
def test_an_unknown_key_or_an_invalid_value_is_refused(key: str, value: str, said: str) -> None:
    with pytest.raises(BadSetting) as refused:
        with_setting(FILE, key, value)

    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("model", edited('model = "a"   # cheap\n', "")),
        ("limits.turn_calls", edited("turn_calls = 3 # three\n", "")),
        ("profiles.fast", edited('[profiles.fast]\nmodel = "b"\n', "")),
        ("profiles", edited('[profiles.fast]\nmodel = "b"\n', "")),
    ],
)
def test_a_setting_or_a_table_is_removed_and_everything_else_stays(key: str, expected: str) -> None:
    found = without_setting(FILE, key)

    assert found is not None
    assert found[0] == expected


def test_an_unknown_key_of_the_file_can_be_removed() -> None:
    found = without_setting('tui = 1\nmodel = "x"\n', "tui")

    assert found is not None
    assert found[0] == 'model = "x"\n'


def test_a_setting_that_the_file_does_not_contain_is_not_removed() -> None:
    assert without_setting(FILE, "web_search") is None
    with pytest.raises(BadSetting, match="did you mean `web_search`"):
        without_setting(FILE, "web_serach")


@pytest.mark.parametrize("text", ['[[profiles]]\nmodel = "b"\n', "profiles = 3\n"])
def test_a_change_that_would_replace_another_value_is_refused(text: str) -> None:
    with pytest.raises(UneditableFile, match="change it with an editor"):
        with_setting(text, "profiles.fast.model", "x")
