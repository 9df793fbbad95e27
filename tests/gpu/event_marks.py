"""Events in XLA's own streams, at numbered places of a jitted program: what the devices took from one to another.

A place is a custom call (event_call.cc) with arrays as operands, which it gives back as they are. It stands behind all that
these depend on and before all that depends on them, and nowhere else: whoever marks a part of a program passes
everything that goes into the part. In a command buffer a place is a node of the graph, and each replay comes to it anew.
"""

import ctypes
import pathlib

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

_TARGET = "epd_event_mark"


class EventMarks:
    """Once per process. RuntimeError where there are no events to be had, with the reason."""

    def __init__(self, library: pathlib.Path, devices: int, marks: int) -> None:
        jax.devices()  # Before anything else makes a context, as in any program of JAX.
        self._library = ctypes.CDLL(str(library.resolve()))
        self._library.EpdEventsInit.restype = ctypes.c_char_p
        self._library.EpdEventsElapsedUs.restype = ctypes.c_double
        self._library.EpdEventsElapsedUs.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        self._library.EpdEventsCaptured.restype = ctypes.c_int64
        if why := self._library.EpdEventsInit(devices, marks):
            raise RuntimeError(why.decode())
        jax.ffi.register_ffi_target(
            _TARGET, jax.ffi.pycapsule(self._library.EpdEventMark), platform="CUDA"
        )

    def mark(self, mesh: Mesh, number: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        """The arrays, whose first axes lie over the mesh's, behind the place."""

        def on_each_device(*local: jax.Array) -> list[jax.Array]:
            same = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in local]
            call = jax.ffi.ffi_call(
                _TARGET,
                same,
                has_side_effect=True,
                input_output_aliases={i: i for i in range(len(local))},
            )
            return call(*local, number=np.int64(number))

        spec = P(*mesh.axis_names)
        return tuple(
            jax.shard_map(
                on_each_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
            )(*arrays)
        )

    def elapsed_us(self, device: int, start: int, end: int) -> float:
        """Of the last time that the device came to both. RuntimeError where it has not."""
        taken = self._library.EpdEventsElapsedUs(device, start, end)
        if taken < 0:
            raise RuntimeError(f"device {device} did not come to the events {start} and {end}")
        return taken

    def captured(self) -> int:
        """How many places are nodes of graphs."""
        return self._library.EpdEventsCaptured()
