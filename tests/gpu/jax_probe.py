"""T4 and the JAX part of T5, on one GPU: prints one JSON object.

T4: a custom call that waits with stream memory operations, inside a jitted function, run a thousand times with changing
data. If XLA puts it into a command buffer, the handler is called far less often than the function runs.
T5: whether XLA's own memory can be retained and exported, which tells how it was allocated.
"""

import ctypes
import json
import pathlib
import sys

import jax
import jax.numpy as jnp

_RUNS = 1000
_POSIX_DESCRIPTOR = 1


def memop_calls(library: ctypes.CDLL) -> dict:
    jax.devices()  # Before anything else makes a context, as in any program of JAX.
    library.EpdMemopInit.restype = ctypes.c_char_p
    if why := library.EpdMemopInit():
        return {"passed": False, "why": why.decode()}
    jax.ffi.register_ffi_target(
        "epd_memop_call", jax.ffi.pycapsule(library.EpdMemopCall), platform="CUDA"
    )

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        y = x * 2 + 1
        z = jax.ffi.ffi_call("epd_memop_call", jax.ShapeDtypeStruct(y.shape, y.dtype))(y)
        return jnp.sin(z) + z * 0.5

    @jax.jit
    def want(x: jax.Array) -> jax.Array:
        y = x * 2 + 1
        return jnp.sin(y) + y * 0.5

    wrong = 0
    for run in range(_RUNS):
        x = jnp.full((256, 128), float(run % 97))
        wrong += int(not jnp.array_equal(step(x), want(x)))
    for counter in (library.EpdMemopCalls, library.EpdMemopAnswers):
        counter.restype = ctypes.c_int64
    calls = library.EpdMemopCalls()
    answers = library.EpdMemopAnswers()
    return {
        "runs": _RUNS,
        "wrong": wrong,
        "handler_calls": calls,
        "answers": answers,
        "replayed": calls < _RUNS,
        "passed": wrong == 0 and answers == _RUNS,
    }


def export_of_xla_memory() -> dict:
    driver = ctypes.CDLL("libcuda.so.1")
    array = jax.block_until_ready(jnp.ones((1 << 20,), jnp.float32))
    handle = ctypes.c_uint64(0)
    address = ctypes.c_void_p(array.unsafe_buffer_pointer())
    retained = driver.cuMemRetainAllocationHandle(ctypes.byref(handle), address)
    descriptor = ctypes.c_int(-1)
    exported = -1
    if retained == 0:
        exported = driver.cuMemExportToShareableHandle(
            ctypes.byref(descriptor), handle, _POSIX_DESCRIPTOR, ctypes.c_ulonglong(0)
        )
    legacy = ctypes.create_string_buffer(64)
    ipc = driver.cuIpcGetMemHandle(legacy, ctypes.c_uint64(array.unsafe_buffer_pointer()))
    return {
        "cuMemRetainAllocationHandle": retained,
        "cuMemExportToShareableHandle": exported,
        "cuIpcGetMemHandle": ipc,
    }


def main() -> int:
    library = ctypes.CDLL(str(pathlib.Path(sys.argv[1]).resolve()))
    memops = memop_calls(library)
    result = {
        "name": "T4 T5 jax",
        "jax": jax.__version__,
        "device": jax.devices("gpu")[0].device_kind,
        "memops_in_jit": memops,
        "xla_memory": export_of_xla_memory(),
        "passed": memops["passed"],
    }
    print(json.dumps(result), flush=True)
    if "why" in memops:
        print(memops["why"], file=sys.stderr)
    return 0 if memops["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
