"""Results whose sharding the caller decides.

What shard_map returns is split over the mesh, and a jit that returns it unconstrained hands each process its own rows
only. The plan and the counts are read on every process (``np.asarray(token_counts)``), as they can be with
Transformer Engine, whose unconstrained results are replicated. ``open_sharding`` lets shardings propagate from the
consumers to the value but not from the value to them: a consumer that pins it, as every operation of epd does, gets it
without any communication; a result that nobody pins is replicated; one that nobody reads costs nothing.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.interpreters import batching, mlir
from jax.sharding import AxisType

from epd.jax.mesh import Layout

_BACKWARD = 2  # Shardy's PropagationDirection::BACKWARD.

_open_p = Primitive("epd_open_sharding")
_open_p.def_impl(lambda array: array)
_open_p.def_abstract_eval(lambda aval: aval)
batching.defvectorized(_open_p)


def _lower(ctx: mlir.LoweringRuleContext, value: Any) -> list[Any]:
    del ctx
    if not jax.config.jax_use_shardy_partitioner:
        return [value]
    direction = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _BACKWARD)
    return [sdy.PropagationBarrierOp(value, direction).result]


mlir.register_lowering(_open_p, _lower)


def open_sharding(layout: Layout, array: jax.Array) -> jax.Array:
    """``array`` of the layout's sharding, open as described above. Only Auto axes have something to decide."""
    if layout.mesh is None or layout.checks_manual:
        return array
    types = dict(zip(layout.mesh.axis_names, layout.mesh.axis_types, strict=True))
    if any(types[axis] != AxisType.Auto for axis in layout.lead):
        return array
    # Shardy's barrier is gone before the partitioner runs; XLA's stays, and carries the sharding that was found.
    return jax.lax.optimization_barrier(_open_p.bind(array))
