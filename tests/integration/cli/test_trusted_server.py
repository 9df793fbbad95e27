"""Goal: what speaks to a daemon says nothing to a stranger who listens in its place, also where users have other numbers."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
import running_epd
from epd import cluster

_OUTSIDE, _INSIDE = 4711, 4242
_MINE, _DENIED, _NO_ANSWER = 0, 5, 6

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")

# Goes into a user namespace, says so, and becomes its arguments once its users are mapped.
_ENTER = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0:
    sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
print("entered", flush=True)
sys.stdin.readline()
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextlib.contextmanager
def _stranger() -> Iterator[str]:
    """A socket at which user _OUTSIDE listens and never answers."""
    with (
        tempfile.TemporaryDirectory(prefix="epd-test-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        path = f"{folder}/epd-grpc.sock"
        listener.bind(path)
        os.seteuid(_OUTSIDE)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        yield path


def _ask_inside(path: str, **variables: str) -> subprocess.CompletedProcess:
    """epctl in a user namespace in which _OUTSIDE is _INSIDE, and root is root."""
    epctl = str(running_epd.program("epctl"))
    command = [sys.executable, "-c", _ENTER, epctl, f"--socket={path}", "--timeout=1s", "groups"]
    inside = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if inside.stdout.readline() != "entered\n":
        pytest.skip(f"no user namespaces: {inside.communicate()[1]}")
    for kind in ("uid", "gid"):
        pathlib.Path(f"/proc/{inside.pid}/{kind}_map").write_text(
            f"0 0 1\n{_INSIDE} {_OUTSIDE} 1\n"
        )
    out, err = inside.communicate("\n", timeout=30)
    return subprocess.CompletedProcess(command, inside.returncode, out, err)


def test_in_a_user_namespace_the_daemons_uid_is_the_one_that_it_has_there():
    with _stranger() as path:
        refused = _ask_inside(path)
        assert refused.returncode == _DENIED, refused
        assert f"uid {_INSIDE} (pid " in refused.stderr and "nothing was sent" in refused.stderr
        assert _ask_inside(path, EPD_SERVER_UID=str(_OUTSIDE)).returncode == _DENIED
        believed = _ask_inside(path, EPD_SERVER_UID=str(_INSIDE))
        assert believed.returncode == _NO_ANSWER, believed


def test_a_python_program_says_nothing_to_a_stranger(monkeypatch):
    with _stranger() as path:
        with pytest.raises(PermissionError, match=f"uid {_OUTSIDE} .* nothing was sent"):
            cluster.Node(f"unix:{path}")
        monkeypatch.setenv("EPD_SERVER_UID", str(_OUTSIDE))
        cluster.Node(f"unix:{path}").close()


def test_who_may_be_the_daemon_is_roots_to_say(tmp_path):
    config = tmp_path / "client.conf"
    with _stranger() as path:
        config.write_text(f"server_user = {_OUTSIDE}  # epd's\n")
        config.chmod(0o644)
        cluster.check_server(path, config)
        config.chmod(0o666)
        with pytest.raises(PermissionError, match="must be root's"):
            cluster.check_server(path, config)
