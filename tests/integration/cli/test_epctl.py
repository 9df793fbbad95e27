"""Goal: what epctl says of a real epd is true, and its exit codes are those of --help."""

import os
import shutil
import signal
import stat
import subprocess

import running_epd
import wait

_SPEC = ["--ranks=2", "--experts=4", "--max-tokens-per-rank=64", "--recv-capacity-per-rank=256"]
_SPEC += ["--hidden=16", "--top-k=2"]


def test_a_fresh_daemon_is_ok_and_has_a_running_worker(epd, epctl):
    ended = epctl("status")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    status = epctl.json("status")
    assert status["pid"] == epd.process.pid
    assert status["health"] == "HEALTH_OK" and not status["problems"]
    assert status["workers"][0]["state"] == "WORKER_STATE_RUNNING"


def test_every_reading_command_ends_with_zero_and_fits_its_schema(epctl):
    for command in [
        "status",
        "groups",
        "sessions",
        "ranks",
        "memory",
        "health",
        "config",
        "version",
    ]:
        assert epctl(command).returncode == 0, command
        epctl.json(command)
    assert {s["name"] for s in epctl.json("health")["services"]} >= {"", "epd.v1.Node"}
    origins = {s["name"]: s["origin"] for s in epctl.json("config")["settings"]}
    assert origins["socket"] == "flag" and origins["absent"] == "default"


def test_doctor_joins_what_both_sides_see(epctl):
    report = epctl.json("doctor")
    assert report["connected"] and report["daemon"] and report["local"]
    all_ok = all(finding["ok"] for finding in report["daemon"] + report["local"])
    assert epctl("doctor").returncode == (0 if all_ok else 7)


def test_a_group_is_created_seen_drained_and_gone(epctl):
    created = epctl("create", "train", *_SPEC)
    assert created.returncode == 0, created.stderr
    group = epctl.json("groups", "train")["groups"][0]
    assert group["spec"]["num_experts"] == 4 and group["persistent"]
    assert [rank["phase"] for rank in epctl.json("ranks", "train")["ranks"]] == ["missing"] * 2
    assert "missing" in epctl("ranks", "train").stdout
    drained = epctl("drain", "train", "--deadline", "5s")
    assert drained.returncode == 0, drained.stderr
    assert epctl("ranks", "train").returncode == 2


def test_a_name_that_is_taken_or_unknown_is_usage(epctl):
    assert epctl("create", "train", *_SPEC).returncode == 0
    taken = epctl("create", "train", *_SPEC, "--drop-on-overflow")
    assert taken.returncode == 2 and "drop_on_overflow" in taken.stderr
    unknown = epctl("drain", "tarin")
    assert unknown.returncode == 2 and "train" in unknown.stderr
    assert epctl("close", "train").returncode == 0
    assert epctl("groups", "train").returncode == 2


def test_another_epoch_is_refused(epctl):
    assert epctl("create", "train", *_SPEC).returncode == 0
    refused = epctl("close", "train", "--epoch", "999")
    assert refused.returncode == 1 and "999" in refused.stderr


def test_a_plan_costs_nothing(epctl):
    before = epctl.json("memory")
    plan = epctl.json("plan", "g", *_SPEC)
    wide = epctl.json("plan", "g", *_SPEC, "--element-bytes=8")
    assert int(wide["dispatch_bytes_per_rank"]) >= int(plan["dispatch_bytes_per_rank"])
    assert epctl("plan", "g", *_SPEC, "--element-bytes=9").returncode == 2
    assert int(plan["dispatch_bytes_per_rank"]) > 0 and int(plan["handle_mem_bytes"]) > 0
    assert epctl.json("memory")["pool_committed_bytes"] == before["pool_committed_bytes"]
    assert not epctl.json("groups")["groups"]


def test_a_bad_spec_is_usage_and_names_the_field(epctl):
    odd = [option.replace("--experts=4", "--experts=5") for option in _SPEC]
    bad = epctl("create", "g", *odd)
    assert bad.returncode == 2 and "num_experts" in bad.stderr


def test_a_stopped_daemon_is_a_deadline_and_a_gone_one_cannot_be_connected_to(epd, epctl):
    epd.process.send_signal(signal.SIGSTOP)
    late = epctl("status", "--timeout", "300ms")
    assert late.returncode == 6 and "no answer within" in late.stderr
    epd.stop()
    gone = epctl("status")
    assert gone.returncode == 3 and epd.grpc_socket in gone.stderr
    assert epctl("doctor").returncode == 3


def test_another_user_is_denied(epd, epctl_of):
    if os.getuid() == 0:
        # The program where the other user can reach it, and the folder open, so that the socket's own mode decides.
        folder = epd.folder / "bin"
        folder.mkdir()
        shutil.copy(running_epd.program("epctl"), folder / "epctl")
        epd.folder.chmod(0o755)
        command = [folder / "epctl", "--socket", epd.socket, "status"]
        ended = subprocess.run(command, user=65534, capture_output=True, text=True, timeout=30)
    else:
        os.chmod(epd.grpc_socket, 0)
        ended = epctl_of(epd.socket)("status")
    assert stat.S_IMODE(os.stat(epd.grpc_socket).st_mode) in (0, 0o600)
    assert ended.returncode == 5 and "permission denied" in ended.stderr


def test_a_replaced_worker_is_seen(epd, epctl):
    """A degraded node, or one that has recovered already; the restart is counted either way."""
    os.kill(epd.worker_pid(), signal.SIGKILL)
    seen = [epctl("status").returncode for _ in range(3)]
    assert set(seen) <= {0, 7}
    wait.until(lambda: epctl.json("status")["workers"][0]["num_restarts"] == 1, "a restart")
    assert "signal 9" in epctl.json("status")["workers"][0]["last_exit"]
    wait.until(lambda: epctl("status").returncode == 0, "the node to recover")


def test_watch_prints_a_block_per_round(epctl):
    ended = epctl("status", "--watch=50ms", "--count=3")
    assert ended.returncode == 0 and ended.stdout.count("health:") == 3
