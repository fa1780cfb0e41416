"""A sandboxed command cannot change or reach anything outside its sandbox.

The attempts are in `kit/attacks`, which has one module for each kind. A control run shows that each attempt works
on this computer without a sandbox. If the computer itself forbids an attempt, the control is skipped with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pytest

from kit.attacks.attempts import KINDS, WORKED, of_kind
from kit.attacks.confined import CELLS, MODES, Confined, Mode, Survey
from kit.attacks.ground import Ground, Outcomes, by_itself, unexpected
from kit.attacks.nobody import as_nobody
from kit.system.needs import BUBBLEWRAP, LANDLOCK, MECHANISMS
from parley.config.types import Mechanism

OPEN: Final = {
    ("files", "bubblewrap"): {"write to a pipe with a reader": WORKED},
}
"""Attempts that are known to succeed. docs/security.md lists them."""


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with Ground() as ground:
        yield ground


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    with Confined() as confined:
        yield confined


def expected(kind: str, mechanism: str, mode: str) -> Mapping[str, str]:
    """Return the attempts that are not refused."""
    if kind == "network" and mode == MODES[2].name:
        return dict.fromkeys(of_kind(kind), WORKED)
    return OPEN.get((kind, mechanism), {})


MARKS: Final = {str(mechanism): marks for (mechanism,), marks, _ in MECHANISMS}


def forbidden(kind: str, outcomes: Outcomes) -> list[str]:
    """Return the attempts of this kind that this computer forbids, with the reasons; all others must work."""
    failed = {name: said for name, said in outcomes.items() if said != WORKED}
    assert [name for name in failed if not of_kind(kind)[name].needs] == []
    assert unexpected(failed) == {}
    return [f"{name}: {said}, needs {of_kind(kind)[name].needs}" for name, said in failed.items()]


@pytest.mark.parametrize("kind", KINDS)
def test_each_attempt_works_without_a_sandbox(ground: Ground, kind: str) -> None:
    outcomes = ground.attack(kind, by_itself)

    if refused := forbidden(kind, outcomes):
        pytest.skip(f"this computer itself forbids {'; '.join(refused)}")


@pytest.mark.promises("sandbox.writing", "sandbox.modes", "sandbox.hidden", "sandbox.network", "sandbox.processes")
@pytest.mark.parametrize(
    ("kind", "mechanism", "mode"),
    [
        pytest.param(kind, mechanism, mode, marks=MARKS[mechanism], id=f"{kind}, {mechanism}, {mode.name}")
        for kind, mechanism, mode in CELLS
    ],
)
def test_no_attempt_works_in_the_sandbox(
    ground: Ground, confined: Confined, kind: str, mechanism: Mechanism, mode: Mode
) -> None:
    outcomes = confined.attack(ground, kind, mechanism, mode)

    assert unexpected(outcomes) == expected(kind, mechanism, mode.name)


@BUBBLEWRAP
@pytest.mark.long
@pytest.mark.promises("sandbox.installed")
@pytest.mark.parametrize("kind", KINDS)
def test_no_attempt_works_where_parley_is_installed_in_the_workspace(
    ground: Ground, confined: Confined, kind: str
) -> None:
    outcomes = confined.attack(ground, kind, "bubblewrap", MODES[1], installed="project")

    assert unexpected(outcomes) == expected(kind, "bubblewrap", MODES[1].name)


@LANDLOCK
def test_attributes_outside_are_open_to_landlock_where_anything_may_be_written(
    ground: Ground, confined: Confined
) -> None:
    outcomes = confined.attack(ground, "metadata", "landlock", MODES[1])

    # docs/security.md lists these attempts. An attempt may also be refused because the computer lacks a feature.
    assert {outcomes[name] for name, attempt in of_kind("metadata").items() if not attempt.needs} == {WORKED}


# --- as an unprivileged user -------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kinds", [("special_modes",), KINDS], ids=len)
def test_an_ordinary_user_comes_as_far_as_the_superuser(kinds: Sequence[str]) -> None:
    survey = Survey(**json.loads(as_nobody("-m", "kit.attacks.confined", *kinds)))
    for kind, outcomes in survey.by_itself.items():
        forbidden(kind, outcomes)

    found = [(kind, mechanism, mode, unexpected(outcomes)) for kind, mechanism, mode, outcomes in survey.confined]
    assert found == [
        (kind, mechanism, mode, expected(kind, mechanism, mode)) for kind, mechanism, mode, _ in survey.confined
    ]
    if survey.unconfined:
        pytest.skip(f"an ordinary user cannot be confined here by everything: {survey.unconfined}")
    assert {(kind, mechanism) for kind, mechanism, *_ in found} == {
        (kind, mechanism) for kind, mechanism, _ in CELLS if kind in kinds
    }
