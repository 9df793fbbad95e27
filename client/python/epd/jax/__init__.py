"""Expert parallelism for JAX through epd: dispatch and combine tokens between the ranks of a mesh.

::

    from epd.jax import EpLayerConfig, MeshResource, ep_bootstrap, ep_combine, ep_dispatch, global_shard_guard

    with jax.set_mesh(mesh), global_shard_guard(MeshResource(dp_resource="dp", ep_resource="ep")):
        ep_bootstrap(world_size=4, rank=jax.process_index(), num_experts=8, max_tokens_per_rank=512,
                     recv_capacity_per_rank=4096, hidden_dim=2048)
        layer = EpLayerConfig(top_k=2)
        recv, weights, handle, counts, total = ep_dispatch(layer, topk_idx, tokens, topk_weights, 4096)
        rows = experts(recv) * weights[..., None].astype(recv.dtype)
        out = ep_combine(layer, handle, counts, rows, tokens.shape[0])

``Group`` is the same as an object: several groups per process and program, groups of processes without jax.distributed.
``roles`` runs different programs on ranks with tokens and on ranks with experts.
Whole layers, from router to losses, are in ``epd.jax.layers``.

The operations take part in JAX's transformations: reverse and forward mode, to any order (dispatch and combine are linear,
and each the other's transpose but for the weights), remat with policies, scan, jit in jit. ``vmap`` makes one exchange
per element, one after another; with ``spmd_axis_name``, an axis of the mesh beside ep and the outer one, each device
makes its own share. Symbolic sizes of ``jax.export`` are refused.

Importing registers the XLA custom calls, and an error for ``jax.lax.ragged_all_to_all`` on CPUs that names its stand-in
(``ragged_all_to_all``), and nothing else; the daemon is looked for in ``ep_bootstrap``. What can be
set from outside is in ``epd.jax.environment``. A failed operation raises the error of ``epd.jax.errors`` on every rank.
"""

from epd import _extras

_extras.require("jax", "jax")

from epd.jax import environment, errors, primitives
from epd.jax._ffi import FFI_TARGET_NAMES
from epd.jax.as_transformer_engine import as_transformer_engine
from epd.jax.bootstrap import default_group, ep_bootstrap, ep_finalize
from epd.jax.config import EpLayerConfig
from epd.jax.cuda import check, enable_cuda
from epd.jax.errors import EpError, ep_errors
from epd.jax.functional import ep_combine, ep_dispatch, ep_handle_mem_size, ep_prepare
from epd.jax.group import Group
from epd.jax.mesh import MeshResource, global_shard_guard
from epd.jax.mesh import _ep_domain_for_rank as _ep_domain_for_rank  # TE has it here too.
from epd.jax.ragged_all_to_all import ragged_all_to_all, ragged_all_to_all_as_lax
from epd.jax.role_group import RoleGroup, RoleLink
from epd.jax.roles import roles
from epd.jax.routing_stats import RoutingStats, routing_stats
from epd.jax.started_exchange import StartedExchange

__all__ = [
    "FFI_TARGET_NAMES",
    "EpError",
    "EpLayerConfig",
    "Group",
    "MeshResource",
    "RoleGroup",
    "RoleLink",
    "RoutingStats",
    "StartedExchange",
    "as_transformer_engine",
    "check",
    "default_group",
    "ep_bootstrap",
    "ep_combine",
    "ep_dispatch",
    "ep_errors",
    "ep_finalize",
    "ep_handle_mem_size",
    "enable_cuda",
    "environment",
    "ep_prepare",
    "errors",
    "global_shard_guard",
    "primitives",
    "ragged_all_to_all",
    "ragged_all_to_all_as_lax",
    "roles",
    "routing_stats",
]
