"""How epd starts, who it lets beside it, and how it ends."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import attach_client as attach
import epd_process
import pytest
import wait
from node_calls import NodeApi


def _run(daemon, *flags: str) -> subprocess.CompletedProcess:
    """An epd that is expected to end by itself."""
    return subprocess.run(
        daemon.command(*flags), capture_output=True, text=True, timeout=30, check=False
    )


def _names(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_end_by_sigterm_tells_clients_and_leaves_no_file(daemon):
    daemon.start()
    assert {"epd.sock", "epd-grpc.sock", "epd.sock.lock"} <= _names(daemon.folder)
    worker = daemon.worker_pid()
    with daemon.client() as client:
        client.attach()
        daemon.process.send_signal(signal.SIGTERM)
        goodbye = client.expect("goodbye")
        assert goodbye.status.code == 14
        assert client.receive() is None
    assert daemon.process.wait(10) == 0
    assert _names(daemon.folder) == {"epd.log", "worker"}
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_sigterm_drains_groups_before_sessions_end(daemon):
    daemon.start()
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        daemon.process.send_signal(signal.SIGTERM)
        draining = client.expect("group_draining").status
        assert draining.resumable and "is stopping" in draining.message
        ended = client.expect("group_ended").status
        assert ended.resumable and ended.message
        client.expect("goodbye")
    assert daemon.process.wait(10) == 0


def test_second_sigterm_ends_at_once_even_when_the_worker_is_stopped(daemon):
    daemon.start("--drain_deadline=1h")
    worker = daemon.worker_pid()
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        os.kill(worker, signal.SIGSTOP)
        daemon.process.send_signal(signal.SIGTERM)
        daemon.wait_for_log('event="stopping"')
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(5) == 0


def test_killed_epd_takes_its_worker_along_and_a_new_one_starts_over_the_leftovers(daemon):
    daemon.start()
    worker = daemon.worker_pid()
    daemon.process.kill()
    daemon.process.wait()

    def gone() -> bool:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return True
        return pathlib.Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z"

    wait.until(gone, "the worker ends")
    assert "epd.sock" in _names(daemon.folder), "a killed epd cannot clean up"
    daemon.start()
    with daemon.client() as client:
        client.attach()


def test_second_epd_on_the_same_socket_names_the_first_and_does_it_no_harm(daemon):
    daemon.start()
    second = _run(daemon)
    assert second.returncode == 1
    assert f"another epd (pid {daemon.process.pid}) serves this socket" in second.stderr
    with daemon.client() as client:
        client.attach()


def test_epd_whose_lock_file_was_removed_keeps_its_sockets_and_its_end_takes_no_others(
    daemon, tmp_path
):
    """As cleaners of /tmp do; a second epd is asked for at the same place."""
    daemon.start()
    first = daemon.process
    (daemon.folder / "epd.sock.lock").unlink()
    second = _run(daemon)
    assert second.returncode == 1
    assert f"another epd (pid {first.pid}) serves this socket" in second.stderr
    assert "which somebody has removed" in second.stderr
    with daemon.client() as client:
        client.attach()
    # Else it makes them anew.
    first.send_signal(signal.SIGSTOP)
    stat = pathlib.Path(f"/proc/{first.pid}/stat")
    wait.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    for name in ("epd.sock", "epd-grpc.sock"):
        (daemon.folder / name).unlink()
    later = epd_process.Daemon(daemon.folder)
    later.start()
    first.send_signal(signal.SIGCONT)
    daemon.wait_for_log('event="socket lost"')
    assert f"another epd (pid {later.process.pid}) has its lock file" in daemon.log()
    time.sleep(2.5)
    assert daemon.log().count('event="socket lost"') == 1
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    assert {"epd.sock", "epd-grpc.sock", "epd.sock.lock"} <= _names(daemon.folder)
    with later.client() as client:
        client.attach()
    assert later.stop() == 0
    assert not {"epd.sock", "epd-grpc.sock", "epd.sock.lock"} & _names(daemon.folder)


@pytest.mark.parametrize("way", ["removed", "replaced", "folder"])
def test_sockets_whose_files_are_gone_are_made_anew_and_sessions_go_on(daemon, way):
    """As by a cleaner of old files, or a container's second start."""
    folder = daemon.folder / "run"
    paths = [folder / "epd.sock", folder / "epd-grpc.sock"]
    daemon.socket, daemon.grpc_socket = map(str, paths)
    folder.mkdir(mode=0o755)
    daemon.start()
    with daemon.client() as before:
        before.attach()
        if way == "folder":
            shutil.rmtree(folder)
        for path in paths if way != "folder" else []:
            path.unlink()
            if way == "replaced":
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
                    stale.bind(str(path))
        daemon.wait_for_log('event="socket made anew"', 2)
        with daemon.client() as after:
            after.attach()
            after.join(attach.spec(num_ranks=1), [0])
        before.join(attach.spec("other", num_ranks=1), [0])
        with NodeApi(f"unix:{daemon.grpc_socket}") as api:
            assert not any("socket" in problem for problem in api.GetStatus().problems)
    assert daemon.stop() == 0
    assert not folder.exists() or not _names(folder)


