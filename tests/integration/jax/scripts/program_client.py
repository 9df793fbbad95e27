"""A client without JAX or C++: two processes exchange through epd_program.h by ctypes, their executions numbered differently.

Each rank's tokens go to both experts and come back twice. Then each line that is read is a daemon that was killed and started again:
the next execution hears of the loss, and the one after it works in a session that nobody here asked for. Argument: the rank.
"""

import ctypes
import itertools
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64
from pathlib import Path

import bare_client as c
import epd
import numpy as np

_RANKS = 2
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
        max_tokens_per_rank=c.TOKENS,
        recv_capacity_per_rank=c.CAPACITY,
        hidden=c.HIDDEN,
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
    executions = itertools.count(100 + 17 * rank)
    for execution in itertools.islice(executions, 3):
        _step(library, rank, execution)
    print("exchanged", flush=True)
    for _ in sys.stdin:
        try:
            _step(library, rank, next(executions))
        except AssertionError as error:
            print(f"lost: {error}", flush=True)
        else:
            raise AssertionError("nobody was told of the killed daemon")
        _step(library, rank, next(executions))
        print("exchanged again", flush=True)
    library.epd_program_finalize(b"default")


def _call(rank: int, execution: int, site: int) -> object:
    program = (c_uint8 * 16)(*b"the same program")
    call = c.args(_Call, alias=b"default", position=rank, execution=execution, site=site)
    call.program = program
    return ctypes.byref(call)


def _step(library: ctypes.CDLL, rank: int, execution: int) -> None:
    def operate(operation: str, kind: type, **fields: object) -> None:
        site = ("prepare", "dispatch", "combine").index(operation)
        function = getattr(library, f"epd_program_{operation}")
        given = c.args(kind, **fields)
        c.call(function, _call(rank, execution, site), ctypes.byref(given))

    tokens = rank + np.arange(c.TOKENS * c.HIDDEN, dtype=np.float32).reshape(c.TOKENS, c.HIDDEN)
    plan_bytes = library.epd_program_handle_mem_size(_RANKS, 2, c.TOKENS, c.TOP_K)
    total, _ = c.exchange(operate, plan_bytes, 1, tokens)
    assert total == _RANKS * c.TOKENS, total


if __name__ == "__main__":
    loaded = ctypes.CDLL(str(Path(epd.__file__).parent / "jax" / "libepd_jax.so"))
    loaded.epd_program_handle_mem_size.restype = c_size_t
    loaded.epd_program_finalize.restype = None
    _run(loaded, int(sys.argv[1]))
    print(f"program_client {sys.argv[1]}: fine; JAX is loaded: {'jax' in sys.modules}", flush=True)
