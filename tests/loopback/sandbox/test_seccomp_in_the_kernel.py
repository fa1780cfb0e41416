"""The seccomp programs in the kernel: what a process can do under each, compared with a process without one."""

from __future__ import annotations

import errno
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.sandbox.seccomp import program
from parley.sandbox.syscalls import MACHINES

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in MACHINES,
    reason="there is no seccomp program for this computer",
)

CHILD = Path(__file__).with_name("seccomp_child.py")

READ_ONLY, WRITABLE, NAMESPACES, NETWORK, UNIX, BOTH = MODES = (
    "read-only",
    "writable",
    "writable, in namespaces",
    "writable, with the network",
    "writable, with unix sockets",
    "writable, with the network and unix sockets",
)

Outcomes = dict[str, dict[str, str]]
"""The outcomes by mode and by attempt."""


def program_for(mode: str) -> bytes:
    return program(
        platform.machine(),
        writable=mode != READ_ONLY,
        network=mode in (NETWORK, BOTH),
        unix_sockets=mode in (UNIX, BOTH),
        namespaces=mode == NAMESPACES,
    )


def attempted(directory: Path, filtered_by: bytes) -> dict[str, str]:
    given = {
        "program": filtered_by.hex(),
        "numbers": dict(MACHINES[platform.machine()].numbers),
        "directory": os.fspath(directory),
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", CHILD],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a listening socket, which also has an abstract name."""
    directory = tmp_path_factory.mktemp("s")
    address = os.fspath(directory / "host")
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        for server, name in ((named, address), (abstract, "\0" + address)):
            server.bind(name)
            server.listen()
        yield directory


@pytest.fixture(scope="module")
def control(directory: Path) -> dict[str, str]:
    """Return the result of each attempt without a seccomp program."""
    return attempted(directory, b"")


@pytest.fixture(scope="module")
def outcomes(directory: Path) -> Outcomes:
    return {mode: attempted(directory, program_for(mode)) for mode in MODES}


def under_every_mode(refused_with: str, *, but_allowed_in: tuple[str, ...] = ()) -> dict[str, str]:
    return {mode: "ok" if mode in but_allowed_in else refused_with for mode in MODES}


ALWAYS_WORKS = (
    "pair of streams",
    "pair of packets",
    "names of computers",
    "event loop",
    "process with a pipe",
    "threads",
    "subprocess",
    "pseudo-terminal",
    "clone",
    "descriptors of its own",
    "reading limits of its parent",
    "limits of its own",
    "priority of its own",
    "processors of its own",
    "pipe by name",
)

WITH_THE_NETWORK = (NETWORK, BOTH)
ALL_BUT_READ_ONLY = tuple(mode for mode in MODES if mode != READ_ONLY)

SOMETIMES_WORKS = {
    "internet stream": WITH_THE_NETWORK,
    "internet stream, upper half set": WITH_THE_NETWORK,
    "internet datagram": WITH_THE_NETWORK,
    "internet 6 stream": WITH_THE_NETWORK,
    "routes": WITH_THE_NETWORK,
    "tcp to itself": WITH_THE_NETWORK,
    "udp to itself": WITH_THE_NETWORK,
    "unix stream": (READ_ONLY, WRITABLE, NAMESPACES, UNIX, BOTH),
    "unix stream to the host": (UNIX, BOTH),
    "unix stream to an abstract name": (UNIX, BOTH),
    "unix server by path": (WRITABLE, NAMESPACES, UNIX, BOTH),
    "unix server by abstract name": (WRITABLE, NAMESPACES, UNIX, BOTH),
    "permissions": ALL_BUT_READ_ONLY,
    "owner": ALL_BUT_READ_ONLY,
    "times": ALL_BUT_READ_ONLY,
    "extended attribute": ALL_BUT_READ_ONLY,
    "attributes of a file": (NAMESPACES,),
    "shared memory": (NAMESPACES,),
    "message queue": (NAMESPACES,),
    "processors of its parent": (NAMESPACES,),
}

NEVER_WORKS = {
    "kernel events": "EPERM",
    "ciphers of the kernel": "EPERM",
    "unix datagram": "EPERM",
    "unix raw": "EPERM",
    "pair of datagrams": "EPERM",
    "typing into a terminal": "EPERM",
    "typing into a terminal, upper half set": "EPERM",
    "being traced": "EPERM",
    "memory of a process": "EPERM",
    "comparing processes": "EPERM",
    "keyring": "EPERM",
    "ring": "ENOSYS",
    "user namespace": "EPERM",
    "user namespace by clone": "EPERM",
    "user namespace by clone, upper half set": "EPERM",
    "clone3": "ENOSYS",
    "limits of its parent": "EPERM",
    "priority of its parent": "EPERM",
    "priority of a user without processes": "EPERM",
    "device": "EPERM",
    "number of x32": "ENOSYS",
    "calls of i386": "SIGSYS",
}

EXPECTED = {
    **{attempt: under_every_mode("", but_allowed_in=MODES) for attempt in ALWAYS_WORKS},
    **{attempt: under_every_mode("EPERM", but_allowed_in=modes) for attempt, modes in SOMETIMES_WORKS.items()},
    **{attempt: under_every_mode(error) for attempt, error in NEVER_WORKS.items()},
}

GOES_FURTHER_WITHOUT = {"priority of a user without processes": "ESRCH"}
"""The outcomes other than `ok` that show that the kernel allows the attempt."""


@pytest.mark.parametrize("attempt", EXPECTED)
def test_permitted_operations_under_each_program(attempt: str, control: dict[str, str], outcomes: Outcomes) -> None:
    if attempt not in control:
        pytest.skip("not on this machine")
    if (without := control[attempt]) != GOES_FURTHER_WITHOUT.get(attempt, "ok"):
        pytest.skip(f"this computer does not allow this to any user: {without}")

    assert {mode: outcomes[mode][attempt] for mode in MODES} == EXPECTED[attempt]


def test_every_attempt_was_expected(control: dict[str, str]) -> None:
    assert set(control) <= set(EXPECTED)


def test_a_stream_of_a_pair_cannot_be_connected_elsewhere_whatever_becomes_of_its_other_end(
    directory: Path,
) -> None:
    # This is why socket pairs stay allowed where `connect` is allowed, although other sockets of this computer are
    # not.
    address = os.fspath(directory / "host")
    errors = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        with one:
            errors.append(one.connect_ex(address))
            one.shutdown(socket.SHUT_RDWR)
            other.close()
            errors.append(one.connect_ex(address))

    # The kernel checks the socket type before everything else.
    assert errors == [errno.EISCONN, errno.EISCONN, errno.EPROTOTYPE, errno.EPROTOTYPE]
