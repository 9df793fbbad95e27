"""A client without JAX or C++: two processes exchange through epd_program.h by ctypes, their executions numbered differently.

Each rank's tokens go to both experts and come back twice. Argument: the rank.
"""

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64
from pathlib import Path

import bare_client as c
import epd
import numpy as np

_RANKS, _TOKENS, _TOP_K, _HIDDEN, _CAPACITY = 2, 4, 2, 4, 64
_Rank = c.struct("epd_program_rank", domain=c_uint32, position=c_uint32, device=c_char_p)
_Group = c.struct(
    "epd_program_group",
    alias=c_char_p,
    job=c_char_p,
    socket_path=c_char_p,
    daemon_path=c_char_p,
    spec=POINTER(c.Spec),
    local_experts=c_uint32,
    owners=c_int64,
    by_rank=c_int32,
    held=POINTER(_Rank),
    num_held=c_size_t,
)
_Call = c.struct(
    "epd_program_call",
    alias=c_char_p,
    domain=c_int32,
    position=c_int32,
    name=c_char_p,
    program=c_uint8 * 16,
    execution=c_uint64,
    executable=c_uint64,
    site=c_uint32,
)


def _run(library: ctypes.CDLL, rank: int) -> None:
    spec = c.args(
        c.Spec,
        num_ranks=_RANKS,
        num_experts=2,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_CAPACITY,
        hidden=_HIDDEN,
        max_token_dtype=c.FLOAT32,
    )
    held = c.args(_Rank, position=rank, device=b"cpu")
    group = c.args(
        _Group,
        alias=b"default",
        job=b"ctypes",
        spec=ctypes.pointer(spec),
        held=ctypes.pointer(held),
        num_held=1,
    )
    c.call(library.epd_program_join, ctypes.byref(group))
    c.call(library.epd_program_wait, b"default")
    found = c_uint32(7)
    c.call(library.epd_program_resolve, _call(rank, 0, 0), ctypes.byref(found))
    assert found.value == rank
    for step in range(3):
        _step(library, rank, execution=100 + 17 * rank + step)
    library.epd_program_finalize(b"default")


def _call(rank: int, execution: int, site: int) -> object:
    program = (c_uint8 * 16)(*b"the same program")
    call = c.args(_Call, alias=b"default", position=rank, execution=execution, site=site)
    call.program = program
    return ctypes.byref(call)


def _step(library: ctypes.CDLL, rank: int, execution: int) -> None:
    idx = np.tile(np.arange(_TOP_K, dtype=np.int32), (_TOKENS, 1))
    tokens = rank + np.arange(_TOKENS * _HIDDEN, dtype=np.float32).reshape(_TOKENS, _HIDDEN)
    plan = np.zeros(library.epd_program_handle_mem_size(_RANKS, 2, _TOKENS, _TOP_K), np.uint8)
    counts, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    prepare = c.args(
        c.Prepare,
        topk_idx=idx,
        idx_bytes=4,
        num_tokens=_TOKENS,
        top_k=_TOP_K,
        token_counts=counts,
        total_recv=total,
        handle_mem=plan,
        handle_mem_bytes=plan.size,
    )
    c.call(library.epd_program_prepare, _call(rank, execution, 0), ctypes.byref(prepare))
    assert total[0] == _RANKS * _TOKENS, total
    common = {
        "handle_mem": plan,
        "handle_mem_bytes": plan.size,
        "top_k": _TOP_K,
        "dtype": c.FLOAT32,
        "hidden": _HIDDEN,
        "num_tokens": _TOKENS,
        "recv_capacity": _CAPACITY,
    }
    weights = np.ones((_TOKENS, _TOP_K), np.float32)
    recv, recv_weights = np.zeros((_CAPACITY, _HIDDEN), np.float32), np.zeros(_CAPACITY, np.float32)
    out = np.zeros_like(tokens)
    scatter = c.args(
        c.Scatter,
        tokens=tokens,
        topk_weights=weights,
        recv_tokens=recv,
        recv_topk_weights=recv_weights,
        **common,
    )
    c.call(library.epd_program_dispatch, _call(rank, execution, 1), ctypes.byref(scatter))
    gather = c.args(c.Gather, expert_rows=recv, tokens=out, **common)
    c.call(library.epd_program_combine, _call(rank, execution, 2), ctypes.byref(gather))
    np.testing.assert_array_equal(out, 2 * tokens)


if __name__ == "__main__":
    loaded = ctypes.CDLL(str(Path(epd.__file__).parent / "jax" / "libepd_jax.so"))
    loaded.epd_program_handle_mem_size.restype = c_size_t
    loaded.epd_program_finalize.restype = None
    _run(loaded, int(sys.argv[1]))
    print(f"program_client {sys.argv[1]}: fine; JAX is loaded: {'jax' in sys.modules}", flush=True)
