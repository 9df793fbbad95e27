"""Client and epd in namespaces of their own, as in two containers that share the socket's folder: no pid is visible,
and sessions end and staging comes back all the same."""

import os
import pathlib
import signal
import subprocess
import sys

import epd_process
import pytest
import wait
from node_calls import NodeApi

_UNSHARE = ("unshare", "--mount", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child")

# What a kernel before Linux 6.5 says.
_OLD_KERNEL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
int getsockopt(int fd, int level, int name, void *value, socklen_t *size) {
  static int (*next)(int, int, int, void *, socklen_t *);
  if (!next) next = dlsym(RTLD_NEXT, "getsockopt");
  if (level == SOL_SOCKET && name == 77) return errno = ENOPROTOOPT, -1;
  return next(fd, level, name, value, size);
}
"""

_CLIENT = """
import sys, time
sys.path[:0] = sys.argv[2:]
import attach_client as attach
client = attach.Client(sys.argv[1])
client.attach()
client.join(attach.spec("moe", num_ranks=2), [0, 1])
print("joined", flush=True)
if sys.stdin.readline() == "close\\n":
    client.socket.close()  # It keeps its descriptors, and what it maps.
    print("closed", flush=True)
time.sleep(600)
"""


def _allowed() -> str:
    """Why there can be no namespaces here; empty: there can."""
    made = subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True, text=True)
    return made.stderr.strip()


pytestmark = pytest.mark.skipif(bool(_allowed()), reason=_allowed())


class _Contained:
    """epd in namespaces of its own, with a real worker."""

    def __init__(self, daemon: epd_process.Daemon, preload: str) -> None:
        self._daemon = daemon
        environment = ("env", f"LD_PRELOAD={preload}") if preload else ()
        worker = f"--worker={epd_process.binary('epd-worker')}"
        daemon.start(worker, wrap=(*_UNSHARE, *environment))
        daemon.wait_for_log("worker ready")

    def regions(self) -> list:
        """Of staging."""
        with NodeApi(f"unix:{self._daemon.grpc_socket}") as api:
            return [region for region in api.GetMemory().regions if region.kind == "staging"]

    def stop(self) -> None:
        """unshare hands no signal on."""
        pid = self._daemon.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGTERM)
        assert self._daemon.process.wait(20) == 0, self._daemon.log()


class _Client:
    """A process in namespaces of its own that has joined; ends with the block."""

    def __init__(self, daemon: epd_process.Daemon) -> None:
        python = [sys.executable, "-c", _CLIENT, daemon.socket, *epd_process.import_paths()]
        self._process = subprocess.Popen(
            [*_UNSHARE, *python], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout.readline() == "joined\n"

    def close_socket(self) -> None:
        self._process.stdin.write("close\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "closed\n"

    def kill(self) -> None:
        self._process.kill()  # --kill-child takes the client along.
        self._process.wait()

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def old_kernel(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("preload")
    (folder / "old.c").write_text(_OLD_KERNEL)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", folder / "old.so", folder / "old.c", "-ldl"], check=True
    )
    return str(folder / "old.so")


@pytest.fixture(params=["this kernel", "a kernel before 6.5"])
def contained(request, daemon, old_kernel):
    made = _Contained(daemon, "" if request.param == "this kernel" else old_kernel)
    yield made
    made.stop()


def _no_session(daemon: epd_process.Daemon) -> None:
    wait.until(lambda: daemon.log().count('event="session ended"') > 0, "the session ends")


def test_killed_client_of_another_container_leaves_no_staging(daemon, contained):
    with _Client(daemon) as client:
        assert len(contained.regions()) == 1
        client.kill()
        _no_session(daemon)
        wait.until(lambda: not contained.regions(), "its staging is free")


def test_next_client_of_another_container_joins_the_same_ranks(daemon, contained):
    with _Client(daemon) as client:
        client.kill()
    with _Client(daemon):
        assert len(contained.regions()) <= 2
    wait.until(lambda: not contained.regions(), "nothing is left of both")


def test_client_that_closes_and_lives_on_is_charged_where_its_end_can_be_seen(
    request, daemon, contained
):
    with _Client(daemon) as client:
        client.close_socket()
        _no_session(daemon)
        if "before" in request.node.name:
            wait.until(lambda: not contained.regions(), "the socket is all there is to see")
        else:
            assert len(contained.regions()) == 1, "it may write to its arenas"
    wait.until(lambda: not contained.regions(), "its process has ended")
