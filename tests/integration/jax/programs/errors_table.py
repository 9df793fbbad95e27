"""The errors that API.md promises at bootstrap and while tracing: kind, order, and what the text names."""

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from epd.jax import primitives
from world import World, raises

_CFG = ep.EpLayerConfig(top_k=2)


def sizes(world: World, **changed) -> dict:
    return {
        "world_size": world.num_ranks,
        "rank": jax.process_index(),
        "num_experts": 2 * world.ep,
        "max_tokens_per_rank": 16,
        "recv_capacity_per_rank": 128,
        "hidden_dim": 8,
        **changed,
    }


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
    for enter in (lambda: world.mesh, lambda: jax.set_mesh(world.mesh)):
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
    with world.mesh, ep.global_shard_guard(ep.MeshResource()), raises(ValueError, "ep_resource"):
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
    for arguments in ((0,), (2, 3), (2, -4)):
        with raises(ValueError, "EpLayerConfig"):
            ep.EpLayerConfig(*arguments)


def _trace(world: World, function, *shapes) -> None:
    with world.context():
        jax.jit(function).lower(*[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes])


def _dispatch(capacity=64, cfg=_CFG):
    return lambda i, t, w: ep.ep_dispatch(cfg, i, t, w, capacity)


def check_tracing_errors_of_dispatch(world: World):
    world.bootstrap(dtype=jnp.bfloat16)
    rows, f32, bf16, i32 = 4 * world.num_ranks, jnp.float32, jnp.bfloat16, jnp.int32
    good = ((rows, 2), i32), ((rows, 8), bf16), ((rows, 2), f32)
    _trace(world, _dispatch(), *good)
    with raises(ValueError, "129", "128"):
        _trace(world, _dispatch(129), *good)
    with raises(ValueError, "float32", "bfloat16"):
        _trace(world, _dispatch(), good[0], ((rows, 8), f32), good[2])
    many = 17 * world.num_ranks
    with raises(ValueError, "17", "max_tokens_per_rank"):
        _trace(world, _dispatch(), ((many, 2), i32), ((many, 8), bf16), ((many, 2), f32))
    with raises(ValueError, "tokens", "[", "9"):
        _trace(world, _dispatch(), good[0], ((rows, 9), bf16), good[2])
    with raises(
        ValueError, "topk_idx", "topk_weights", "recv_capacity_per_rank", "tokens"
    ):  # All in one.
        _trace(world, _dispatch(500), ((rows, 3), i32), ((rows, 9), bf16), ((rows + 1, 2), f32))
    with raises(TypeError, "topk_weights", "int32"):
        _trace(world, _dispatch(), good[0], good[1], ((rows, 2), i32))
    with raises(TypeError, "topk_idx"):
        _trace(world, _dispatch(), ((rows, 2), f32), good[1], good[2])
    if world.num_ranks > 1:
        with raises(ValueError, "multiple"):
            _trace(
                world,
                _dispatch(),
                ((rows + 1, 2), i32),
                ((rows + 1, 8), bf16),
                ((rows + 1, 2), f32),
            )
    with raises(TypeError, "recv_capacity_per_rank"), world.context():
        jax.jit(lambda c, i, t, w: ep.ep_dispatch(_CFG, i, t, w, c)).lower(
            3, *[jax.ShapeDtypeStruct(*array) for array in good]
        )


def check_tracing_errors_of_the_others(world: World):
    world.bootstrap(dtype=jnp.bfloat16)
    ranks, bf16, u8, f32 = world.num_ranks, jnp.bfloat16, jnp.uint8, jnp.float32
    handle = ((ranks, ep.ep_handle_mem_size(_CFG)), u8)
    rows = ((ranks, 64, 8), bf16)
    combine = lambda h, r: primitives.ep_combine_fwd(_CFG, h, r, 4 * ranks)  # noqa: E731
    _trace(world, combine, handle, rows)
    with raises(ValueError, "handle_mem", "expert_out"):
        _trace(world, combine, ((ranks, 5), u8), ((ranks, 64, 7), bf16))
    with raises(ValueError, "recv_capacity_per_rank is 200"):
        _trace(world, combine, handle, ((ranks, 200, 8), bf16))
    with raises(ValueError, "num_local_tokens"):
        _trace(world, lambda h, r: ep.ep_combine(_CFG, h, None, r, 17 * ranks), handle, rows)
    with raises(ValueError, "nowhere"):
        _trace(
            world,
            lambda h, r: ep.ep_combine(_CFG, h, None, r, 4 * ranks, ("nowhere",)),
            handle,
            rows,
        )
    with raises(ValueError, "g_recv_topk_weights"):
        backward = lambda h, r, w: primitives.ep_dispatch_bwd(_CFG, h, r, w, 4 * ranks)  # noqa: E731
        _trace(world, backward, handle, rows, ((ranks, 63), f32))
    with raises(ValueError, "recv_capacity_per_rank is 129"):
        _trace(
            world,
            lambda h, g: primitives.ep_combine_bwd(_CFG, h, g, 129),
            handle,
            ((4 * ranks, 8), bf16),
        )
    with raises(ValueError, "topk_idx"):
        _trace(world, lambda i: ep.ep_prepare(_CFG, i), ((4 * ranks, 3), jnp.int32))
    with raises(TypeError, "EpLayerConfig"):
        _trace(world, lambda i: ep.ep_prepare(2, i), ((4 * ranks, 2), jnp.int32))


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
    with raises(ValueError, "8"):
        primitives._ep_domain_for_rank(FakeMesh, "ep", 8)
    with raises(ValueError, "2 times"):
        primitives._ep_domain_for_rank(
            FakeMesh, "ep", 0, device_to_rank=lambda device: device.process_index // 2
        )


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
