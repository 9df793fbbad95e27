"""Meshes as training programs lay them out: tokens over two axes beside ep, ep over two axes, a mesh of some of the devices.

The world's devices, in other meshes; every operation is compared with the reference bit for bit.
"""

import math

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from five_operations import run_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from world import World

_CFG = ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=4)


def _laid(world: World, shape: dict[str, int], lead: tuple[str, ...], **names) -> World:
    """A world of the first devices in a mesh of this shape, whose tokens are split over ``lead``; ``names``: MeshResource's."""
    resource = ep.MeshResource(**names)
    own = resource.ep_resource
    ep_size = math.prod(shape[axis] for axis in ([own] if isinstance(own, str) else own))
    shards = math.prod(shape[axis] for axis in lead)
    assert shards == math.prod(shape.values())
    laid = World((shards // ep_size, ep_size), world.folder)
    chosen = _spread(shards)
    laid.mesh = Mesh(np.array(chosen).reshape(tuple(shape.values())), tuple(shape))
    laid.resource, laid.spec = resource, PartitionSpec(lead)
    laid.sharding = NamedSharding(laid.mesh, laid.spec)
    world.sizes = {}
    return laid


def _spread(count: int) -> list[jax.Device]:
    """So many devices, as many of each process."""
    each = count // jax.process_count()
    return [
        device
        for process in range(jax.process_count())
        for device in [d for d in jax.devices() if d.process_index == process][:each]
    ]


def _expect_operations(laid: World, seed: int) -> None:
    ep.ep_finalize()
    laid.bootstrap(dtype=jnp.float32)
    run_all(laid, _CFG, laid.problem(seed, tokens=6, alignment=4))
    ep.ep_finalize()


def check_tokens_over_dp_and_fsdp(world: World):
    shape = {"dp": 2, "fsdp": 2, "ep": 2}
    names = {"dp_resource": "dp", "fsdp_resource": "fsdp", "ep_resource": "ep"}
    _expect_operations(_laid(world, shape, ("dp", "fsdp", "ep"), **names), 201)


def check_tokens_over_dp_and_fsdp_in_a_mesh_of_another_order(world: World):
    """The leading spec is (dp, fsdp, ep), wherever the axes stand in the mesh."""
    shape = {"ep": 2, "fsdp": 2, "dp": 2}
    names = {"dp_resource": "dp", "fsdp_resource": "fsdp", "ep_resource": "ep"}
    _expect_operations(_laid(world, shape, ("dp", "fsdp", "ep"), **names), 202)


def check_ep_over_two_axes(world: World):
    """Positions count the tuple's axes row-major, wherever they stand in the mesh."""
    for seed, shape in ((203, {"context": 4, "expert": 2}), (204, {"expert": 2, "context": 4})):
        lead = ("context", "expert")
        laid = _laid(world, shape, lead, cp_resource="context", ep_resource=lead)
        assert laid.ep == 8
        _expect_operations(laid, seed)


def check_ep_over_two_axes_beside_dp(world: World):
    shape = {"expert": 2, "data": 2, "context": 2}
    names = {"dp_resource": "data", "ep_resource": ("context", "expert")}
    _expect_operations(_laid(world, shape, ("data", "context", "expert"), **names), 205)


def check_a_tuple_of_one_axis_is_the_axis(world: World):
    shape, lead = {"dp": 4, "ep": 2}, ("dp", "ep")
    _expect_operations(_laid(world, shape, lead, dp_resource="dp", ep_resource=("ep",)), 206)


def check_a_mesh_of_some_of_the_processs_devices(world: World):
    """ep_bootstrap takes the ranks of those that are in it; the others go on without."""
    laid = _laid(world, {"dp": 2, "ep": 2}, ("dp", "ep"), dp_resource="dp", ep_resource="ep")
    assert laid.num_ranks < len(jax.devices())
    _expect_operations(laid, 207)
