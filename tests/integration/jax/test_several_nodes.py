"""Goal: ranks of one group on two nodes, each with its own epd, compute the bits that one node's ranks do, with both
executors, and with TLS nobody on the link can read a row; a packet capture is the judge."""

import functools

import pytest
from harness import Fleet, Report, Setup, checks_of
from nodes import Nodes, running_nodes

_PROGRAM = "several_nodes"
_MARK = b"epd-row-on-wire!"
_PLAIN = Setup(_PROGRAM, processes=4, mesh=(1, 4))
_WORKER = {"EPD_EXECUTOR": "worker"}
_TLS = Setup(_PROGRAM, 2, 2, (1, 4), environment=_WORKER, label="-tls-worker")


@functools.cache
def _outcome(setup: Setup) -> tuple[Report, bytes | None]:
    """What the processes on two nodes report, and what the link between them carried."""
    try:
        with running_nodes(2, tls=setup is _TLS) as nodes:
            report = Fleet(setup, nodes.daemons[0].folder, *nodes.daemons).run(150)
            return report, _captured(nodes)
    except (AssertionError, OSError) as error:
        return Report([], [], [], "", failure=f"{type(error).__name__}: {error}"), None


def _captured(nodes: Nodes) -> bytes | None:
    return nodes.frames.read_bytes() if nodes.frames else None


@pytest.mark.parametrize("check", checks_of(_PROGRAM))
@pytest.mark.parametrize("setup", [_PLAIN, _TLS], ids=str)
def test_operations_over_two_nodes(setup: Setup, check: str):
    _outcome(setup)[0].expect(check)


@pytest.mark.parametrize("setup", [_PLAIN, _TLS], ids=str)
def test_rows_cross_in_the_clear_only_without_tls(setup: Setup):
    report, frames = _outcome(setup)
    report.expect("check_marked_rows")
    if frames is None:
        pytest.skip("needs network namespaces for a capture")
    assert len(frames) > 100_000, "the capture saw the link"
    assert (_MARK in frames) == (setup is _PLAIN)
