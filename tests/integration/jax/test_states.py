"""Goal: what a Group says of itself, its state, its epoch and what finds it, is so while it forms, when it is ready, after each kind of
loss and after it was left; and wait_ready waits for it, for as long as it is told."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import harness
import pytest
import wait
from harness import clean_environment, python, running_daemon

_SCRIPT = harness.HERE / "scripts" / "states.py"


class _Rank:
    def __init__(self, daemon: harness.Daemon, rank: int):
        environment = {"EPD_SOCKET": daemon.socket, "EPD_AUTOSTART": "0", "EPD_FORM_TIMEOUT": "60"}
        self.process = subprocess.Popen(
            python(str(_SCRIPT), str(rank)),
            env=clean_environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, turn: str) -> None:
        self.process.stdin.write(f"{turn}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def say(self, turn: str) -> str:
        self.begin(turn)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def _pair(daemon: harness.Daemon) -> Iterator[list[_Rank]]:
    """Both have joined in epoch 1 and made a call."""
    ranks = [_Rank(daemon, rank) for rank in (0, 1)]
    try:
        assert [one.say("join") for one in ranks] == ["joins"] * 2
        assert [one.say("joined") for one in ranks] == ["joined"] * 2
        _step(ranks)
        yield ranks
    finally:
        for one in ranks:
            one.end()


def _step(ranks: list[_Rank]) -> None:
    """Rank 0 has expert 0, to which all go."""
    for one in ranks:
        one.begin("step")
    # Not both at once: a rank whose peer has failed waits for it.
    for one, rows in zip(ranks, ("16 rows", "0 rows"), strict=True):
        answer = one.answer()
        assert answer == rows, answer


def test_while_it_forms_and_after_it_was_left():
    with running_daemon() as daemon, contextlib.ExitStack() as ends:
        first = _Rank(daemon, 0)
        ends.callback(first.end)
        assert first.say("look") == "left 0 not found"
        assert first.say("wait 1").startswith("FAILED_PRECONDITION (connect again)")
        assert first.say("join") == "joins"
        wait.until(lambda: first.say("look").startswith("joining 0"), "it joins", 10)
        began = time.monotonic()
        late = first.say("wait 0.5")
        assert 0.5 <= time.monotonic() - began < 5
        assert late.startswith("DEADLINE_EXCEEDED (call again)") and "state joining" in late, late
        first.begin("wait 60")
        second = _Rank(daemon, 1)
        ends.callback(second.end)
        assert second.say("join") == "joins"
        assert first.answer() == "ready"
        assert [one.say("joined") for one in (first, second)] == ["joined"] * 2
        assert [one.say("look") for one in (first, second)] == ["ready 1 found"] * 2
        _step([first, second])
        for one in (first, second):
            assert one.say("finalize") == "left"
            assert one.say("look") == "left 0 not found"
            assert one.say("step").startswith("FAILED_PRECONDITION (connect again)")
        second.begin("connect")
        assert [first.say("connect"), second.answer()] == ["connected"] * 2
        state, epoch, found = first.say("look").split(maxsplit=2)
        assert (state, found) == ("ready", "found") and int(epoch) >= 1
        _step([first, second])


def test_after_another_rank_was_lost():
    with running_daemon() as daemon, _pair(daemon) as ranks:
        ranks[1].end()
        error = ranks[0].say("step")
        assert error.startswith("UNAVAILABLE (call again)") and "rank=1 " in error, error
        assert ranks[0].say("look") == "ready 1 found", "its own rank is in the group"
        ranks[1] = _Rank(daemon, 1)
        assert [ranks[1].say("join"), ranks[1].say("joined")] == ["joins", "joined"]
        assert [one.say("look") for one in ranks] == ["ready 1 found"] * 2, "of the same workers"
        _step(ranks)


def test_a_killed_rank_whose_data_loader_lives_on_is_named_within_a_second(record_property):
    """Measured in the rank that waits for it, from the kill to the error; its place can be taken while the loader lives."""
    took = []
    with running_daemon() as daemon, _pair(daemon) as ranks, contextlib.ExitStack() as loaders:
        for _ in range(3):
            loader = int(ranks[1].say("load"))
            loaders.callback(os.kill, loader, signal.SIGKILL)
            ranks[0].begin("step")
            time.sleep(0.5)  # It is deep in its wait.
            killed = time.monotonic()
            ranks[1].process.kill()
            error = ranks[0].answer()
            took.append(time.monotonic() - killed)
            assert error.startswith("UNAVAILABLE") and f"pid={ranks[1].process.pid} " in error, (
                error
            )
            os.kill(loader, 0)
            ranks[1].end()
            ranks[1] = _Rank(daemon, 1)
            assert [ranks[1].say("join"), ranks[1].say("joined")] == ["joins", "joined"]
            _step(ranks)
    record_property("seconds", took)
    print("named after", ", ".join(f"{1000 * one:.1f} ms" for one in took))
    assert max(took) < 1, took


def test_after_its_worker_was_lost():
    with running_daemon() as daemon, _pair(daemon) as ranks:
        os.kill(daemon.worker_pid(), signal.SIGKILL)
        for one in ranks:
            wait.until(lambda one=one: one.say("look") == "ready 2 found", "the next epoch", 20)
            assert one.say("wait 20") == "ready"
        _step(ranks)


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_after_its_daemon_was_lost(ending: str):
    with running_daemon() as daemon, _pair(daemon) as ranks:
        getattr(daemon, ending)()
        for one in ranks:
            wait.until(lambda one=one: one.say("look") == "lost 1 found", "the loss is seen", 10)
        late = ranks[0].say("wait 1")
        assert late.startswith("DEADLINE_EXCEEDED (call again)") and "state joining" in late, late
        assert ranks[0].say("look") == "joining 1 found", "it goes on in a thread"
        daemon.start()
        for one in ranks:
            one.begin("wait 40")
        assert [one.answer() for one in ranks] == ["ready"] * 2
        states = [one.say("look") for one in ranks]
        assert states[0] == states[1] and states[0].startswith("ready "), states
        assert int(states[0].split()[1]) > 1, "epochs grow over daemons"
        _step(ranks)
