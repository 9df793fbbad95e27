"""What processes of a release said to each other, kept in recorded/<release>-<link>.txt, one message a line:

    > 0a05...           from the client or node to the epd, in hexadecimal
    < 1203... 2         from the epd, with the number of descriptors that came along
    = 4550...           the first page of the slots segment that came with Attached

After a release: python tests/integration/daemon/recordings.py RELEASE, with the binaries that deploy/setup installed."""

import concurrent.futures
import dataclasses
import pathlib
import queue
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

import grpc

FOLDER = pathlib.Path(__file__).with_name("recorded")
_RECEIVE_BYTES = 256 * 1024
_PAGE = 4096


@dataclasses.dataclass
class Message:
    direction: str
    data: bytes
    num_fds: int = 0


def load(name: str) -> list[Message]:
    messages = []
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        direction, data, *num_fds = line.split(" ")
        messages.append(Message(direction, bytes.fromhex(data), int(*num_fds or [0])))
    return messages


def said(messages: list[Message], direction: str) -> list[Message]:
    return [message for message in messages if message.direction == direction]


def _save(name: str, messages: list[Message]) -> None:
    FOLDER.mkdir(exist_ok=True)
    lines = [
        f"{one.direction} {one.data.hex()}" + (f" {one.num_fds}" if one.num_fds else "")
        for one in messages
    ]
    (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")


class _AttachProxy:
    """Between one client and epd; keeps what passes."""

    def __init__(self, path: str, epd: str) -> None:
        self.messages: list[Message] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(1)
        self._epd = epd
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(20)

    def _run(self) -> None:
        client, _ = self._listener.accept()
        epd = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        epd.connect(self._epd)
        other = {client: epd, epd: client}
        while True:
            for end in select.select([client, epd], [], [])[0]:
                try:
                    data, fds, _, _ = socket.recv_fds(end, _RECEIVE_BYTES, 250)
                except ConnectionResetError:
                    return
                if not data:
                    return
                self.messages.append(Message("<" if end is epd else ">", data, len(fds)))
                if end is epd and fds and len(self.messages) == 2:
                    with open(fds[0], "rb", closefd=False) as segment:
                        self.messages.append(Message("=", segment.read(_PAGE)))
                socket.send_fds(other[end], [data], fds)


def _record_attach(release: str, folder: pathlib.Path) -> None:
    import hung_rank
    import running_epd

    with running_epd.RunningEpd("--node=recorded") as epd:
        proxies = [_AttachProxy(f"{folder}/{rank}.sock", epd.socket) for rank in (0, 1)]
        ranks = [hung_rank.HungRank(f"{folder}/{rank}.sock", rank) for rank in (0, 1)]
        for rank in ranks:
            rank.expect("joined")
        for rank in ranks:
            rank.close()
        for number, proxy in enumerate(proxies):
            proxy.join()
            _save(f"{release}-attach-rank{number}", proxy.messages)


def _record_sync(release: str, folder: pathlib.Path) -> None:
    import epd_process  # First: it makes the protos importable.

    import attach_client  # isort: skip

    messages: list[Message] = []
    first = epd_process.Daemon(folder / "a")
    (folder / "a").mkdir()
    first.start("--node=a", "--listen=127.0.0.1:0", "--start_grace=0", quirks="no_nccl")
    channel = grpc.insecure_channel(first.listen_address())
    upstream = channel.stream_stream("/epd.v1.Cluster/Sync")

    challenge = channel.unary_unary("/epd.v1.Cluster/Challenge")

    def sync(reports, context):
        proof = [(key, value) for key, value in context.invocation_metadata() if "epd-" in key]
        sent: queue.Queue = queue.Queue()

        def read() -> None:
            for report in reports:
                messages.append(Message(">", report))
                sent.put(report)
            sent.put(None)

        threading.Thread(target=read, daemon=True).start()
        for view in upstream(iter(sent.get, None), metadata=proof):
            messages.append(Message("<", view))
            yield view

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    handlers = {
        "Challenge": grpc.unary_unary_rpc_method_handler(lambda asked, _: challenge(asked)),
        "Sync": grpc.stream_stream_rpc_method_handler(sync),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("epd.v1.Cluster", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    (folder / "o").mkdir()
    second = epd_process.Daemon(folder / "o")
    second.start("--node=o", f"--coordinator=127.0.0.1:{port}", quirks="no_nccl")
    second.wait_for_log("coordinator connected")
    clients = [first.client(), second.client()]
    for rank, client in enumerate(clients):
        client.attach()
        client.start_join(attach_client.spec("recorded", num_ranks=2), [rank])
    for client in clients:
        client.expect("joined")
    time.sleep(0.3)
    kept = list(messages)
    for daemon in (second, first):
        daemon.stop()
    server.stop(None)
    _save(f"{release}-sync", kept)


def main() -> int:
    release = sys.argv[1]
    here = pathlib.Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent), str(here.parent / "cli"), str(here.parents[2])]
    with tempfile.TemporaryDirectory(prefix="epd-rec-") as folder:
        _record_attach(release, pathlib.Path(folder))
        _record_sync(release, pathlib.Path(folder))
    subprocess.run(["ls", "-l", str(FOLDER)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
