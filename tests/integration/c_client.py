"""The C API by ctypes, as far as a rank needs it that prepares and dispatches: for tests and for scripts that are a rank of a test's
group."""

import contextlib
import ctypes
import importlib.util
import os
import pathlib
import socket as sockets

_NUM_EXPERTS_PER_RANK, _NUM_TOKENS, _TOP_K, _HIDDEN = 2, 8, 2, 16
_FLOAT32 = 1
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


class _Scatter(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_uint32),
        ("key", _Key),
        ("handle_mem", ctypes.c_void_p),
        ("handle_mem_bytes", ctypes.c_size_t),
        ("top_k", ctypes.c_uint32),
        ("alignment", ctypes.c_uint32),
        ("dtype", ctypes.c_int),
        ("hidden", ctypes.c_uint32),
        ("num_tokens", ctypes.c_uint64),
        ("tokens", ctypes.c_void_p),
        ("topk_weights", ctypes.c_void_p),
        ("recv_capacity", ctypes.c_uint64),
        ("recv_tokens", ctypes.c_void_p),
        ("recv_topk_weights", ctypes.c_void_p),
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


class Refused(Exception):
    """A call's error; ``code`` is its number."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Rank:
    """One process's rank of a group; joined once it is made, or Refused.

    ``fields``: of the group's spec, such as ``absent_ms`` or ``hidden``, in place of those that are chosen here."""

    def __init__(
        self,
        socket: str,
        group: str,
        rank: int,
        num_ranks: int,
        tenant: str = "",
        name: str = "test",
        join_ms: int = 20000,
        **fields: int,
    ):
        self._library, self._rank, self._num_ranks = _library(), rank, num_ranks
        self._client, self._group = ctypes.c_void_p(), ctypes.c_void_p()
        connect = _made(_Connect, socket_path=socket.encode(), no_autostart=1)
        connect.client_name = name.encode()
        self._call("epd_connect", connect, self._client)
        chosen = {
            "num_experts": num_ranks * _NUM_EXPERTS_PER_RANK,
            "max_tokens_per_rank": _NUM_TOKENS,
            "recv_capacity_per_rank": 64,
            "hidden": _HIDDEN,
            "top_k": _TOP_K,
            "max_token_dtype": _FLOAT32,
        }
        self._spec = _made(_Spec, name=group.encode(), num_ranks=num_ranks, **{**chosen, **fields})
        self._spec.tenant, self._plan = tenant.encode(), None
        self.join(join_ms)

    def _call(self, name: str, arguments: ctypes.Structure, *before_and_after: object) -> None:
        error = _made(_Error)
        *before, out = before_and_after
        function = getattr(self._library, name)
        code = function(*before, ctypes.byref(arguments), ctypes.byref(out), ctypes.byref(error))
        if code != 0:
            raise Refused(code, error.message.decode())

    def join(self, deadline_ms: int = 20000) -> None:
        """Joins; again after the group has ended for this rank."""
        ranks = (ctypes.c_uint32 * 1)(self._rank)
        join = _made(_Join, spec=ctypes.pointer(self._spec), ranks=ranks, num_ranks=1)
        join.deadline_ms = deadline_ms
        self._call("epd_join", join, self._client, self._group)

    def prepare(self, key: str, alignment: int = 0) -> None:
        """The prepare of this name, of all tokens to expert 0; all ranks must call it, with the same alignment."""
        experts = self._spec.num_experts
        indices = (ctypes.c_int32 * (_NUM_TOKENS * _TOP_K))()
        counts, total = (ctypes.c_int32 * experts)(), ctypes.c_int32()
        sizes = map(ctypes.c_uint32, (self._num_ranks, experts, _NUM_TOKENS, _TOP_K))
        plan = ctypes.create_string_buffer(self._library.epd_handle_mem_size(*sizes))
        prepare = _made(_Prepare, rank=self._rank, idx_bytes=4, num_tokens=_NUM_TOKENS)
        prepare.top_k, prepare.alignment = _TOP_K, alignment
        prepare.key = _made(_Key, name=key.encode(), execution=_EXECUTION_NEXT)
        prepare.topk_idx = ctypes.addressof(indices)
        prepare.token_counts, prepare.total_recv = ctypes.addressof(counts), ctypes.addressof(total)
        prepare.handle_mem, prepare.handle_mem_bytes = ctypes.addressof(plan), len(plan)
        error = _made(_Error)
        code = self._library.epd_prepare(self._group, ctypes.byref(prepare), ctypes.byref(error))
        if code != 0:
            raise Refused(code, error.message.decode())
        self._plan = plan

    def dispatch(self, key: str) -> None:
        """Dispatches zeros by the last prepare's plan, which must have had no alignment; all ranks must call it."""
        capacity, hidden = self._spec.recv_capacity_per_rank, self._spec.hidden
        tokens = (ctypes.c_float * (_NUM_TOKENS * hidden))()
        weights = (ctypes.c_float * (_NUM_TOKENS * _TOP_K))()
        received = (ctypes.c_float * (capacity * hidden))()
        received_weights = (ctypes.c_float * capacity)()
        scatter = _made(_Scatter, rank=self._rank, top_k=_TOP_K, dtype=_FLOAT32, hidden=hidden)
        scatter.key = _made(_Key, name=key.encode(), execution=_EXECUTION_NEXT)
        scatter.handle_mem, scatter.handle_mem_bytes = (
            ctypes.addressof(self._plan),
            len(self._plan),
        )
        scatter.num_tokens, scatter.recv_capacity = _NUM_TOKENS, capacity
        scatter.tokens, scatter.topk_weights = ctypes.addressof(tokens), ctypes.addressof(weights)
        scatter.recv_tokens = ctypes.addressof(received)
        scatter.recv_topk_weights = ctypes.addressof(received_weights)
        error = _made(_Error)
        code = self._library.epd_dispatch(self._group, ctypes.byref(scatter), ctypes.byref(error))
        if code != 0:
            raise Refused(code, error.message.decode())

    def close(self) -> None:
        """Leaves the group and ends the session; calls that wait in other threads fail first."""
        error = _made(_Error)
        self._library.epd_leave(self._group, ctypes.byref(error))
        self._library.epd_disconnect(self._client)


def hang_up(path: str) -> None:
    """Breaks this process's connections to the epd of the socket `path`, as a fault would; all that they share stays mapped."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(
            OSError
        ):  # The descriptor of the list itself is gone, and a listener has no peer.
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with sockets.socket(fileno=os.dup(int(name))) as one:
                if one.getpeername() == path:
                    one.shutdown(sockets.SHUT_RDWR)
