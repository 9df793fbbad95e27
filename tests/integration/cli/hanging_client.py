"""A rank of the group "hung" whose calls the test begins one by one, so that one may wait for the other rank.

    python hanging_client.py SOCKET RANK [TENANT [NAME]]

Prints "joined", or "refused MESSAGE" and ends. Each line of its standard input is a key and perhaps an alignment: it prints "calling KEY", calls prepare with them in a
thread, and prints "ended KEY CODE MESSAGE". The line "hang-up" breaks its connection to epd, and it prints "hung up". Ends when its standard
input does.
"""

import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import c_client  # noqa: E402


def _call(rank: c_client.Rank, key: str, alignment: int) -> None:
    try:
        rank.prepare(key, alignment)
        print("ended", key, 0, flush=True)
    except c_client.Refused as refusal:
        print("ended", key, refusal.code, refusal, flush=True)


def main(socket: str, rank: int, tenant: str = "", name: str = "hanging client") -> None:
    try:
        joined = c_client.Rank(socket, "hung", rank, 2, tenant, name=name)
    except c_client.Refused as refusal:
        print("refused", refusal, flush=True)
        return
    print("joined", flush=True)
    for line in sys.stdin:
        key, *alignment = line.split()
        if key == "hang-up":
            c_client.hang_up(socket)
            print("hung up", flush=True)
            continue
        print("calling", key, flush=True)
        arguments = (joined, key, int(*alignment))
        threading.Thread(target=_call, args=arguments, daemon=True).start()
    os._exit(0)  # A call may still wait.


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
