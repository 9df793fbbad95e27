"""A worker that answers epd and moves no rows, so that epd's own behaviour is tested alone.

Started by epd through a wrapper script; speaks proto/epd/v1/worker.proto on descriptor 3. EPD_FAKE_WORKER is a
comma-separated list of quirks: "no_nccl", "dies_at_start", "silent" (says ready, then answers nothing), "marked_id" (unique ids
begin with "epd-test-unique-id"), "held_up_by=UID" (on SIGUSR2 it waits in the kernel, and says for whose memory, until its only child is
killed). On SIGUSR1 it says of its last tenant that it cannot go on.
"""

import ctypes
import hashlib
import os
import platform
import signal
import socket
import struct
import sys

_RECEIVE_BYTES = 256 * 1024
_ARENA_BYTES = 1 << 20
# Of `touched` in the records' header, proto/epd/v1/segment.h.
_TOUCHED_OFFSET = 40
_SYS_CLONE = 56 if platform.machine() == "x86_64" else 220
_CLONE_VFORK = 0x4000
_PR_SET_PDEATHSIG = 1


class FakeWorker:
    def __init__(self, quirks: set[str]) -> None:
        from proto.epd.v1 import worker_pb2

        self._pb = worker_pb2
        self._quirks = quirks
        self._socket = socket.socket(fileno=3)
        self._sessions: set[int] = set()
        self._fds: list[int] = []
        self._last_tenant = None

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: self._break_last())
        signal.signal(signal.SIGUSR2, lambda *_: self._wait_in_kernel())
        while True:
            data, fds, _, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, 8)
            if not data:
                return
            self._fds += fds
            message = self._pb.ToWorker.FromString(data)
            body = message.WhichOneof("body")
            if body == "hello":
                self._hello()
            elif "silent" not in self._quirks:
                getattr(self, "_" + body, lambda m: None)(getattr(message, body))

    def _send(self, fds: tuple[int, ...] = (), **body: object) -> None:
        data = self._pb.FromWorker(**body).SerializeToString()
        socket.send_fds(self._socket, [data], list(fds))

    def _hello(self) -> None:
        ready = self._pb.WorkerReady(backend="fake", simd="scalar", pid=os.getpid())
        if "no_nccl" in self._quirks:
            ready.nccl_problem = "no libnccl.so.2 for a fake"
        else:
            ready.nccl_version = "2.99.0"
        self._send(ready=ready)

    def _add_session(self, message) -> None:
        self._sessions.add(message.session_id)

    def _session_dead(self, message) -> None:
        self._sessions.discard(message.session_id)

    def _start_tenant(self, message) -> None:
        ready = self._pb.TenantReady(group_id=message.group_id, formation=message.formation)
        fds = []
        for member in message.members:
            if member.session_id == 0:
                continue
            fd = os.memfd_create(f"arena-{member.rank}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, _ARENA_BYTES)
            fds += [fd, os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)]
            ready.arenas.add(rank=member.rank, bytes=_ARENA_BYTES)
        self._send(tuple(fds), tenant_ready=ready)
        for fd in fds:
            os.close(fd)

        self._last_tenant = message

    def _break_last(self) -> None:
        last = self._last_tenant
        broken = self._pb.TenantBroken(group_id=last.group_id, formation=last.formation)
        broken.cause.code, broken.cause.message = 14, "the worker of node a is out of reach"
        self._send(tenant_broken=broken)

    def _wait_in_kernel(self) -> None:
        (uid,) = (int(q.partition("=")[2]) for q in self._quirks if q.startswith("held_up_by="))
        records = self._fds[0]
        os.pwrite(records, struct.pack("<Q", uid + 1), _TOUCHED_OFFSET)
        libc = ctypes.CDLL(None)
        # Whose child was made so waits until it has ended, and no signal but one that kills ends that.
        if libc.syscall(_SYS_CLONE, _CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            while True:
                signal.pause()
        os.pwrite(records, struct.pack("<Q", 0), _TOUCHED_OFFSET)

    def _drain_tenant(self, message) -> None:
        drained = self._pb.TenantDrained(group_id=message.group_id, formation=message.formation)
        self._send(tenant_drained=drained)

    def _make_unique_id(self, message) -> None:
        made = self._pb.UniqueIdMade(group_id=message.group_id, epoch=message.epoch)
        made.unique_id = os.urandom(128)
        if "marked_id" in self._quirks:
            made.unique_id = b"epd-test-unique-id" + made.unique_id[18:]
        self._send(unique_id_made=made)

    def _init_communicator(self, message) -> None:
        ready = self._pb.CommunicatorReady(group_id=message.group_id, epoch=message.epoch)
        if message.unique_id:
            ready.unique_id_sha256 = hashlib.sha256(message.unique_id).digest()
        self._send(communicator_ready=ready)

    def _get_snapshot(self, message) -> None:
        snapshot = self._pb.WorkerSnapshot(request_id=message.request_id, pool_bytes=1 << 30)
        self._send(snapshot=snapshot)


def main() -> None:
    sys.path.insert(0, os.environ["EPD_TEST_PROTOS"])
    if sys.argv[1].startswith("--doctor-cuda="):
        return
    quirks = set(filter(None, os.environ.get("EPD_FAKE_WORKER", "").split(",")))
    if "dies_at_start" in quirks:
        sys.exit(3)
    FakeWorker(quirks).run()


if __name__ == "__main__":
    main()
