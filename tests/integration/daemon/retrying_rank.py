"""A rank that calls without end and tries again after each error, as a program that wants to survive does.

    python retrying_rank.py SOCKET RANK NUM_RANKS

Prints a line per call, "TIME good" or "TIME failed CODE MESSAGE", of the clock that all processes of the machine share; a
call a hundredth of a second. Ends when its standard input does.
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


def main(socket: str, number: int, num_ranks: int) -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    rank = c_client.Rank(socket, "retried", number, num_ranks)
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
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
