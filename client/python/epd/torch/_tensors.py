"""Tensors as the library takes them: their element types, and their memory."""

import functools

import torch

# Where the library reads and writes. Said of each tensor that is made here: a program may have set another default (torch.device
# as a context, torch.set_default_device).
CPU = torch.device("cpu")

# What can be summed -> epd_dtype of the C library.
SUMMED = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
# What is only moved -> the number that tells it from others of its width; XLA's, so that ranks that run JAX agree.
_MOVED = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float64": 12,
    "complex64": 15,
    "float8_e5m2": 19,
    "float8_e4m3fn": 20,
    "float8_e4m3fnuz": 24,
    "float8_e5m2fnuz": 25,
}
MOVED = {getattr(torch, name): tag for name, tag in _MOVED.items() if hasattr(torch, name)}
_OPAQUE_BIT = 0x10000


@functools.cache
def width_of(dtype: torch.dtype) -> int:
    """Bytes of an element."""
    return torch.empty(0, dtype=dtype, device=CPU).element_size()


def code_of(dtype: torch.dtype) -> int:
    """epd_dtype of rows."""
    return SUMMED.get(dtype) or _OPAQUE_BIT | width_of(dtype) << 8 | MOVED[dtype]


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The elements one after another as their values are: views may be strided, and lazily negated or conjugated."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def wrong_place(tensor: torch.Tensor) -> str:
    """Why the tensor's memory cannot be exchanged, or ""."""
    if tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_quantized:
        return ""
    if tensor.is_cuda:
        return f"is on {tensor.device}; epd.torch exchanges CPU tensors: move it with .cpu(), and the result back"
    if not tensor.is_cpu:
        return f"is on {tensor.device}; expected a CPU tensor"
    kind = "quantized" if tensor.is_quantized else str(tensor.layout)
    return f"is {kind}; expected a dense tensor (to_dense(), int_repr())"


def mark_written(tensor: torch.Tensor) -> None:
    """Tells autograd that the tensor's values change, where torch offers it (2.1): a graph that has kept them says so."""
    if increment := getattr(torch.autograd.graph, "increment_version", None):
        increment(tensor)
