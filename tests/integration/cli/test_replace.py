"""Goal: `epctl replace` says when the other program serves or why it cannot, epd's log says who asked, and the node has what
it had before: groups, counters, sessions, descriptors."""

import os
import subprocess
import sys
import threading

import pytest
import running_epd
import wait
from epd import cluster

_RETRYING = running_epd.ROOT / "tests" / "integration" / "daemon" / "retrying_rank.py"
_SPEC = ["--ranks=2", "--experts=4", "--max-tokens-per-rank=8", "--recv-capacity-per-rank=64"]


@pytest.fixture
def calling(epd, tmp_path):
    """Two ranks of the group "retried", which call all the time. Gives what both have printed."""
    files = [tmp_path / f"rank{rank}" for rank in (0, 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(_RETRYING), epd.socket, str(rank), "2"],
            stdin=subprocess.PIPE,
            stdout=file.open("w"),
        )
        for rank, file in enumerate(files)
    ]

    def lines() -> list[str]:
        return [line for file in files for line in file.read_text().splitlines()]

    try:
        wait.until(lambda: len(lines()) > 20, "the ranks call")
        yield lines
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _goes_on(calling) -> None:
    count = len(calling())
    wait.until(lambda: len(calling()) > count + 20, "the ranks go on")


def test_a_script_that_reads_does_not_notice(epd, epctl):
    with cluster.Node("unix:" + cluster.grpc_path(epd.socket)) as node:
        for number in (1, 2, 3):
            assert epctl("replace").returncode == 0
            assert node.call("GetStatus").num_replacements == number


def _program(tmp_path, text: str) -> str:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"--program={path}"


def _descriptors(epd) -> int:
    return len(os.listdir(f"/proc/{epd.process.pid}/fd"))


def test_the_node_has_what_it_had_and_no_call_fails(epd, epctl, calling):
    assert epctl("create", "kept", *_SPEC, "--hidden=16").returncode == 0
    worker = epd.worker_pid()
    before = {group["spec"]["name"]: group for group in epctl.json("groups")["groups"]}
    sessions = [session["session_id"] for session in epctl.json("sessions")["sessions"]]
    descriptors = []
    for number in (1, 2, 3):
        report = epctl.json("replace")
        assert report["num_replacements"] == number
        assert report["version"] == report["previous_version"]
        _goes_on(calling)
        descriptors.append(_descriptors(epd))
    after = {group["spec"]["name"]: group for group in epctl.json("groups")["groups"]}
    assert after.keys() == before.keys() == {"retried", "kept"}
    for name in after:
        assert after[name]["group_id"] == before[name]["group_id"]
        assert after[name]["state"] == before[name]["state"]
    assert after["retried"]["epoch"] == before["retried"]["epoch"]
    assert int(after["retried"]["num_operations"]) > int(before["retried"]["num_operations"])
    assert [s["session_id"] for s in epctl.json("sessions")["sessions"]] == sessions
    assert epctl.json("status")["num_replacements"] == 3
    assert [worker["pid"] for worker in epctl.json("status")["workers"]] == [worker]
    assert epd.process.poll() is None
    assert descriptors[2] <= descriptors[0], descriptors
    assert not [line for line in calling() if " good" not in line]
    line = next(line for line in epd.log().splitlines() if "order=replace" in line)
    assert f"uid={os.geteuid()}" in line
    assert "result=OK" in line


def test_what_cannot_take_over_is_refused_with_a_reason(epd, epctl, calling, tmp_path):
    for text, code, reason in [
        ("exit 0", 1, "exited with status 0 and did not say whether it can take over"),
        ("kill -9 $$", 1, "killed by signal 9"),
        ("echo nonsense >&3; sleep 1", 1, "that are no HandoverVerdict"),
    ]:
        refused = epctl("replace", _program(tmp_path, text))
        assert refused.returncode == code, refused.stderr
        assert reason in refused.stderr
    (tmp_path / "program").chmod(0o777)
    refused = epctl("replace", f"--program={tmp_path / 'program'}")
    assert "mode 0777, expected one of root or of uid" in refused.stderr
    assert refused.returncode == 5
    assert epctl.json("status").get("num_replacements", 0) == 0
    _goes_on(calling)
    assert not [line for line in calling() if " good" not in line]


def test_one_at_a_time(epd, epctl, tmp_path):
    slow = _program(tmp_path, "sleep 5")
    said: list[str] = []
    both = [
        threading.Thread(target=lambda: said.append(epctl("replace", slow).stderr))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sum("epd is being replaced by" in text for text in said) == 1, said
    assert epctl("replace").returncode == 0


def test_a_setting_that_clients_hold_on_to_may_not_change(tmp_path, epctl_of):
    config = tmp_path / "epd.conf"
    config.write_text("node = first\n")
    with running_epd.RunningEpd(f"--config={config}") as epd:
        epctl = epctl_of(epd.socket)
        config.write_text("node = second\n")
        refused = epctl("replace")
        assert refused.returncode != 0
        assert (
            "node: got 'second', and the epd that is to be replaced has 'first'" in refused.stderr
        )
        config.write_text("nonsense = 1\n")
        assert "nonsense" in epctl("replace").stderr
        config.write_text("node = first\n")
        assert epctl("replace").returncode == 0


def test_ports_that_the_kernel_chose_stay(epctl_of):
    ports = ("--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0")
    with running_epd.RunningEpd(*ports) as epd:
        for _ in range(2):
            assert epctl_of(epd.socket)("replace").returncode == 0
        served = [
            [word for word in line.split() if word.startswith(("listen=", "metrics="))]
            for line in epd.log().splitlines()
            if 'event="serving"' in line
        ]
    assert len(served) == 3
    assert served[0] == served[1] == served[2], served
    assert not any(word.endswith((":0", '""')) for word in served[0]), served
