"""A rank of the group "hung" whose calls the test begins one by one, so that one may wait for the other rank.

    python hanging_client.py SOCKET RANK [TENANT]

Prints "joined", or "refused MESSAGE" and ends. Each line of its standard input is a key: it prints "calling KEY", calls prepare with it in a thread,
and prints "ended KEY CODE MESSAGE". Ends when its standard input does.
"""

import ctypes
import importlib.util
import os
import pathlib
import sys
import threading

_NUM_RANKS, _NUM_EXPERTS, _NUM_TOKENS, _TOP_K = 2, 4, 8, 2
_EXECUTION_NEXT = 2**64 - 1


class _Error(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("code", ctypes.c_int32),
        ("message", ctypes.c_char * 4096),
    ]


class _Connect(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("socket_path", ctypes.c_char_p),
        ("client_name", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int64),
        ("no_autostart", ctypes.c_int32),
        ("daemon_path", ctypes.c_char_p),
    ]


class _Spec(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("instance", ctypes.c_char_p),
        ("tenant", ctypes.c_char_p),
        ("num_ranks", ctypes.c_uint32),
        ("num_experts", ctypes.c_uint32),
        ("expert_owner", ctypes.c_void_p),
        ("max_tokens_per_rank", ctypes.c_uint32),
        ("recv_capacity_per_rank", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("max_token_dtype", ctypes.c_int),
        ("drop_on_overflow", ctypes.c_int32),
        ("executor", ctypes.c_int32),
        ("backend", ctypes.c_char_p),
        ("warn_after_ms", ctypes.c_int64),
        ("absent_ms", ctypes.c_int64),
        ("undecided_ms", ctypes.c_int64),
        ("form_ms", ctypes.c_int64),
    ]


class _Join(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("spec", ctypes.POINTER(_Spec)),
        ("ranks", ctypes.POINTER(ctypes.c_uint32)),
        ("num_ranks", ctypes.c_size_t),
        ("devices", ctypes.c_void_p),
        ("min_epoch", ctypes.c_uint64),
        ("deadline_ms", ctypes.c_int64),
    ]


class _Key(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("program", ctypes.c_uint8 * 16),
        ("execution", ctypes.c_uint64),
        ("ordinal", ctypes.c_uint32),
        ("occurrence", ctypes.c_uint32),
    ]


class _Prepare(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_uint32),
        ("key", _Key),
        ("topk_idx", ctypes.c_void_p),
        ("idx_bytes", ctypes.c_uint32),
        ("num_tokens", ctypes.c_uint64),
        ("top_k", ctypes.c_uint32),
        ("alignment", ctypes.c_uint32),
        ("token_counts", ctypes.c_void_p),
        ("total_recv", ctypes.c_void_p),
        ("handle_mem", ctypes.c_void_p),
        ("handle_mem_bytes", ctypes.c_size_t),
    ]


def _made(kind: type, **fields: object):
    return kind(struct_size=ctypes.sizeof(kind), **fields)


def _library() -> ctypes.CDLL:
    given = os.environ.get("EPD_TEST_CLIENT")
    package = importlib.util.find_spec("epd")
    folder = pathlib.Path(package.submodule_search_locations[0]) if package else pathlib.Path()
    library = ctypes.CDLL(given or next(folder.rglob("libepd_client.so")))
    library.epd_handle_mem_size.restype = ctypes.c_size_t
    return library


def _sized(library: ctypes.CDLL) -> int:
    sizes = map(ctypes.c_uint32, (_NUM_RANKS, _NUM_EXPERTS, _NUM_TOKENS, _TOP_K))
    return library.epd_handle_mem_size(*sizes)


def _join(library: ctypes.CDLL, socket: str, rank: int, tenant: str) -> ctypes.c_void_p:
    error = _made(_Error)

    def check(code: int) -> None:
        if code != 0:
            raise RuntimeError(error.message.decode())

    client, group = ctypes.c_void_p(), ctypes.c_void_p()
    connect = _made(_Connect, socket_path=socket.encode(), no_autostart=1)
    connect.client_name = b"hanging client"
    check(library.epd_connect(ctypes.byref(connect), ctypes.byref(client), ctypes.byref(error)))
    spec = _made(_Spec, name=b"hung", num_ranks=_NUM_RANKS, num_experts=_NUM_EXPERTS, hidden=16)
    spec.max_tokens_per_rank, spec.recv_capacity_per_rank = _NUM_TOKENS, 64
    spec.top_k, spec.max_token_dtype, spec.tenant = _TOP_K, 1, tenant.encode()
    ranks = (ctypes.c_uint32 * 1)(rank)
    join = _made(_Join, spec=ctypes.pointer(spec), ranks=ranks, num_ranks=1, deadline_ms=20000)
    check(library.epd_join(client, ctypes.byref(join), ctypes.byref(group), ctypes.byref(error)))
    return group


def _call(library: ctypes.CDLL, group: ctypes.c_void_p, rank: int, key: str) -> None:
    indices = (ctypes.c_int32 * (_NUM_TOKENS * _TOP_K))()
    counts, total = (ctypes.c_int32 * _NUM_EXPERTS)(), ctypes.c_int32()
    plan = ctypes.create_string_buffer(_sized(library))
    prepare = _made(_Prepare, rank=rank, idx_bytes=4, num_tokens=_NUM_TOKENS, top_k=_TOP_K)
    prepare.key = _made(_Key, name=key.encode(), execution=_EXECUTION_NEXT)
    prepare.topk_idx = ctypes.addressof(indices)
    prepare.token_counts, prepare.total_recv = ctypes.addressof(counts), ctypes.addressof(total)
    prepare.handle_mem, prepare.handle_mem_bytes = ctypes.addressof(plan), len(plan)
    error = _made(_Error)
    code = library.epd_prepare(group, ctypes.byref(prepare), ctypes.byref(error))
    print("ended", key, code, error.message.decode(), flush=True)


def main(socket: str, rank: int, tenant: str) -> None:
    library = _library()
    try:
        group = _join(library, socket, rank, tenant)
    except RuntimeError as refusal:
        print("refused", refusal, flush=True)
        return
    print("joined", flush=True)
    for line in sys.stdin:
        key = line.strip()
        print("calling", key, flush=True)
        call = (library, group, rank, key)
        threading.Thread(target=_call, args=call, daemon=True).start()
    os._exit(0)  # A call may still wait.


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "".join(sys.argv[3:]))
