"""Goal: a group's figures never fall: what failed is counted, and what a worker counted outlives it."""

import os
import signal

import wait


def _figures(epctl) -> dict:
    group = epctl.json("groups", "hung")["groups"][0]
    names = ("num_operations", "num_failed", "num_failed_calls", "bytes_moved")
    return {name: int(group.get(name, 0)) for name in names} | {"node": group["counted_by"]}


def _call(hung, name: str) -> list[int]:
    for rank in hung:
        rank.begin(name)
    return [rank.result(name)[0] for rank in hung]


def test_what_was_done_and_what_failed_is_counted_over_the_deaths_of_workers(epd, epctl, hung):
    assert _call(hung, "a") == [0, 0]
    wait.until(lambda: _figures(epctl)["num_operations"] == 1, "the operation is counted")
    before = _figures(epctl)
    assert epctl.json("groups", "hung")["groups"][0]["link"] == "shared_memory"
    assert before["node"] and before["bytes_moved"] > 0 and before["num_failed_calls"] == 0
    for death in (1, 2):
        hung[0].begin(f"open{death}")
        wait.until(
            lambda: epctl.json("groups", "hung")["groups"][0]["num_open_operations"] == 1,
            "the operation of rank 0 is open",
        )
        os.kill(epd.worker_pid(), signal.SIGKILL)
        code, message = hung[0].result(f"open{death}")
        assert code != 0, message
        after = _figures(epctl)
        assert after["num_failed_calls"] == death, after
        assert after["num_operations"] >= death, after
        assert after["bytes_moved"] >= before["bytes_moved"], after
        assert _call(hung, f"b{death}") == [0, 0]
        # A heartbeat later it is known to epd, whatever becomes of the worker.
        wait.until(lambda n=death + 1: _figures(epctl)["num_operations"] == n, "it is counted")
