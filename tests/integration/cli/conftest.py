"""A real epd with clients, and epctl to look at it."""

import contextlib

import hung_rank
import pytest
import running_epd
from epctl_process import Epctl


@pytest.fixture
def epd():
    with running_epd.RunningEpd() as running:
        yield running


@pytest.fixture
def epctl(epd):
    return Epctl(epd.socket)


@pytest.fixture
def epctl_of():
    """Epctl for a socket that the test chooses."""
    return Epctl


@pytest.fixture
def hung(epd):
    """Both ranks of the group "hung", joined; they are ended at the end, stopped or not."""
    with contextlib.ExitStack() as stack:
        ranks = [hung_rank.HungRank(epd.socket, rank) for rank in (0, 1)]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        yield ranks
