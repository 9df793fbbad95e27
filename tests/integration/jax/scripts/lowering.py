"""A process without a daemon: traces, lowers, exports and compiles, forward and backward; prints what it made, as JSON.

Argument: the folder of JAX's persistent compilation cache.
"""

import collections
import functools
import hashlib
import json
import sys

import epd.jax as ep
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

_CFG = ep.EpLayerConfig(top_k=2)
_CAPACITY = 32
_events: collections.Counter = collections.Counter()


def _group(mesh) -> ep.Group:
    """Four ranks, two domains; described, not joined."""
    return ep.Group(
        "offline",
        num_experts=4,
        max_tokens_per_rank=8,
        recv_capacity_per_rank=_CAPACITY,
        hidden_dim=16,
        max_token_dtype=jnp.float32,
        mesh=mesh,
        resource=ep.MeshResource(dp_resource="dp", tp_resource="tp", ep_resource="ep"),
        connect=False,
    )


def _step(group: ep.Group):
    def loss(tokens, weights, idx):
        recv, recv_weights, handle, counts, _ = group.dispatch(
            _CFG, idx, tokens, weights, _CAPACITY
        )
        rows = jnp.sin(recv) * recv_weights[..., None]
        return (group.combine(_CFG, handle, rows, idx.shape[0]) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def _shapes(mesh) -> list[jax.ShapeDtypeStruct]:
    sharding = NamedSharding(mesh, PartitionSpec(("dp", "ep")))
    kinds = ((16, jnp.float32), (2, jnp.float32), (2, jnp.int32))
    return [jax.ShapeDtypeStruct((32, n), dtype, sharding=sharding) for n, dtype in kinds]


def _slices():
    """A loss of ragged_all_to_all along ep, with its gradient. Nothing was set up for it, and nothing is joined."""
    exchange = functools.partial(ep.ragged_all_to_all, axis_name="ep")
    spec = PartitionSpec(("dp", "ep"))

    def loss(operand, output, *indices):
        return (
            jax.shard_map(exchange, in_specs=spec, out_specs=spec)(operand, output, *indices) ** 2
        ).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def _shapes_of_slices(mesh) -> list[jax.ShapeDtypeStruct]:
    sharding = NamedSharding(mesh, PartitionSpec(("dp", "ep")))
    kinds = [((32, 16), jnp.float32)] * 2 + [((8,), jnp.int32)] * 4
    return [jax.ShapeDtypeStruct(*kind, sharding=sharding) for kind in kinds]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.monitoring.register_event_listener(lambda event, **_: _events.update([event]))
    made = {}
    for name, axis_type in (("auto", AxisType.Auto), ("explicit", AxisType.Explicit)):
        abstract = AbstractMesh((2, 2, 2), ("dp", "tp", "ep"), axis_types=(axis_type,) * 3)
        with jax.sharding.use_abstract_mesh(abstract):
            lowered = (
                _step(_group(abstract)).trace(*_shapes(abstract)).lower(lowering_platforms=("cpu",))
            )
        text = lowered.as_text()
        assert all(f"@{target}(" in text for target in ep.FFI_TARGET_NAMES[:5]), text
        made[f"lowered, {name}"] = _digest(text.encode())
        with jax.sharding.use_abstract_mesh(abstract):
            traced = _slices().trace(*_shapes_of_slices(abstract))
            text = traced.lower(lowering_platforms=("cpu",)).as_text()
        assert text.count("@epd1.ragged(") == 2, text
        made[f"slices, {name}"] = _digest(text.encode())
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("dp", "tp", "ep"))
    step, shapes = _step(_group(mesh)), _shapes(mesh)
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in ep.FFI_TARGET_NAMES]
    exported = jax.export.export(step, disabled_checks=checks)(*shapes)
    made["exported"] = _digest(str(exported.mlir_module()).encode())
    _events.clear()
    compiled = step.lower(*shapes).compile()
    assert ep.FFI_TARGET_NAMES[0] in compiled.as_text()
    made["hits"] = _events["/jax/compilation_cache/cache_hits"]
    made["misses"] = _events["/jax/compilation_cache/cache_misses"]
    print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
