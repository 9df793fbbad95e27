"""Goal: in a container whose mount of epd's folder, or of its socket's file, was deleted outside, every client says that it is a stale
mount, at once; one whose folder outlives epd finds the next epd."""

import pathlib
import subprocess
import sys

import epd_process
import pytest

_UNSHARE = ("unshare", "--mount", "--propagation=private", "--kill-child")

_CLUSTER = """
import sys
from epd import cluster
try:
    with cluster.Node(cluster.default_target()) as node:
        print("node", node.call("GetStatus").node)
except Exception as error:
    print(type(error).__name__, error)
"""


def _allowed() -> str:
    made = subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True, text=True)
    return made.stderr.strip()


pytestmark = pytest.mark.skipif(bool(_allowed()), reason=_allowed())


class _Container:
    """A shell in a mount namespace of its own: ``origin`` is mounted there at ``place``."""

    def __init__(self, origin: pathlib.Path, place: pathlib.Path) -> None:
        self._shell = subprocess.Popen(
            [*_UNSHARE, "bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.run(f"mount --bind {origin} {place}") == ""

    def run(self, command: str) -> str:
        """What it prints."""
        self._shell.stdin.write(f"{command} </dev/null; echo; echo .END\n")
        self._shell.stdin.flush()
        lines = iter(self._shell.stdout.readline, ".END\n")
        return "".join(lines).strip()

    def __enter__(self) -> "_Container":
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.communicate("exit\n", timeout=20)


def _ask(container: _Container, socket: pathlib.Path) -> dict[str, str]:
    """What each program says of the epd at ``socket``."""
    script = socket.parent.parent / "cluster.py"
    script.write_text(_CLUSTER)
    environment = f"env EPD_SOCKET={socket}"
    return {
        "epctl": container.run(f"{environment} {epd_process.binary('epctl')} version"),
        "epd.cluster": container.run(f"{environment} {sys.executable} {script}"),
    }


@pytest.fixture
def places(daemon) -> tuple[pathlib.Path, pathlib.Path]:
    """The folder of epd's socket, and where a container mounts it."""
    made = daemon.folder / "run", daemon.folder / "container"
    for folder in made:
        folder.mkdir(mode=0o755)
    daemon.socket = str(made[0] / "epd.sock")
    return made


def test_a_folder_that_outlives_epd_shows_the_next_one(daemon, places):
    origin, place = places
    daemon.start()
    with _Container(origin, place) as container:
        assert daemon.stop() == 0
        daemon.start()
        for who, said in _ask(container, place / "epd.sock").items():
            assert "stale" not in said and "no epd" not in said, f"{who}: {said}"


def test_a_folder_that_was_made_anew_is_told_as_a_stale_mount(daemon, places):
    origin, place = places
    daemon.start()
    with _Container(origin, place) as container:
        assert daemon.stop() == 0
        origin.rmdir()  # As systemd does when a service stops.
        origin.mkdir(mode=0o755)
        daemon.start()
        for who, said in _ask(container, place / "epd.sock").items():
            assert f"{place} is a stale mount: the folder" in said, f"{who}: {said}"
            assert "RuntimeDirectoryPreserve=yes" in said and "EPD-1405" in said, f"{who}: {said}"


def test_a_sockets_file_that_was_made_anew_is_told_as_a_stale_mount(daemon, places):
    origin, place = places
    daemon.start()
    mounted = place / "epd-grpc.sock"  # The one that both programs ask for.
    mounted.touch()
    with _Container(origin / "epd-grpc.sock", mounted) as container:
        assert daemon.stop() == 0
        daemon.start()
        for who, said in _ask(container, mounted).items():
            assert "is a stale mount: the socket's file" in said, f"{who}: {said}"
