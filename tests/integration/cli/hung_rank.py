"""The test's end of hanging_client.py: begins its calls, and reads what it prints with a deadline."""

import pathlib
import queue
import subprocess
import sys
import threading

_CLIENT = pathlib.Path(__file__).with_name("hanging_client.py")
_DEADLINE_SECONDS = 20


class HungRank:
    """One process that is a rank of the group "hung"; joined once `expect("joined")` returns."""

    def __init__(self, socket: str, rank: int, tenant: str = "", name: str = "hanging client"):
        command = [sys.executable, str(_CLIENT), socket, str(rank), tenant, name]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put("(end of output)")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, key: str, alignment: int = 0) -> None:
        """Begins a prepare; both ranks must name the same key and alignment."""
        self._process.stdin.write(f"{key} {alignment}\n")
        self._process.stdin.flush()
        self.expect(f"calling {key}")

    def hang_up(self) -> None:
        """Its session ends; the process lives on, with everything mapped."""
        self._process.stdin.write("hang-up\n")
        self._process.stdin.flush()
        self.expect("hung up")

    def expect(self, start: str) -> str:
        """The next line that it prints, without `start`, with which it must begin."""
        try:
            line = self._lines.get(timeout=_DEADLINE_SECONDS)
        except queue.Empty:
            raise AssertionError(f"no line in {_DEADLINE_SECONDS} s, expected '{start}'") from None
        assert line.startswith(start), f"got '{line}', expected '{start}'"
        return line[len(start) :].strip()

    def result(self, key: str) -> tuple[int, str]:
        """Code and message of the call that `begin` began."""
        code, _, message = self.expect(f"ended {key}").partition(" ")
        return int(code), message

    def close(self) -> None:
        """Also when it is stopped (SIGSTOP)."""
        self._process.kill()
        self._process.wait()
