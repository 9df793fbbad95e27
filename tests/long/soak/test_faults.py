"""Goal: every kind of fault comes in its turn, and a fault is recovered from when no call fails any more and all ranks go on."""

import itertools

import faults

_S = 10**9
_QUIET = 3 * _S


def _watched(*ranks: tuple[int, int, int, int]) -> dict[str, faults.Progress]:
    return {str(number): faults.Progress(*rank) for number, rank in enumerate(ranks)}


_BEFORE = _watched((10, 0, 99 * _S, 0), (10, 0, 99 * _S, 0))
_RECOVERY = faults.Recovery(_BEFORE, 100 * _S, _QUIET)


def test_every_kind_comes_before_one_comes_again() -> None:
    drawn = list(itertools.islice(faults.in_turn(1), 3 * len(faults.KINDS)))
    for first in range(0, len(drawn), len(faults.KINDS)):
        assert set(drawn[first : first + len(faults.KINDS)]) == set(faults.KINDS)


def test_a_fault_that_no_call_felt_took_no_time_but_is_not_judged_at_once() -> None:
    well = _watched((20, 0, 103 * _S, 0), (20, 0, 103 * _S, 0))
    assert _RECOVERY.seconds(102 * _S, well) is None
    assert _RECOVERY.seconds(104 * _S, well) == 0


def test_it_is_over_with_the_last_failed_call() -> None:
    now = _watched((12, 1, 110 * _S, 101 * _S), (12, 3, 110 * _S, 105 * _S))
    assert _RECOVERY.seconds(107 * _S, now) is None
    assert _RECOVERY.seconds(110 * _S, now) == 5


def test_a_rank_that_does_not_go_on_holds_it_up() -> None:
    stands = _watched((12, 0, 110 * _S, 0), (11, 0, 110 * _S, 0))
    failed_last = _watched((12, 0, 110 * _S, 0), (12, 1, 104 * _S, 105 * _S))
    assert _RECOVERY.seconds(200 * _S, stands) is None
    assert _RECOVERY.seconds(200 * _S, failed_last) is None
