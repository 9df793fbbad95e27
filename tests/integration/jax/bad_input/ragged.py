"""ragged_all_to_all while it is traced; what only shows at run time is in programs/ragged.py."""

import epd.jax as ep
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from world import World

from bad_input.rows import CONTEXT, Row, rows_of

_INDICES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def _call(outside: bool = False, **wrong):
    """The exchange along ep with one wrong argument."""

    def call(world: World) -> None:
        def trace() -> jax.Array:
            given = {name: jnp.zeros(world.ep, jnp.int32) for name in _INDICES}
            given |= {"operand": jnp.zeros((4, 2)), "output": jnp.zeros((4, 2)), "axis_name": "ep"}
            return ep.ragged_all_to_all(**{**given, **wrong})

        if outside:
            trace()
        else:
            spec = PartitionSpec()
            jax.shard_map(trace, mesh=world.mesh, in_specs=(), out_specs=spec, check_vma=False)()

    return call


def rows() -> list[Row]:
    cases = [
        (CONTEXT, "no shard_map", _call(outside=True), ValueError, "inside a jax.shard_map"),
        (
            "operand",
            "rows of another shape",
            _call(operand=jnp.zeros((4, 3))),
            ValueError,
            "(4, 3)",
        ),
        ("operand", "a scalar", _call(operand=jnp.float32(1)), ValueError, "arrays of rows"),
        (
            "output",
            "another dtype",
            _call(output=jnp.zeros((4, 2), jnp.int32)),
            ValueError,
            "one dtype",
        ),
        (
            "axis_name",
            "none of the mesh's",
            _call(axis_name="tp"),
            ValueError,
            "not among its axes",
        ),
        (
            "axis_index_groups",
            "an index twice",
            _call(axis_index_groups=[[0, 0]]),
            ValueError,
            "each of the",
        ),
    ]
    for name in _INDICES:
        cases += [
            (name, "no integers", _call(**{name: jnp.zeros(4)}), ValueError, name, "integers"),
            (
                name,
                "two dimensions",
                _call(**{name: jnp.zeros((1, 4), jnp.int32)}),
                ValueError,
                name,
                "one dimension",
            ),
        ]
    return rows_of("ragged_all_to_all", *cases)
