"""The errors of meshes that a small job cannot have: at least four processes and two domains."""

import epd.jax as ep
import jax
import numpy as np
from bad_input.groups import sizes
from jax.sharding import Mesh, NamedSharding
from world import World, fails, raises


def check_device_that_is_not_in_the_mesh(world: World):
    others = [device for device in jax.devices() if device.process_index != 0]
    mesh = Mesh(np.array(others), ("ep",))
    with jax.set_mesh(mesh), ep.global_shard_guard(ep.MeshResource(ep_resource="ep")):
        if world.index == 0:
            with raises(ValueError, "rank 0"):
                ep.ep_bootstrap(**sizes(world, world_size=len(others), num_experts=len(others)))


def check_an_axis_for_two_uses(world: World):
    mesh = Mesh(world.mesh.devices.reshape(2, -1, 1), ("dp", "fsdp", "ep"))
    resource = ep.MeshResource(dp_resource="dp", fsdp_resource="fsdp", ep_resource=("ep", "fsdp"))
    with jax.set_mesh(mesh), ep.global_shard_guard(resource):
        with raises(ValueError, "ep_resource is ('ep', 'fsdp')", "name 'fsdp' once"):
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


def check_a_device_that_holds_no_rank_names_itself_and_the_holder(world: World):
    """The program runs on a mesh whose devices stand elsewhere: every process is told where, and who holds the place."""
    world.bootstrap()
    devices = np.roll(world.mesh.devices.reshape(-1), 1)
    mesh = Mesh(devices.reshape(world.mesh.devices.shape), world.mesh.axis_names)
    idx = jax.make_array_from_callback(
        (8, 2), NamedSharding(mesh, world.spec), lambda index: np.zeros((8, 2), np.int32)[index]
    )
    step = jax.jit(lambda i: ep.ep_prepare(ep.EpLayerConfig(top_k=2), i)[0].sum())
    place = list(devices).index(jax.local_devices()[0])
    holder = world.mesh.devices.reshape(-1)[place]
    texts = (
        f"process {world.index}, device ids {jax.local_devices()[0].id}, platform cpu",
        f"domain {place // world.ep}, position {place % world.ep} along ep",
        f"device id {holder.id} (platform cpu) of process {holder.process_index} holds",
    )
    with jax.set_mesh(mesh), ep.global_shard_guard(world.resource):
        compiled = step.lower(idx).compile()
        with fails("INVALID_ARGUMENT", *texts):
            jax.block_until_ready(compiled(idx))
    world.barrier("every process was told who holds its place")
