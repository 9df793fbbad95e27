"""The arguments of the operations in epd_client.h, by ctypes."""

import ctypes

_SIZE, _U32, _U64, _POINTER = ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class Key(ctypes.Structure):
    """epd_key."""

    _fields_ = [
        ("struct_size", _SIZE),
        ("name", ctypes.c_char_p),
        ("program", ctypes.c_uint8 * 16),
        ("execution", _U64),
        ("ordinal", _U32),
        ("occurrence", _U32),
    ]


class PrepareArgs(ctypes.Structure):
    """epd_prepare_args."""

    _fields_ = [
        ("struct_size", _SIZE),
        ("rank", _U32),
        ("key", Key),
        ("topk_idx", _POINTER),
        ("idx_bytes", _U32),
        ("num_tokens", _U64),
        ("top_k", _U32),
        ("alignment", _U32),
        ("token_counts", _POINTER),
        ("total_recv", _POINTER),
        ("handle_mem", _POINTER),
        ("handle_mem_bytes", _SIZE),
    ]


# With which operations that move rows by a plan begin.
_OF_ROWS = [
    ("struct_size", _SIZE),
    ("rank", _U32),
    ("key", Key),
    ("handle_mem", _POINTER),
    ("handle_mem_bytes", _SIZE),
    ("top_k", _U32),
    ("alignment", _U32),
    ("dtype", ctypes.c_int),
    ("hidden", _U32),
]


class ScatterArgs(ctypes.Structure):
    """epd_scatter_args."""

    _fields_ = [
        *_OF_ROWS,
        ("num_tokens", _U64),
        ("tokens", _POINTER),
        ("topk_weights", _POINTER),
        ("recv_capacity", _U64),
        ("recv_tokens", _POINTER),
        ("recv_topk_weights", _POINTER),
        ("more", _POINTER),
        ("num_more", _U32),
    ]


class GatherArgs(ctypes.Structure):
    """epd_gather_args."""

    _fields_ = [
        *_OF_ROWS,
        ("recv_capacity", _U64),
        ("expert_rows", _POINTER),
        ("recv_topk_weights", _POINTER),
        ("num_tokens", _U64),
        ("tokens", _POINTER),
        ("topk_weights", _POINTER),
    ]
