"""What one user gets of another: nothing, neither by descriptors nor from /proc; and what a client can do to a segment that
it was handed."""

import fcntl
import os
import subprocess

import attach_client as attach
import epd_process
import pytest
import wait

_ALICE = 61001
_BOB = 61002

_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE, _F_SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")


@pytest.fixture
def real(open_daemon):
    """An epd with a real worker, for Alice and Bob."""
    worker = epd_process.binary("epd-worker")
    open_daemon.start(f"--attach_uids={_ALICE},{_BOB}", f"--worker={worker}")
    open_daemon.worker_pid()
    return open_daemon


def _files(client: attach.Client) -> dict[int, str]:
    """By inode, what a client was handed that is a memfd."""
    return {
        os.fstat(fd).st_ino: os.readlink(f"/proc/self/fd/{fd}")
        for fd in client.fds
        if "/memfd:" in os.readlink(f"/proc/self/fd/{fd}")
    }


def test_descriptors_of_one_user_reach_nothing_of_another(real):
    with real.client(_ALICE) as alice, real.client(_BOB) as bob:
        for client, tenant in ((alice, "a"), (bob, "b")):
            client.attach()
            client.join(attach.spec("moe", num_ranks=2, tenant=tenant), [0, 1])
        hers, his = _files(alice), _files(bob)
        assert sorted(
            name.split(":")[1].split()[0].rstrip("0123456789") for name in hers.values()
        ) == [
            "epd-slots-",
            "epd-staging",
            "epd-staging",
        ]
        assert len(his) == len(hers) and not set(hers) & set(his)


def test_every_segment_that_a_client_is_handed_is_sealed(real):
    with real.client(_ALICE) as alice:
        alice.attach()
        alice.join(attach.spec("moe", num_ranks=2), [0, 1])
        for fd in alice.fds:
            name = os.readlink(f"/proc/self/fd/{fd}")
            if "/memfd:" not in name:
                continue
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            assert seals == _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW, name
            for more in (_F_SEAL_WRITE, _F_SEAL_FUTURE_WRITE):
                with pytest.raises(PermissionError):
                    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, more)


_LOOK = """
import os, sys
for pid in sys.argv[1:]:
    for name in ("fd", "mem", "maps", "environ"):
        path = f"/proc/{pid}/{name}"
        try:
            if name == "fd":
                names = os.listdir(path)
                os.readlink(f"{path}/{names[0]}")
            else:
                with open(path, "rb") as file:
                    if name != "mem":
                        file.read(1)
            print(f"{path} is open")
        except PermissionError:
            pass
"""


def _look(uid: int, *pids: int) -> str:
    done = subprocess.run(
        ["setpriv", f"--reuid={uid}", "--clear-groups", "/usr/bin/python3", "-c", _LOOK]
        + [str(pid) for pid in pids],
        check=True,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.stdout


def test_proc_shows_nothing_of_epd_and_its_worker_even_to_their_own_user(open_daemon, monkeypatch):
    monkeypatch.delenv("EPD_DUMPABLE", raising=False)
    os.chown(open_daemon.folder, _ALICE, _ALICE)
    worker = epd_process.binary("epd-worker")
    runs = subprocess.run(
        ["setpriv", f"--reuid={_ALICE}", "--clear-groups", worker], capture_output=True, check=False
    )
    if runs.returncode in (126, 127):
        pytest.skip("the binaries lie in a folder that is root's alone")
    open_daemon.start(
        f"--worker={worker}",
        "--cluster_secret=",
        wrap=("setpriv", f"--reuid={_ALICE}", f"--regid={_ALICE}", "--clear-groups"),
    )
    pids = (open_daemon.process.pid, open_daemon.worker_pid())
    assert _look(_ALICE, os.getpid()) == ""
    sleeper = subprocess.Popen(
        ["setpriv", f"--reuid={_ALICE}", "--clear-groups", "/usr/bin/sleep", "60"]
    )
    try:
        wait.until(lambda: _look(_ALICE, sleeper.pid) != "", "its own processes are open to it")
    finally:
        sleeper.kill()
        sleeper.wait()
    assert _look(_ALICE, *pids) == ""
    assert _look(_BOB, *pids) == ""
    with open_daemon.client(_ALICE) as client:
        client.attach()
        client.join(attach.spec("moe", num_ranks=1), [0])
