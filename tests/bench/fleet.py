"""The processes of one contender, one per rank, as the driver sees them.

Each process connects to the fleet's Unix socket, says its rank and its process id, and then answers one line per command:
  load FOLDER R T H K E C       read the problem and get ready
  run OP N                      N timed iterations -> "times" and N numbers, in nanoseconds
  dump OP PATH                  write the last result of OP to PATH.RANK
  groups N RUNS                 (only epd_groups)
  unload | versions | quit
with "ok ...", or "error TEXT". Between commands a process sleeps in a read, so contenders do not disturb each other.
"""

import pathlib
import selectors
import socket
import struct
import subprocess
import time
from collections.abc import Iterable

_STOP_SECONDS = 10
_LOG_LINES = 30


class FleetError(RuntimeError):
    """A contender did not start, died, or said that something is wrong."""


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of all threads that these processes have now."""
    nanoseconds = 0
    for pid in pids:
        for facts in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                nanoseconds += int(facts.read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                pass  # That thread ended meanwhile.
    return nanoseconds / 1e9


class _Rank:
    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.pid = 0
        self._pending = b""

    def send_line(self, line: str) -> None:
        try:
            self.connection.sendall(line.encode() + b"\n")
        except OSError:
            pass  # It ended; the next look at the processes says so.

    def try_read_line(self) -> str | None:
        """One read; the line if it is complete."""
        data = self.connection.recv(1 << 20)
        if not data:
            return "error the process ended"
        self._pending += data
        if b"\n" not in self._pending:
            return None
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        self.connection.close()


class Fleet:
    def __init__(self, name: str, num_ranks: int, folder: pathlib.Path):
        self.name = name
        self.num_ranks = num_ranks
        self.socket_path = folder / f"{name}.sock"
        # Where the ranks meet before each timed call: see barrier.h.
        pathlib.Path(f"{self.socket_path}.barrier").write_bytes(
            struct.pack("=III", num_ranks, 0, 0)
        )
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.socket_path))
        self._listener.listen(num_ranks)
        self._processes: list[tuple[subprocess.Popen, pathlib.Path]] = []
        self._ranks: dict[int, _Rank] = {}

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """Starts one process (of one rank, or mpirun for all)."""
        log = self._folder / f"{self.name}.{len(self._processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._processes.append((process, log))

    def pids(self) -> list[int]:
        """Of its ranks."""
        return [rank.pid for rank in self._ranks.values()]

    def cpu_seconds(self) -> float:
        """CPU time that its ranks have used so far."""
        return cpu_seconds(self.pids())

    def wait_for_ranks(self, timeout: float) -> None:
        """Until every rank has connected and said its number."""
        deadline = time.monotonic() + timeout
        silent: list[_Rank] = []
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while len(self._ranks) < self.num_ranks:
                self._check_processes()
                if time.monotonic() > deadline:
                    raise FleetError(
                        f"{self.name}: ranks {sorted(self._ranks)} of {self.num_ranks} came within "
                        f"{timeout:.0f} s, {len(silent)} connected and said nothing\n{self._logs()}"
                    )
                for key, _ in selector.select(0.5):
                    if key.data is None:
                        rank = _Rank(self._listener.accept()[0])
                        silent.append(rank)
                        selector.register(rank.connection, selectors.EVENT_READ, rank)
                    elif (line := key.data.try_read_line()) is not None:
                        selector.unregister(key.fileobj)
                        silent.remove(key.data)
                        self._add_rank(line, key.data)

    def _add_rank(self, line: str, rank: _Rank) -> None:
        match line.split():
            case ["rank", number, pid]:
                rank.pid = int(pid)
                self._ranks[int(number)] = rank
            case _:
                raise FleetError(
                    f"{self.name}: got '{line}', expected a rank and its pid\n{self._logs()}"
                )

    def command(self, line: str, timeout: float) -> list[str]:
        """Sends `line` to all ranks and returns their answers by rank, without the "ok"."""
        for rank in self._ranks.values():
            rank.send_line(line)
        deadline = time.monotonic() + timeout
        answers: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for number, rank in self._ranks.items():
                selector.register(rank.connection, selectors.EVENT_READ, number)
            while len(answers) < len(self._ranks):
                events = selector.select(0.5)
                for key, _ in events:
                    answer = self._ranks[key.data].try_read_line()
                    if answer is not None:
                        answers[key.data] = answer
                        selector.unregister(key.fileobj)
                if not events:
                    self._check_processes()
                    if time.monotonic() > deadline:
                        late = sorted(set(self._ranks) - set(answers))
                        raise FleetError(
                            f"{self.name}: '{line}': no answer of ranks {late} within "
                            f"{timeout:.0f} s\n{self._logs()}"
                        )
        failed = [f"rank {n}: {a}" for n, a in sorted(answers.items()) if not a.startswith("ok")]
        if failed:
            raise FleetError(f"{self.name}: '{line}': " + "; ".join(failed))
        return [answers[number][3:] for number in sorted(answers)]

    def stop(self) -> None:
        for rank in self._ranks.values():
            rank.close()
        for process, _ in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._listener.close()

    def _check_processes(self) -> None:
        for process, _ in self._processes:
            if process.poll() is not None:
                raise FleetError(
                    f"{self.name}: a process ended with {process.returncode}\n{self._logs()}"
                )

    def _logs(self) -> str:
        text = ""
        for _, log in self._processes:
            lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            text += f"--- {log.name}\n" + "\n".join(lines) + "\n"
        return text
