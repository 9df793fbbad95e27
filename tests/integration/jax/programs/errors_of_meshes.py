"""The errors of meshes that a small job cannot have: at least four processes and two domains."""

import epd.jax as ep
import jax
import numpy as np
from jax.sharding import Mesh
from programs.errors_table import sizes
from world import World, raises


def check_device_that_is_not_in_the_mesh(world: World):
    others = [device for device in jax.devices() if device.process_index != 0]
    mesh = Mesh(np.array(others), ("ep",))
    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        if world.index == 0:
            with raises(ValueError, "rank 0"):
                ep.ep_bootstrap(**sizes(world, world_size=len(others), num_experts=len(others)))


def check_two_large_axes_beside_ep(world: World):
    mesh = Mesh(world.mesh.devices.reshape(2, -1, 1), ("dp", "fsdp", "ep"))
    resource = ep.MeshResource(dp_resource="dp", fsdp_resource="fsdp", ep_resource="ep")
    with jax.set_mesh(mesh), ep.global_shard_guard(resource):
        with raises(ValueError, "dp", "fsdp"):
            ep.ep_bootstrap(**sizes(world, num_experts=4))


def check_another_mesh_shape_is_named(world: World):
    world.bootstrap()
    mesh = Mesh(world.mesh.devices.reshape(1, -1), ("dp", "ep"))
    with (
        jax.set_mesh(mesh),
        ep.global_shard_guard(world.resource),
        raises(ValueError, "ep", "4", "2"),
    ):
        jax.jit(lambda i: ep.ep_prepare(ep.EpLayerConfig(top_k=2), i)).lower(
            np.zeros((8, 2), np.int32)
        )
