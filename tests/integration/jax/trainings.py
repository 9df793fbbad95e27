"""Trainings on one or several nodes, whose daemons end and come back meanwhile."""

import subprocess

import wait
from harness import HERE, Daemon, clean_environment, python


class Training:
    """Processes that run a script, one in front of each daemon; without a daemon's socket where they start a private one.

    The script gets ``steps``, the number of ranks and its rank, and says "step N" after each step."""

    def __init__(self, script: str, daemons: list[Daemon], steps: int, **given: str):
        self._said = [daemon.folder / f"rank{rank}.out" for rank, daemon in enumerate(daemons)]
        self._processes = []
        private = "XDG_RUNTIME_DIR" in given
        for rank, daemon in enumerate(daemons):
            with self._said[rank].open("w") as said:
                own = given if private else {"EPD_SOCKET": daemon.socket, **given}
                words = [str(HERE / "scripts" / script), str(steps), str(len(daemons)), str(rank)]
                self._processes.append(
                    subprocess.Popen(
                        [*daemon.inside, *python(*words)],
                        env=clean_environment(EPD_FORM_TIMEOUT="60", **own),
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=subprocess.STDOUT,
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()

    def said(self) -> list[str]:
        return [path.read_text() for path in self._said]

    def reach(self, step: int) -> None:
        wait.until(
            lambda: (self._all_live() and all(f"step {step}\n" in said for said in self.said())),
            f"all ranks to reach step {step}",
            90,
        )

    def _all_live(self) -> bool:
        assert not any(process.poll() for process in self._processes), self.said()
        return True

    def expect_finish(self) -> None:
        assert [process.wait(90) for process in self._processes] == [0] * len(self._processes), (
            self.said()
        )
        assert all(said.endswith(": fine\n") for said in self.said()), self.said()


def start_again(daemon: Daemon) -> None:
    """With the options and the address of its last start."""
    address = f"--listen={daemon.listen_address()}"
    given = [word for word in daemon.options if not word.startswith("--listen=")]
    daemon.start(*given, address)
