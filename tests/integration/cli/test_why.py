"""Goal: while a rank hangs, epctl why names it, who waits since when, and what every rank did last, also where the ranks
are on several nodes and whichever of them is asked; of two tenants of a group the one that is stuck, and nobody while all is well."""

import contextlib
import os
import re
import signal
import threading

import pytest
import wait
from hung_rank import HungRank
from nodes import running_nodes


def _stuck(epctl) -> dict:
    """What epctl why says once a rank has waited for a while."""

    def stuck() -> dict | None:
        why = epctl.json("why", "hung")
        return why if why["culprit"] else None

    return wait.until(stuck, "an operation to be open for a second")


def _check_history(why: dict) -> None:
    """The last 64 operations of each rank: of the waiting one with that which is stuck, of the absent one without."""
    past = {rank["rank"]: rank["operations"] for rank in why["past"]}
    assert [len(past[0]), len(past[1])] == [64, 64]
    assert (past[0][0]["phase"], past[1][0]["phase"]) == ("announce", "done")
    assert "name=stuck" in past[0][0]["key"] and "name=step69" in past[1][0]["key"]
    prints = [{one["key"]: one["fingerprint"] for one in past[rank]} for rank in (0, 1)]
    shared = prints[0].keys() & prints[1].keys()
    assert len(shared) == 63 and all(prints[0][key] == prints[1][key] for key in shared)


def _run(ranks, key: str) -> None:
    for rank in ranks:
        rank.begin(key)
    for rank in ranks:
        assert rank.result(key)[0] == 0


def test_a_process_that_claims_a_held_rank_is_refused_and_named_to_the_group(epd, epctl, hung):
    """Two jobs under one name: told to the claimant, and in the log, epctl ranks and epctl why of those that hold the ranks."""
    with contextlib.closing(HungRank(epd.socket, 1, name="another job")) as rival:
        refusal = rival.expect("refused")
        for text in (f"pid={hung[1].pid}", "started=", "EPD_JOB", "different job="):
            assert text in refusal, refusal
        named = f"rank 1 is also claimed by rank=1 .*pid={rival.pid} .*started=[0-9TZ:-]+"
        contested = re.compile(f"contested: group hung: {named}.*EPD_JOB")
        for words in (("ranks",), ("ranks", "hung"), ("why", "hung"), ("why",)):
            wait.until(
                lambda w=words: contested.search(epctl(*w).stdout), f"epctl {words} names the rival"
            )
        by_rank = {rank["rank"]: rank for rank in epctl.json("ranks", "hung")["ranks"]}
        assert [len(by_rank[rank].get("contested_by", [])) for rank in (0, 1)] == [0, 1], by_rank
        (line,) = [line for line in epd.log().splitlines() if "rank contested" in line]
        assert re.search(f'group="?hung"? .*rank=1 .*{named}', line), line
    _run(hung, "undisturbed")
    assert [rank.is_alive() for rank in hung] == [True, True]


def test_the_late_rank_is_named_with_what_it_did_last(epctl, hung):
    for number in range(70):
        _run(hung, f"step{number}")
    waiting, absent = hung
    waiting.begin("stuck")
    why = _stuck(epctl)
    assert why["culprit"] == "rank 1"
    for text in (
        f"pid {absent.pid}",
        "rank 0 waits for it since",
        "the last that rank 1 began is prepare name=step69",
    ):
        assert text in why["evidence"], why["evidence"]
    _check_history(why)

    table = epctl("why", "hung").stdout
    assert "culprit: rank 1" in table and "done by all ranks" in table
    (stuck,) = [line for line in table.splitlines() if line.split()[2:3] == ["stuck"]]
    assert stuck.split()[-2:] == ["announce", "-"], stuck
    assert "culprit: rank 1" in epctl("why").stdout, "no other group waits"
    whole = epctl("why", "hung", "--history").stdout
    assert whole.count("prepare") >= 64
    columns = whole[whole.index("BEGUN") :].splitlines()
    assert max(len(line) for line in columns) <= 100
    absent.begin("stuck")
    assert [rank.result("stuck")[0] for rank in hung] == [0, 0]


@pytest.mark.parametrize("loopback", [False, True], ids=["namespaces", "loopback"])
def test_the_history_of_ranks_on_two_nodes_is_whole_on_both(epctl_of, loopback):
    with running_nodes(2, loopback=loopback) as nodes, contextlib.ExitStack() as stack:
        hung = [HungRank(node.socket, rank) for rank, node in enumerate(nodes.daemons)]
        for rank in hung:
            stack.callback(rank.close)
        for rank in hung:
            rank.expect("joined")
        for number in range(70):
            _run(hung, f"step{number}")
        waiting, absent = hung
        waiting.begin("stuck")
        for node in nodes.daemons:
            why = _stuck(epctl_of(node.socket))
            assert why["culprit"] == "rank 1", why["evidence"]
            for text in (f"pid {absent.pid}", "node n1", "is prepare name=step69"):
                assert text in why["evidence"], why["evidence"]
            _check_history(why)
        absent.begin("stuck")
        assert [rank.result("stuck")[0] for rank in hung] == [0, 0]


@pytest.fixture
def tenants(epd):
    """Two tenants of the group "hung", both ranks of each, joined."""
    with contextlib.ExitStack() as stack:
        made = {name: [HungRank(epd.socket, rank, name) for rank in (0, 1)] for name in ("a", "b")}
        for ranks in made.values():
            for rank in ranks:
                stack.callback(rank.close)
                rank.expect("joined")
        yield made


@contextlib.contextmanager
def _exchanging(ranks):
    """Both ranks exchange without a pause."""
    ends = threading.Event()
    problems = []

    def loop() -> None:
        try:
            for number in range(10**6):
                if ends.is_set():
                    return
                _run(ranks, f"step{number}")
        except AssertionError as problem:
            problems.append(problem)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
    assert not problems, problems


def test_nobody_is_named_while_two_tenants_exchange(epctl, tenants):
    with _exchanging(tenants["a"]), _exchanging(tenants["b"]):
        for _ in range(25):
            why = epctl.json("why", "hung")
            assert why["culprit"] == "", why["evidence"]
    assert {past["tenant"] for past in epctl.json("why", "hung", "--tenant=b")["past"]} == {"b"}


def test_the_dead_process_of_one_tenant_is_named_while_the_other_exchanges(epctl, tenants):
    dead = tenants["b"][1]
    with _exchanging(tenants["a"]):
        dead.close()
        for _ in range(25):
            why = wait.until(
                lambda: next((w for w in [epctl.json("why", "hung")] if w["culprit"]), None),
                "somebody to be named",
            )
            assert why["culprit"] == "rank 1 of tenant b", why["evidence"]
            assert f"pid {dead.pid}" in why["evidence"], why["evidence"]
        assert epctl.json("why", "hung", "--tenant=a")["culprit"] == ""


def test_a_stopped_worker_is_named_and_not_the_ranks_that_it_serves(epd, epctl, tenants):
    tenants["a"][0].begin("open")
    worker = epd.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        why = _stuck(epctl)
        assert why["culprit"].startswith("worker ") and f"pid {worker}" in why["evidence"], why
    finally:
        os.kill(worker, signal.SIGCONT)
