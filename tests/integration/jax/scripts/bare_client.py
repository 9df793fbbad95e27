"""The C library through ctypes: what a forked child can use, in which XLA has none of its threads."""

import ctypes
from collections.abc import Callable
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

import epd
import numpy as np

FLOAT32 = 1
_NEXT = 2**64 - 1
TOKENS, TOP_K, HIDDEN, CAPACITY = 4, 2, 4, 64
_EXPERTS = 2


def struct(name: str, /, **fields: type) -> type:
    """A struct of epd_client.h, which begins with its own size."""
    return type(
        name, (ctypes.Structure,), {"_fields_": [("struct_size", c_size_t), *fields.items()]}
    )


_Error = struct("epd_error", code=c_int32, message=c_char * 4096)
_Connect = struct(
    "epd_connect_args",
    socket_path=c_char_p,
    client_name=c_char_p,
    timeout_ms=c_int64,
    no_autostart=c_int32,
    daemon_path=c_char_p,
)
Spec = struct(
    "epd_group_spec",
    name=c_char_p,
    instance=c_char_p,
    tenant=c_char_p,
    num_ranks=c_uint32,
    num_experts=c_uint32,
    expert_owner=c_void_p,
    max_tokens_per_rank=c_uint32,
    recv_capacity_per_rank=c_uint32,
    hidden=c_uint32,
    top_k=c_uint32,
    max_token_dtype=c_uint32,
)
_Join = struct(
    "epd_join_args",
    spec=POINTER(Spec),
    ranks=POINTER(c_uint32),
    num_ranks=c_size_t,
    devices=c_void_p,
    min_epoch=c_uint64,
    deadline_ms=c_int64,
)
_Key = struct(
    "epd_key",
    name=c_char_p,
    program=c_uint8 * 16,
    execution=c_uint64,
    ordinal=c_uint32,
    occurrence=c_uint32,
)
Prepare = struct(
    "epd_prepare_args",
    rank=c_uint32,
    key=_Key,
    topk_idx=c_void_p,
    idx_bytes=c_uint32,
    num_tokens=c_uint64,
    top_k=c_uint32,
    alignment=c_uint32,
    token_counts=c_void_p,
    total_recv=c_void_p,
    handle_mem=c_void_p,
    handle_mem_bytes=c_size_t,
)
_PLAN = {
    "rank": c_uint32,
    "key": _Key,
    "handle_mem": c_void_p,
    "handle_mem_bytes": c_size_t,
    "top_k": c_uint32,
    "alignment": c_uint32,
    "dtype": c_uint32,
    "hidden": c_uint32,
}
Scatter = struct(
    "epd_scatter_args",
    **_PLAN,
    num_tokens=c_uint64,
    tokens=c_void_p,
    topk_weights=c_void_p,
    recv_capacity=c_uint64,
    recv_tokens=c_void_p,
    recv_topk_weights=c_void_p,
)
Gather = struct(
    "epd_gather_args",
    **_PLAN,
    recv_capacity=c_uint64,
    expert_rows=c_void_p,
    recv_topk_weights=c_void_p,
    num_tokens=c_uint64,
    tokens=c_void_p,
    topk_weights=c_void_p,
)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(epd.__file__).parent / "libepd_client.so"))
    library.epd_handle_mem_size.restype = c_size_t
    return library


def call(function, *arguments) -> None:
    error = _Error(struct_size=ctypes.sizeof(_Error))
    assert function(*arguments, ctypes.byref(error)) == 0, error.message.decode()


def args(kind: type, **fields: object) -> object:
    arrays = {k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in fields.items()}
    return kind(struct_size=ctypes.sizeof(kind), **arrays)


def round_trip(group: bytes) -> None:
    """Connects anew, and dispatches to and combines from a group of its own with one rank: tokens come back twice."""
    library = _library()
    client, joined = c_void_p(), c_void_p()
    call(library.epd_connect, ctypes.byref(args(_Connect)), ctypes.byref(client))
    spec = args(
        Spec,
        name=group,
        num_ranks=1,
        num_experts=_EXPERTS,
        max_tokens_per_rank=TOKENS,
        recv_capacity_per_rank=CAPACITY,
        hidden=HIDDEN,
        max_token_dtype=FLOAT32,
    )
    join = args(_Join, spec=ctypes.pointer(spec), ranks=(c_uint32 * 1)(0), num_ranks=1)
    call(library.epd_join, client, ctypes.byref(join), ctypes.byref(joined))

    def operate(operation: str, kind: type, **fields: object) -> None:
        key = args(_Key, name=operation.encode(), execution=_NEXT)
        given = args(kind, key=key, **fields)
        call(getattr(library, f"epd_{operation}"), joined, ctypes.byref(given))

    tokens = np.arange(TOKENS * HIDDEN, dtype=np.float32).reshape(TOKENS, HIDDEN)
    plan_bytes = library.epd_handle_mem_size(1, _EXPERTS, TOKENS, TOP_K)
    total, recv = exchange(operate, plan_bytes, _EXPERTS, tokens)
    assert total == TOKENS * TOP_K, total
    np.testing.assert_array_equal(recv[:TOKENS], tokens)
    call(library.epd_leave, joined)
    library.epd_disconnect(client)


def exchange(
    operate: Callable[..., None], plan_bytes: int, num_counts: int, tokens: np.ndarray
) -> tuple[int, np.ndarray]:
    """Each token to the first TOP_K experts, from where it comes back as often: -> slots needed, rows received.

    ``operate(operation, kind of its arguments, **arguments)`` makes a call.
    """
    idx = np.tile(np.arange(TOP_K, dtype=np.int32), (TOKENS, 1))
    plan = np.zeros(plan_bytes, np.uint8)
    counts, total = np.zeros(num_counts, np.int32), np.zeros(1, np.int32)
    given = {
        "handle_mem": plan,
        "handle_mem_bytes": plan.size,
        "top_k": TOP_K,
        "num_tokens": TOKENS,
    }
    sums = {"token_counts": counts, "total_recv": total}
    operate("prepare", Prepare, topk_idx=idx, idx_bytes=4, **sums, **given)
    given |= {"dtype": FLOAT32, "hidden": HIDDEN, "recv_capacity": CAPACITY}
    weights = np.ones((TOKENS, TOP_K), np.float32)
    recv, recv_weights = np.zeros((CAPACITY, HIDDEN), np.float32), np.zeros(CAPACITY, np.float32)
    received = {"recv_tokens": recv, "recv_topk_weights": recv_weights}
    operate("dispatch", Scatter, tokens=tokens, topk_weights=weights, **received, **given)
    out = np.zeros_like(tokens)
    operate("combine", Gather, expert_rows=recv, tokens=out, **given)
    np.testing.assert_array_equal(out, TOP_K * tokens)
    return int(total[0]), recv


if __name__ == "__main__":
    round_trip(b"bare")
    print("bare_client: fine", flush=True)