def test_a_socket_that_something_else_took_is_a_problem_until_it_is_gone(daemon):
    daemon.start()
    path = pathlib.Path(daemon.socket)
    path.unlink()
    path.write_text("precious")
    daemon.wait_for_log('event="socket lost"')
    with NodeApi(f"unix:{daemon.grpc_socket}") as api:
        (problem,) = [one for one in api.GetStatus().problems if "socket" in one]
        assert str(path) in problem
        assert "something that is no socket lies there; move it away" in problem
        assert path.read_text() == "precious"
        path.unlink()
        daemon.wait_for_log('event="sockets are there again"')
        assert not any("socket" in one for one in api.GetStatus().problems)
    with daemon.client() as client:
        client.attach()


def test_a_living_grpc_socket_of_another_epd_is_not_taken(daemon, tmp_path):
    daemon.start()
    (tmp_path / "other").mkdir()
    other = epd_process.Daemon(tmp_path / "other")
    ended = _run(other, f"--grpc_socket={daemon.grpc_socket}")
    assert ended.returncode == 1
    assert f"another epd (pid {daemon.process.pid}) serves the socket" in ended.stderr, ended.stderr
    assert pathlib.Path(daemon.grpc_socket).is_socket()


@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_named_at_once(daemon, error):
    if shutil.which("strace") is None:
        pytest.skip("no strace, which makes flock fail")
    wrap = ["strace", "-f", "-o/dev/null", "-etrace=flock", f"-einject=flock:error={error}"]
    began = time.monotonic()
    ended = subprocess.run(
        [*wrap, *daemon.command()], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1 and time.monotonic() - began < 5
    assert "has no locks (flock)" in ended.stderr, ended.stderr


@pytest.mark.parametrize("flag", ["--help", "--version", "--print-config"])
def test_output_that_cannot_be_written_is_said_and_not_zero(daemon, flag):
    for redirect, why in (
        (">/dev/full", "No space left on device"),
        (">&-", "Bad file descriptor"),
    ):
        ended = subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {redirect}', "sh", epd_process.binary("epd"), flag],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 1
        assert ended.stderr == f"epd: cannot write to standard output: {why}\n"


def test_socket_path_that_is_too_long_is_an_error_with_the_limit(daemon):
    path = "/tmp/" + "x" * 103
    ended = _run(daemon, f"--socket={path}")
    assert ended.returncode == 1
    assert "got a path of 108 bytes, expected at most 107" in ended.stderr


def test_folder_that_everybody_may_write_to_is_refused(daemon):
    daemon.folder.chmod(0o777)
    ended = _run(daemon)
    assert ended.returncode == 1 and "everybody may write" in ended.stderr


def test_file_in_the_place_of_the_socket_is_kept(daemon):
    (daemon.folder / "epd.sock").write_text("precious")
    ended = _run(daemon)
    assert ended.returncode == 1 and "no socket lies there" in ended.stderr
    assert (daemon.folder / "epd.sock").read_text() == "precious"


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--sokcet=/tmp/x", "did you mean 'socket'"),
        ("--spin=fast", "flag --spin: got 'fast', expected a duration"),
        ("--config=/does/not/exist", "cannot read"),
        ("--config=/etc", "got the folder '/etc', expected a file"),
        ("--listen=127.0.0.1:70000", "flag --listen: got '127.0.0.1:70000', expected host:port"),
    ],
)
def test_bad_flag_is_a_usage_error_that_says_what_is_expected(daemon, flag, says):
    ended = _run(daemon, flag)
    assert ended.returncode == 2 and says in ended.stderr


