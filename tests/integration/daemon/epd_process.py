"""An epd process with a fake worker, in a folder of its own. Importing this makes the protos importable."""

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile

import cluster_secret
import wait

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_HERE = pathlib.Path(__file__).resolve().parent
_PROTOS = ["attach", "figures", "trace", "worker", "node", "cluster", "wire"]


def _generate_protos() -> pathlib.Path:
    out = _ROOT / "out" / "test_protos"
    out.mkdir(parents=True, exist_ok=True)
    sources = [f"proto/epd/v1/{name}.proto" for name in _PROTOS]
    # Another pytest worker may be importing them: each is whole at any time.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="test_protos-") as fresh:
        subprocess.run(
            ["protoc", "--proto_path=.", f"--python_out={fresh}", *sources], cwd=_ROOT, check=True
        )
        for made in pathlib.Path(fresh).rglob("*.py"):
            place = out / made.relative_to(fresh)
            place.parent.mkdir(parents=True, exist_ok=True)
            made.replace(place)
    return out


_GENERATED = _generate_protos()
sys.path[:0] = [str(_GENERATED), str(_HERE)]

import attach_client  # noqa: E402  (needs the protos)


def binary(name: str) -> str:
    folder = os.environ.get("EPD_TEST_BIN", str(_ROOT / ".venv" / "bin"))
    path = pathlib.Path(folder) / name
    assert path.exists(), f"{path} is missing; run deploy/setup, or set EPD_TEST_BIN"
    return str(path)


def import_paths() -> list[str]:
    """What a script of its own needs on sys.path to use attach.py."""
    return [str(_GENERATED), str(_HERE)]


def environment(quirks: str = "") -> dict[str, str]:
    """What the fake worker needs to know."""
    return dict(os.environ, EPD_TEST_PROTOS=str(_GENERATED), EPD_FAKE_WORKER=quirks)


@contextlib.contextmanager
def open_folder():
    """A folder that every user may enter; each pytest that starts closes its own to all but its user."""
    with tempfile.TemporaryDirectory(prefix="epd-test-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        yield folder


class Daemon:
    """One epd process with its socket, log and fake worker."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.socket = str(folder / "epd.sock")
        self.grpc_socket = str(folder / "epd-grpc.sock")
        self.process: subprocess.Popen | None = None
        self._log = folder / "epd.log"

    def _worker_script(self) -> str:
        script = self.folder / "worker"
        words = [sys.executable, str(_HERE / "fake_worker_process.py")]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        script.chmod(0o755)
        return str(script)

    def command(self, *flags: str) -> list[str]:
        """A setting may be given once: those of ``flags`` stand for the usual ones."""
        usual = [
            f"--socket={self.socket}",
            f"--worker={self._worker_script()}",
            "--staging_bytes=64MiB",
            "--drain_deadline=5s",
            *cluster_secret.flags(),
        ]
        given = {flag.partition("=")[0] for flag in flags}
        return [binary("epd"), *(u for u in usual if u.partition("=")[0] not in given), *flags]

    def start(self, *flags: str, quirks: str = "", wrap: tuple[str, ...] = ()) -> "Daemon":
        starts = self.log().count('event="serving"') if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*wrap, *self.command(*flags)],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=environment(quirks),
            )
        self.wait_for_log('event="serving"', starts + 1)
        return self

    def log(self) -> str:
        return self._log.read_text()

    def wait_for_log(
        self, text: str, count: int = 1, seconds: float = attach_client.DEADLINE_S
    ) -> None:
        def found() -> bool:
            assert self.process.poll() is None or text in self.log(), self.log()
            return self.log().count(text) >= count

        try:
            wait.until(found, f"'{text}' in the log", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def client(self, uid: int | None = None):
        return attach_client.Client(self.socket, uid)

    def listen_address(self) -> str:
        lines = [line for line in self.log().splitlines() if 'event="serving"' in line]
        return lines[-1].split(" listen=")[1].split()[0]

    def worker_pid(self) -> int:
        self.wait_for_log("worker ready")
        lines = [line for line in self.log().splitlines() if "worker ready" in line]
        return int(lines[-1].split("worker_pid=")[1].split()[0])

    def stop(self, deadline: float = 10) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
