"""A rank that calls without end and tries again after each error, as a program that wants to survive does.

    python retrying_rank.py SOCKET RANK NUM_RANKS [PAUSE [JOIN_MS]]

Prints a line per call, "TIME good" or "TIME failed CODE MESSAGE", of the clock that all processes of the machine share; PAUSE
seconds before each call, a hundredth of one if it is not said. JOIN_MS: the deadline of its first
join. Ends when its standard input does.
"""

import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import c_client  # noqa: E402

_PAUSE_S = 0.01


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def main(socket: str, number: int, num_ranks: int, pause: float, join_ms: int) -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    rank = c_client.Rank(socket, "retried", number, num_ranks, join_ms=join_ms)
    while True:
        try:
            rank.prepare("step")
            print(time.monotonic(), "good", flush=True)
        except c_client.Refused as error:
            print(time.monotonic(), "failed", error.code, error, flush=True)
            if "join again" in str(error):
                try:
                    rank.join()
                except c_client.Refused as refusal:
                    print(time.monotonic(), "refused", refusal.code, refusal, flush=True)
        time.sleep(pause)


if __name__ == "__main__":
    pause = float(sys.argv[4]) if len(sys.argv) > 4 else _PAUSE_S
    join_ms = int(sys.argv[5]) if len(sys.argv) > 5 else 20000
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), pause, join_ms)