def test_bad_listen_address_is_an_error(daemon):
    ended = _run(daemon, "--listen=203.0.113.1:1")
    assert ended.returncode == 1 and "'203.0.113.1:1' (listen)" in ended.stderr


@pytest.mark.parametrize("setting", ["listen", "wire_listen", "metrics_listen"])
def test_where_ipv6_is_off_an_address_of_it_is_refused_by_name(daemon, setting):
    """Else [::] would be served by IPv4 alone."""
    without = ["unshare", "-n", "sh", "-c"]
    off = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"
    if subprocess.run([*without, off], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace without IPv6 can be made here")
    command = daemon.command(f"--{setting}=[::]:7400", "--insecure=yes")
    ended = subprocess.run(
        [*without, f'{off} && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert f"{setting}: got '[::]:7400': IPv6 is off on this machine" in ended.stderr
    assert "0.0.0.0:7400 listens at all IPv4 addresses" in ended.stderr


def test_print_config_help_and_version_do_not_start_anything(daemon):
    config = daemon.folder / "epd.conf"
    config.write_text("node = from-file\n")
    printed = _run(daemon, f"--config={config}", "--print-config").stdout
    lines = {line.split(" = ")[0]: line for line in printed.splitlines()}
    assert lines["node"].split() == ["node", "=", "from-file", "#", "file"]
    assert lines["socket"].endswith("# flag") and lines["spin"].endswith("# default")
    assert "--worker_stuck=30s" in _run(daemon, "--help").stdout
    assert _run(daemon, "--version").stdout.startswith("epd ")
    assert "epd.sock" not in _names(daemon.folder)


def test_setting_that_is_given_twice_is_an_error(daemon):
    ended = _run(daemon, "--spin=1ms", "--spin=2ms")
    assert ended.returncode == 2 and "'spin' is given twice" in ended.stderr


def test_hangup_reopens_the_log_and_reads_what_may_change(daemon):
    config, log = daemon.folder / "epd.conf", daemon.folder / "own.log"
    config.write_text("max_sessions = 1\n")
    command = daemon.command(f"--config={config}", f"--log_file={log}")
    daemon.process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=epd_process.environment()
    )

    def hang_up(says: str) -> str:
        """What a new log file holds once it says so."""
        log.rename(daemon.folder / "old.log")
        daemon.process.send_signal(signal.SIGHUP)
        wait.until(lambda: log.exists() and says in log.read_text(), says)
        return log.read_text()

    wait.until(lambda: log.exists() and "worker ready" in log.read_text(), "it serves")
    with daemon.client() as first:
        first.attach()
        with daemon.client() as second:
            second.send(attach=attach.pb.Attach(min_version=1, max_version=1))
            assert "max_sessions" in second.expect("goodbye").status.message
        config.write_text("max_sessions = 2\nspin = 7ms\n")
        text = hang_up("settings need a restart")
        assert "taken=max_sessions" in text and "changed=spin" in text
        with daemon.client() as second:
            second.attach()
        config.write_text("max_sessions = many\n")
        assert "line 1 of" in hang_up("settings are bad, the old ones stay")
        with daemon.client() as second:
            second.attach()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_ask_for_nothing_or_for_stacks_end_nobody(daemon, number):
    daemon.start(f"--worker={epd_process.binary('epd-worker')}")
    worker = daemon.worker_pid()
    for pid in (daemon.process.pid, worker):
        os.kill(pid, number)
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
    assert daemon.process.poll() is None and daemon.log().count("worker ready") == 1


def test_private_daemon_outlives_its_terminal(daemon):
    daemon.start("--idle_exit=1h")
    daemon.process.send_signal(signal.SIGHUP)
    with daemon.client() as client:
        client.attach()
    assert "settings read again" not in daemon.log()


def _serves(daemon) -> bool:
    try:
        with daemon.client() as client:
            client.attach()
            client.join(attach.spec(num_ranks=1), [0])
            return True
    except (ConnectionError, FileNotFoundError):
        return False


@pytest.mark.parametrize("flags", [["--log_file=/dev/full"], []])
def test_full_disk_under_the_log_stops_nobody(daemon, flags):
    with open("/dev/full", "wb") as full:
        daemon.process = subprocess.Popen(
            daemon.command(*flags),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=full,
            env=epd_process.environment(),
        )
    wait.until(lambda: _serves(daemon), "epd serves without a log")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    assert _names(daemon.folder) == {"worker"}


def test_log_file_that_cannot_be_made_is_named(daemon):
    ended = _run(daemon, "--log_file=/proc/epd.log")
    assert ended.returncode == 1
    assert "log_file: got '/proc/epd.log'" in ended.stderr


def test_readiness_is_told_to_the_supervisor(daemon):
    path = str(daemon.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.settimeout(10)
        notify.bind(path)
        daemon.start(wrap=("env", f"NOTIFY_SOCKET={path}"))
        assert notify.recv(64) == b"READY=1"
        daemon.process.send_signal(signal.SIGTERM)
        assert notify.recv(64) == b"STOPPING=1"


def test_the_supervisors_watchdog_hears_of_a_loop_that_turns_and_of_no_other(daemon):
    path = str(daemon.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.settimeout(10)
        notify.bind(path)
        daemon.start(wrap=("env", f"NOTIFY_SOCKET={path}", "WATCHDOG_USEC=400000"))
        assert notify.recv(64) == b"READY=1"
        assert [notify.recv(64) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        daemon.process.send_signal(signal.SIGSTOP)
        notify.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(3):  # One or two may be on their way.
                notify.recv(64)
        daemon.process.send_signal(signal.SIGCONT)


def test_idle_daemon_ends_after_its_last_session_and_leaves_nothing(daemon):
    daemon.start("--idle_exit=300ms")
    with daemon.client() as client:
        client.attach()
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.process.wait(1)
    assert daemon.process.wait(10) == 0
    assert _names(daemon.folder) == {"epd.log", "worker"}


def test_clients_of_an_idle_daemon_on_its_way_out_get_a_session_or_are_told_to_retry(daemon):
    for _ in range(5):
        daemon.start("--idle_exit=100ms")
        told = set()
        while daemon.process.poll() is None:
            try:
                client = daemon.client()
            except (FileNotFoundError, ConnectionRefusedError):
                continue  # It has gone: this is what a client retries.
            with client:
                if "goodbye" in told:
                    break
                with contextlib.suppress(BrokenPipeError):  # It may say goodbye before it is asked.
                    client.send(attach=attach.pb.Attach(min_version=1, max_version=1))
                message = client.receive()
                told.add(message.WhichOneof("body") if message else "closed")
                assert message is not None, daemon.log()
                if message.WhichOneof("body") == "goodbye":
                    assert message.goodbye.status.code == 14
            # Let it become idle now and then, at moments that vary.
            time.sleep(0.099)
        assert daemon.process.wait(10) == 0
        assert told <= {"attached", "goodbye"}


def test_new_epd_waits_for_one_that_is_on_its_way_out(daemon, tmp_path):
    daemon.start("--drain_deadline=600ms")
    with daemon.client() as client:
        client.attach()
        client.join(attach.spec(num_ranks=1), [0])
        os.kill(daemon.worker_pid(), signal.SIGSTOP)  # The drain takes its whole deadline.
        first = daemon.process
        first.send_signal(signal.SIGTERM)
        daemon.wait_for_log('event="stopping"')
        daemon.start()
        assert first.wait(10) == 0
        with daemon.client() as other:
            other.attach()


def test_epd_runs_with_standard_descriptors_closed(daemon):
    log = daemon.folder / "own.log"
    command = daemon.command(f"--log_file={log}")
    script = 'exec "$@" <&- >&- 2>&-'
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *command], env=epd_process.environment()
    )
    daemon.process = process
    wait.until(lambda: log.exists() and "worker ready" in log.read_text(), "the worker is ready")
    with daemon.client() as client:
        client.attach()


@pytest.mark.parametrize("call", ["pidfd_open", "memfd_create", "fallocate"])
def test_a_sandbox_that_refuses_a_call_is_named_at_the_start(daemon, tmp_path, call):
    header = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    calls = set(re.findall(r"#define __NR_(\w+) ", header)) - {call}
    allowed = tmp_path / "calls"
    allowed.write_text(" ".join(calls))
    confined = pathlib.Path(__file__).parents[1] / "confined.py"
    ended = subprocess.run(
        [sys.executable, str(confined), str(allowed), *daemon.command()],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode != 0
    last = ended.stderr.splitlines()[-1]
    assert call in last and "Operation not permitted" in last, ended.stderr
    assert "sandbox does not allow the call" in last and "seccomp" in last, ended.stderr
