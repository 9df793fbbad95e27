"""Goal: one file tells somebody elsewhere who hangs and why, also when epd does not answer, and holds no secret."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import cluster_secret
import pytest
import running_epd
import wait
from hung_rank import HungRank
from running_epd import RunningEpd

_SECRETS = ("hunter2-in-a-file", "hunter3-in-an-environment", "hunter4-in-a-command")


def _archive(epctl, path, *args: str) -> tuple[int, dict, str]:
    ended = epctl("support-archive", str(path), *args)
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    return ended.returncode, json.loads(text), text


def test_who_hangs_is_told_from_the_file_after_epd_has_ended(epctl_of, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", _SECRETS[1])
    (tmp_path / "token").write_text(_SECRETS[0])
    (tmp_path / "token").chmod(0o600)
    flags = (
        "--metrics_listen=127.0.0.1:0",
        f"--metrics_token={tmp_path}/token",
        f"--log_file={tmp_path}/epd.log",
    )
    with contextlib.ExitStack() as stack:
        epd = stack.enter_context(RunningEpd(*flags))
        epctl = epctl_of(epd.socket)
        ranks = [
            HungRank(epd.socket, 0),
            HungRank(epd.socket, 1, name=f"train.py --token {_SECRETS[2]}"),
        ]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
        os.kill(ranks[1].pid, signal.SIGSTOP)
        ranks[0].begin("stuck")
        wait.until(lambda: epctl.json("why", "hung")["culprit"], "an operation to be open for long")
        code, archive, text = _archive(epctl, tmp_path / "a.json")
        assert code == 0
        pid = ranks[1].pid
    assert archive["connected"] and archive["status"]["node"]
    assert [node["node"] for node in archive["nodes"]["nodes"]] == [archive["status"]["node"]]
    files = {file["path"]: file["text"] for file in archive["files"]}
    assert "MemTotal" in files["/proc/meminfo"] and "Max open files" in files["/proc/self/limits"]
    assert 'event="serving"' in files[f"{tmp_path}/epd.log"]
    assert any(path.startswith("/proc/") and path.endswith("/status") for path in files)
    settings = {one["name"]: one["value"] for one in archive["config"]["settings"]}
    assert settings["metrics_token"] == f"{tmp_path}/token"
    for secret in _SECRETS:
        assert secret not in text
    assert "train.py --token (redacted)" in text

    elsewhere = epctl_of("/nonexistent/epd.sock")  # There is no epd any more.
    why = elsewhere("why", "hung", "--from", str(tmp_path / "a.json"))
    assert why.returncode == 0, why.stderr
    assert "culprit: rank 1" in why.stdout and f"pid {pid}" in why.stdout
    assert elsewhere("why", "--from", str(tmp_path / "a.json")).stdout == why.stdout
    other = elsewhere("why", "nobody", "--from", str(tmp_path / "a.json"))
    assert other.returncode == 2 and "it has hung" in other.stderr
    (tmp_path / "other").write_text("{]")
    bad = elsewhere("why", "hung", "--from", str(tmp_path / "other"))
    assert bad.returncode == 2 and "expected what `epctl support-archive` has written" in bad.stderr


def _stacks_of(archive: dict, pid: int) -> dict:
    (stacks,) = [one for one in archive["stacks"] if one["pid"] == pid]
    return stacks


def _functions(stacks: dict) -> str:
    frames = [frame for thread in stacks["threads"] for frame in thread.get("frames", ())]
    return "\n".join(frame.get("function", "") for frame in frames)


def _pages() -> set[str]:
    folder = pathlib.Path(f"/dev/shm/epd-stacks-{os.geteuid()}")
    return {path.name.partition(".")[0] for path in folder.iterdir()} if folder.exists() else set()


def test_what_every_thread_of_epd_and_its_worker_does_is_in_it(epd, epctl, tmp_path):
    code, archive, _ = _archive(epctl, tmp_path / "a.json")
    assert code == 0
    daemon, worker = (_stacks_of(archive, pid) for pid in (epd.process.pid, epd.worker_pid()))
    for stacks in (daemon, worker):
        assert not stacks.get("problem"), stacks
        assert all(thread["name"] and thread["frames"] for thread in stacks["threads"]), stacks
        names = {module["path"] for module in stacks["modules"]}
        assert stacks["program"] in names and any("libc.so" in name for name in names)
    assert "epd::EventLoop::RunOnce(" in _functions(daemon)
    assert "epd::ExecLoop::Run(" in _functions(worker)
    assert len(daemon["threads"]) > 2  # gRPC's, too.


def test_the_pages_of_stacks_go_with_their_processes(epctl_of):
    with RunningEpd() as epd:
        pids = {str(epd.process.pid), str(epd.worker_pid())}
        assert pids <= _pages()
        os.kill(int(epd.worker_pid()), signal.SIGKILL)  # Leaves its own to epd.
    assert not pids & _pages()


@pytest.mark.parametrize(("leave", "number"), [("yes", 1), ("no", 0), ("", 0)])
def test_a_client_is_in_it_by_its_leave_only(epd, epctl, tmp_path, monkeypatch, leave, number):
    monkeypatch.setenv("EPD_STACKS", leave)
    with contextlib.closing(HungRank(epd.socket, 0)) as rank:
        wait.until(lambda: epctl.json("sessions")["sessions"], "the client to attach")
        _, archive, _ = _archive(epctl, tmp_path / "a.json")
        found = [one for one in archive["stacks"] if one["pid"] == rank.pid]
        assert len(found) == number
        assert rank.is_alive()
    if found:
        assert "epd::client::" in _functions(found[0])


def test_a_leave_that_cannot_be_read_is_an_error(epd, monkeypatch):
    monkeypatch.setenv("EPD_STACKS", "maybe")
    with contextlib.closing(HungRank(epd.socket, 0)) as rank:
        assert "EPD_STACKS: got 'maybe', expected yes or no" in rank.expect("refused")


def test_a_stopped_epd_leaves_what_the_kernel_says_and_its_workers_stacks(epd, epctl, tmp_path):
    worker = epd.worker_pid()
    os.kill(epd.process.pid, signal.SIGSTOP)
    try:
        code, archive, _ = _archive(epctl, tmp_path / "a.json", "--timeout=1s")
    finally:
        os.kill(epd.process.pid, signal.SIGCONT)
    assert code == 7 and not archive["connected"]
    paths = {file["path"] for file in archive["files"]}
    assert f"/proc/{epd.process.pid}/status" in paths and "/proc/meminfo" in paths
    problems = {part["what"]: part["problem"] for part in archive["parts"]}
    assert "not asked" in problems["GetMemory"] and problems["GetStatus"]
    assert "epd::ExecLoop::Run(" in _functions(_stacks_of(archive, worker))
    assert "T (stopped)" in _stacks_of(archive, epd.process.pid)["problem"]


def _listen_address(epd: RunningEpd) -> str:
    return re.search(r"\blisten=(\S+)", epd.log())[1]


@pytest.fixture
def nodes(tmp_path):
    """Three nodes of a cluster, the first coordinates; a file that each is told of holds a secret."""
    token = tmp_path / "token"
    token.write_text(_SECRETS[0])
    token.chmod(0o600)
    flags = ["--start_grace=0", "--metrics_listen=127.0.0.1:0", f"--metrics_token={token}"]
    with contextlib.ExitStack() as stack:
        epds = []
        for name in "abc":
            where = ["--listen=127.0.0.1:0"]
            where += [f"--coordinator={_listen_address(epds[0])}"] if epds else []
            epds.append(stack.enter_context(RunningEpd(f"--node={name}", *where, *flags)))
        for epd in epds:
            wait.until(
                lambda epd=epd: epd.api.call("GetStatus").coordinator_connected, "a to be met"
            )
        yield dict(zip("abc", epds, strict=True))


def test_one_archive_holds_all_nodes_and_names_those_that_do_not_answer(
    nodes, epctl_of, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_API_KEY", _SECRETS[1])
    asked = epctl_of(nodes["b"].socket)
    with contextlib.closing(HungRank(nodes["c"].socket, 0, name=f"train.py --token {_SECRETS[2]}")):
        wait.until(lambda: nodes["c"].api.call("ListSessions").sessions, "a client of c to attach")
        code, archive, text = _archive(asked, tmp_path / "whole.json", "--all-nodes")
    assert code == 0, archive["parts"]
    assert sorted(archive["by_node"]) == ["a", "b", "c"]
    for name, epd in nodes.items():
        node = archive["by_node"][name]
        assert (node["status"]["node"], node["status"]["pid"]) == (name, epd.process.pid)
        assert 'event="serving"' in node["log"]
        settings = {one["name"]: one["value"] for one in node["config"]["settings"]}
        assert settings["node"] == name and settings["metrics_token"] == f"{tmp_path}/token"
        assert node["figures"]["workers"] and node["memory"]["pool_bytes"]
        files = {file["path"]: file["text"] for file in node["files"]}
        assert (
            "MemTotal" in files["/proc/meminfo"]
            and f"Pid:\t{epd.process.pid}" in (files["/proc/self/status"])
        )
        assert {"cores", "open files", "/dev/shm"} <= {
            found["what"] for found in node["findings"]
        }, node
        daemon, worker = (_stacks_of(node, pid) for pid in (epd.process.pid, epd.worker_pid()))
        assert "epd::EventLoop::RunOnce(" in _functions(daemon)
        assert "epd::ExecLoop::Run(" in _functions(worker)
    (session,) = archive["by_node"]["c"]["sessions"]["sessions"]
    assert session["client_name"] == "train.py --token (redacted)"
    for secret in (*_SECRETS, cluster_secret.SECRET.decode()):
        assert secret not in text

    nodes["c"].process.kill()
    nodes["c"].process.wait()
    code, archive, _ = _archive(asked, tmp_path / "two.json", "--all-nodes")
    by_node = archive["by_node"]
    assert code == 7 and "status" in by_node["a"] and "status" in by_node["b"]
    assert by_node["c"]["problem"] and "status" not in by_node["c"], by_node["c"]
    problems = {part["what"]: part.get("problem") for part in archive["parts"]}
    assert problems["node c"] and not problems["node a"] and not problems["node b"]

    os.kill(nodes["a"].process.pid, signal.SIGSTOP)  # Who coordinates.
    try:
        began = time.monotonic()
        code, archive, _ = _archive(asked, tmp_path / "one.json", "--all-nodes")
        assert time.monotonic() - began < 60
    finally:
        os.kill(nodes["a"].process.pid, signal.SIGCONT)
    by_node = archive["by_node"]
    assert code == 7 and by_node["b"]["status"]["pid"] == nodes["b"].process.pid
    assert by_node["a"]["problem"] and "status" not in by_node["a"], by_node["a"]


def test_no_file_that_is_there_is_written_over(epctl, tmp_path):
    (tmp_path / "mine").write_text("precious")
    refused = epctl("support-archive", str(tmp_path / "mine"))
    assert refused.returncode == 1 and "exists" in refused.stderr
    assert (tmp_path / "mine").read_text() == "precious"
    report = json.loads(epctl("support-archive", str(tmp_path / "new"), "-o", "json").stdout)
    assert report["connected"] and report["file"] == str(tmp_path / "new")


def test_a_full_disk_leaves_no_half_of_an_archive_and_is_said(epctl_of, tmp_path):
    """In a file system of 64 KiB, in a mount namespace of its own."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no right to a mount namespace")
    small = tmp_path / "small"
    small.mkdir()
    epctl = str(running_epd.program("epctl"))
    script = (
        f"mount -t tmpfs -o size=16k t {small} && {{ {epctl} --socket {tmp_path}/none "
        f"support-archive {small}/a.json; echo rc $?; ls -A {small}; }}"
    )
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], check=False, capture_output=True, text=True
    )
    assert ended.stdout == "rc 1\n", ended
    assert ended.stderr.endswith(f"cannot write '{small}/a.json': No space left on device\n"), ended
    (tmp_path / "b.json").write_text("mine")
    there = epctl_of(str(tmp_path / "none"))("support-archive", str(tmp_path / "b.json"))
    assert there.returncode == 1 and "File exists" in there.stderr, there
    assert (tmp_path / "b.json").read_text() == "mine"
    assert [path.name for path in tmp_path.glob("b.json*")] == ["b.json"]


def test_what_cannot_be_written_to_standard_output_is_said_and_not_zero():
    epctl = str(running_epd.program("epctl"))
    for words in ("explain", "--help", "-o json explain EPD-1302", "completion bash", "man"):
        for redirect, why in (
            (">/dev/full", "No space left on device"),
            (">&-", "Bad file descriptor"),
        ):
            ended = subprocess.run(
                ["sh", "-c", f"exec {epctl} {words} {redirect}"],
                check=False,
                capture_output=True,
                text=True,
            )
            assert ended.returncode == 1, (words, redirect)
            assert ended.stderr == f"epctl: cannot write to standard output: {why}\n"
