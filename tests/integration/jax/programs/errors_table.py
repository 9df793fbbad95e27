"""The order of the checks at bootstrap, and what a sound set-up says of itself; ``bad_input`` has the table of errors."""

import epd.jax as ep
import jax
import numpy as np
from bad_input.groups import sizes
from epd.jax import primitives
from world import World, raises

_CFG = ep.EpLayerConfig(top_k=2)


def check_nothing_is_bootstrapped_at_first(world: World):
    ep.ep_finalize()
    ep.ep_finalize()
    with raises(RuntimeError, "ep_bootstrap"):
        primitives.get_ep_config()
    with raises(RuntimeError, "ep_bootstrap"):
        ep.ep_handle_mem_size(_CFG)
    with world.context(), raises(RuntimeError, "ep_bootstrap"):
        jax.jit(lambda i: ep.ep_prepare(_CFG, i)).lower(np.zeros((world.num_ranks, 2), np.int32))


def check_bootstrap_checks_in_order(world: World):
    """Each call has every later mistake too: the first check must win."""
    no_ep, wrong = (
        ep.MeshResource(),
        sizes(world, world_size=99, num_experts=2 * world.ep + 1, rank=77),
    )
    with ep.global_shard_guard(no_ep):
        with raises(NotImplementedError, "float64"):
            ep.ep_bootstrap(**wrong, max_token_dtype=np.float64)
        with raises(ValueError, "ep_resource"):
            ep.ep_bootstrap(**wrong)
    with raises(ValueError, "ep_resource"):
        ep.ep_bootstrap(**wrong)
    with ep.global_shard_guard(world.resource):
        with raises(ValueError, "mesh"):
            ep.ep_bootstrap(**wrong)
    for enter in (world.entered, lambda: jax.set_mesh(world.mesh)):
        with enter(), ep.global_shard_guard(world.resource):
            with raises(ValueError, "99", str(world.num_ranks)):
                ep.ep_bootstrap(**wrong)
            wrong_experts = {**wrong, "world_size": world.num_ranks}
            if world.ep > 1:
                with raises(ValueError, "num_experts"):
                    ep.ep_bootstrap(**wrong_experts)
            with raises(ValueError, "rank", "77"):
                ep.ep_bootstrap(**{**wrong_experts, "num_experts": 2 * world.ep})


def check_second_bootstrap(world: World):
    world.bootstrap()
    with world.context(), raises(RuntimeError, "already"):
        ep.ep_bootstrap(**sizes(world))
    with (
        jax.set_mesh(world.mesh),
        ep.global_shard_guard(ep.MeshResource()),
        raises(ValueError, "ep_resource"),
    ):
        ep.ep_bootstrap(**sizes(world))


def check_configuration_is_what_was_given(world: World):
    world.bootstrap()
    config = primitives.get_ep_config()
    assert (config.world_size, config.ep_size, config.num_ep_groups) == (
        world.num_ranks,
        world.ep,
        world.dp,
    )
    assert (config.num_experts, config.num_local_experts, config.hidden_dim) == (2 * world.ep, 2, 8)
    assert (config.max_tokens_per_rank, config.recv_capacity_per_rank) == (16, 128)
    assert config.rank == jax.process_index()
    try:
        config.rank = 5
    except AttributeError:
        pass
    else:
        raise AssertionError("the configuration is not frozen")
    assert ep.ep_handle_mem_size(_CFG) == ep.ep_handle_mem_size(ep.EpLayerConfig(2, 16)) > 0


def check_layer_configuration(world: World):
    del world
    assert ep.EpLayerConfig(2) == ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=0)
    assert hash(ep.EpLayerConfig(2, 4)) == hash(ep.EpLayerConfig(2, 4))


def check_domains_of_a_mesh(world: World):
    """The example of API.md: a row-major 4 x 2 mesh (ep, tp)."""
    del world

    class Device:
        def __init__(self, number: int):
            self.process_index = number

    class FakeMesh:
        axis_names = ("ep", "tp")
        devices = np.array([Device(n) for n in range(8)]).reshape(4, 2)

    places = [primitives._ep_domain_for_rank(FakeMesh, "ep", rank) for rank in range(8)]
    assert places == [
        (0, 0, 2),
        (1, 0, 2),
        (0, 1, 2),
        (1, 1, 2),
        (0, 2, 2),
        (1, 2, 2),
        (0, 3, 2),
        (1, 3, 2),
    ]


def check_guard_nests_and_restores(world: World):
    from epd.jax.mesh import active_resource

    inner = ep.MeshResource(ep_resource="other")
    with ep.global_shard_guard(world.resource):
        with ep.global_shard_guard(inner):
            assert active_resource() is inner
        assert active_resource() is world.resource
    with raises(ValueError, "ep_resource"):
        active_resource()


def check_no_tokens_inside_a_shard_map(world: World):
    """XLA would drop the rank's calls there; in the caller's jit it does not, forward and backward."""
    world.bootstrap()

    def layer(idx, tokens, weights):
        recv, _, handle, counts, _ = ep.ep_dispatch(_CFG, idx, tokens, weights, 64)
        return ep.ep_combine(_CFG, handle, counts, recv, idx.shape[0])

    def gradient(*operands):
        return jax.grad(lambda t: (layer(operands[0], t, operands[2]) ** 2).sum())(operands[1])

    operands = np.zeros((0, 2), np.int32), np.zeros((0, 8), np.float32), np.ones((0, 2), np.float32)
    with world.context():
        for function in (layer, gradient):
            out = jax.jit(function)(*map(world.put, operands))
            assert out.shape == (0, 8), out.shape
            inside = jax.shard_map(function, in_specs=world.spec, out_specs=world.spec)
            if world.num_ranks == 1:
                jax.jit(inside).lower(*operands)
                continue
            with raises(ValueError, "no tokens", "shard_map", "indices are all -1"):
                jax.jit(inside).lower(*operands)
