"""A JAX whose platform is CUDA, on a machine without a GPU. JAX finds this plugin where ``PYTHONPATH`` has tests/fakes/jax.

It is JAX's CPU client, which says that it is CUDA's: programs are lowered for ``cuda``, devices are GPUs, and handlers that are
registered for CUDA are the ones that run, each in a stream of the driver at hand (``xla_cuda.cc``), which is the fake one of
tests/fakes/cuda. As of XLA's GPU client a handler hears the device's number and no more: nothing of the mesh.

What it is not: XLA for GPUs. There are no command buffers, and no memory but the host's. XLA's CPU compiler gives up on some of what JAX
lowers for CUDA (tests/gpu/api_bench.py, ``routing_stats``). A call holds its thread of XLA's until its stream has ended, so
programs whose devices wait for each other in several calls or collectives at once may stand still.

``EPD_FAKE_XLA_CUDA``: path of ``libxla_cuda.so``. How many devices there are is said as of CPUs (``XLA_FLAGS``,
``jax_num_cpu_devices``).
"""

import ctypes
import functools
import os
from typing import Any

import jax
from jax._src import hardware_utils, xla_bridge
from jaxlib import _jax, xla_client

_OURS = "epd1."  # Calls of epd, which CPUs would serve by other handlers of the same names.

_python = ctypes.pythonapi
_python.PyCapsule_GetName.argtypes = [ctypes.py_object]
_python.PyCapsule_GetName.restype = ctypes.c_char_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p


def _address(capsule: object) -> int:
    return _python.PyCapsule_GetPointer(capsule, _python.PyCapsule_GetName(capsule))


def _register_of_cpus(name: str, fn: Any, platform: str, *more: Any) -> None:
    if not name.startswith(_OURS):
        _jax.register_custom_call_target(name, fn, platform, *more)


def _register_of_cuda(num_devices: int, name: str, fn: Any, platform: str, *more: Any) -> None:
    del platform
    stages = {stage: ctypes.c_void_p(_address(capsule)) for stage, capsule in fn.items()}
    library = ctypes.CDLL(os.environ["EPD_FAKE_XLA_CUDA"])
    given = library.epd_fake_xla_cuda_target(
        num_devices,
        ctypes.byref(stages["instantiate"]),
        stages["initialize"],
        ctypes.byref(stages["execute"]),
    )
    assert given, "too many targets"
    called = {stage: jax.ffi.pycapsule(stages[stage]) for stage in ("instantiate", "execute")}
    _jax.register_custom_call_target(name, called, "Host", *more)


def _make_client() -> Any:
    # Before that of make_cpu_client(), which then does nothing.
    xla_client.register_custom_call_handler("cpu", _register_of_cpus)
    client = xla_bridge.make_cpu_client()
    for name, value in {
        "platform": "gpu",
        "_raw_platform": "cuda",
        "platform_version": "fake\ncuda 13000",
    }.items():
        setattr(_jax.Client, name, property(lambda self, value=value: value))
    _jax.Device.platform = property(lambda self: "gpu")
    register = functools.partial(_register_of_cuda, client.local_device_count())
    xla_client.register_custom_call_handler("CUDA", register)
    return client


def initialize() -> None:
    """For JAX, which calls it when it looks for its backends."""
    hardware_utils.has_visible_nvidia_gpu = lambda: True
    xla_bridge.register_backend_factory("cuda", _make_client, priority=500, fail_quietly=False)
