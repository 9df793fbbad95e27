"""Two nodes with an epd and a worker each, and the three ranks of a group on them, for the kill matrix."""

import contextlib
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

import cluster_secret
import wait

NUM_RANKS = 3
# Where the ranks are: of one node, small rows go from rank to rank without the worker.
ONE_NODE, TWO_NODES = (0, 0, 0), (0, 0, 1)
_START_S = 60
_END_S = 20
# Scaled so that a stop of LONG_STOP_S is longer than each of them.
_FLAGS = (
    "--heartbeat=1s",
    "--worker_heartbeat=500ms",
    "--worker_stuck=4s",
    "--absent=4s",
    "--undecided=4s",
    "--form=10s",
    "--start_grace=500ms",
    "--drain_deadline=2s",
    # Many workers of one epd die in a row here; by default it would try ever more rarely, up to each half a minute.
    "--worker_backoff_max=200ms",
    "--staging_bytes=256MiB",
)
LONG_STOP_S = 6.0
# gRPC makes one for a thread that waits, and keeps it for the next; what is leaked goes beyond.
_KEPT_EVENTFDS = 12


class Rules:
    """A file of failpoint rules, and what was done of them."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._fired = path.with_name(path.name + ".fired")

    def write(self, text: str) -> None:
        self._fired.unlink(missing_ok=True)
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(text)
        fresh.rename(self.path)

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self._fired.unlink(missing_ok=True)

    def fired(self, point: str) -> int:
        """The process that did something at `point`; 0: none yet."""
        if not self._fired.exists():
            return 0
        for line in self._fired.read_text().splitlines():
            pid, name, *_ = line.split()
            if name == point:
                return int(pid)
        return 0


def held_by(pid: int) -> tuple[int, int, int, int]:
    """Descriptors, event counters, memfds, and the bytes of memory in those, of a process; zeros if it is gone."""
    num_fds = num_memfds = num_bytes = 0
    num_eventfds = 0
    folder = pathlib.Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(folder / name)
                if target == "anon_inode:[eventfd]":
                    num_eventfds += 1
                    continue
                num_fds += 1
                if target.startswith("/memfd:"):
                    num_memfds += 1
                    num_bytes += os.stat(folder / name).st_blocks * 512
    return num_fds, max(num_eventfds, _KEPT_EVENTFDS), num_memfds, num_bytes


def _children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


class Node:
    def __init__(self, folder: pathlib.Path, binaries: pathlib.Path, index: int, flags: list[str]):
        self.folder, self._binaries, self._index, self._flags = folder, binaries, index, flags
        folder.mkdir()
        self.socket = str(folder / "epd.sock")
        self.rules = Rules(folder / "rules")
        self._log = folder / "epd.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        begun = self._served()
        command = [str(self._binaries / "epd"), f"--socket={self.socket}", f"--node=n{self._index}"]
        command += [f"--worker={self._binaries / 'epd-worker'}"]
        environment = dict(os.environ, EPD_FAILPOINTS_FILE=str(self.rules.path), EPD_DUMPABLE="yes")
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *_FLAGS, *cluster_secret.flags(), *self._flags],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=environment,
            )
        wait.until(lambda: self._served() > begun, f"epd serves: {self.log()[-2000:]}", _START_S)

    def _served(self) -> int:
        return self.log().count('event="serving"')

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def address(self) -> str:
        return re.findall(r'event="serving".* listen=(\S+)', self.log())[-1]

    def worker_pid(self) -> int:
        """Of a worker that is ready; 0: none is."""
        ready = re.findall(r'event="worker (ready|ended)" .*?worker_pid=(\d+)', self.log())
        return int(ready[-1][1]) if ready and ready[-1][0] == "ready" else 0

    def revive(self) -> None:
        """Starts it again if it has ended."""
        if self.process.poll() is not None:
            self.start()

    def held(self) -> dict[str, tuple[int, ...]]:
        children = _children_of(self.process.pid)
        name = f"n{self._index}"
        held = {f"{name} epd": held_by(self.process.pid), f"{name} processes": (len(children),)}
        if worker := self.worker_pid():
            held[f"{name} worker"] = held_by(worker)
        return held

    def stop(self) -> int:
        """The exit status of epd; None where it had to be killed."""
        for pid in (*_children_of(self.process.pid), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Rank:
    """A process of kill_rank."""

    def __init__(self, program: pathlib.Path, node: Node, rank: int, hidden: int, rules: Rules):
        self.rank, self.rules = rank, rules
        self.process = subprocess.Popen(
            [str(program), node.socket, str(rank), str(NUM_RANKS), str(hidden)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ, EPD_FAILPOINTS_FILE=str(rules.path)),
        )
        self.busy = False
        self._heard = b""
        self.figures = self.ask("figures")

    def say(self, line: str) -> None:
        self.busy = True
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def has_answer(self, seconds: float) -> bool:
        """Whether hear() would not wait; waits up to `seconds` for that."""
        return b"\n" in self._heard or bool(
            select.select([self.process.stdout], [], [], seconds)[0]
        )

    def hear(self, seconds: float) -> str | None:
        """The next line; "ended": the process has; None: not within `seconds`."""
        end = time.monotonic() + seconds
        fd = self.process.stdout.fileno()
        while b"\n" not in self._heard:
            left = end - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return None
            more = os.read(fd, 65536)
            if not more:
                self.busy = False
                return "ended"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        self.busy = False
        return line.decode(errors="replace")

    def ask(self, line: str, seconds: float = 30) -> str | None:
        self.say(line)
        return self.hear(seconds)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        # What was said to one that was killed is still to be written.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


class Fleet:
    """Two nodes; the first coordinates. Use it as a context manager."""

    def __init__(self, binaries: pathlib.Path):
        self._binaries = binaries
        # Short, as socket paths are.
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="epd-kill-"))
        first = Node(self._folder / "n0", binaries, 0, ["--listen=127.0.0.1:0"])
        first.start()
        # Again on that port when it is started anew.
        first._flags[:] = [f"--listen={first.address()}"]
        second = Node(self._folder / "n1", binaries, 1, [f"--coordinator={first.address()}"])
        second.start()
        self.nodes = [first, second]
        self._rank_rules = [Rules(self._folder / f"rank{rank}") for rank in range(NUM_RANKS)]
        self.await_workers()

    def __enter__(self):
        return self

    def __exit__(self, *unused: object) -> None:
        for node in reversed(self.nodes):
            node.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def await_workers(self) -> None:
        for node in self.nodes:
            wait.until(node.worker_pid, f"a worker: {node.log()[-2000:]}", _START_S)

    def start_rank(self, rank: int, hidden: int, nodes: tuple[int, ...] = TWO_NODES) -> Rank:
        node = self.nodes[nodes[rank]]
        return Rank(self._binaries / "kill_rank", node, rank, hidden, self._rank_rules[rank])

    def held(self) -> dict[str, tuple[int, ...]]:
        return {**self.nodes[0].held(), **self.nodes[1].held()}

    def clear_rules(self) -> None:
        for rules in (*self._rank_rules, *(node.rules for node in self.nodes)):
            rules.clear()
