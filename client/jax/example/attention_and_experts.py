"""Trains a layer of experts whose tokens live in other processes: attention ranks and expert ranks, two programs.

    python attention_and_experts.py                          two attention ranks, three expert ranks, a process each
    python attention_and_experts.py --attention 3 --experts 1

Each attention rank routes its tokens, sends them to the experts, and takes the gradients of the router and the tokens from
what comes back; each expert rank computes, and takes the gradients of its experts. Two micro-batches are in flight at once.
It starts its processes itself. While it runs, ``epctl ranks`` shows which rank runs what.
"""

import argparse
import functools
import sys

import launch

_TOKENS, _HIDDEN, _FFN, _TOP_K, _BATCHES = 16, 32, 48, 2, 2  # Tokens of a rank in a micro-batch.
_LEARNING_RATE = 0.05


# ---- the two programs ----


def route(router, tokens):
    """-> idx int32 [T, K], weights [T, K]."""
    import jax
    import jax.numpy as jnp

    weights, idx = jax.lax.top_k(jax.nn.softmax(tokens @ router), _TOP_K)
    return idx.astype(jnp.int32), weights


def attend(layer, num_tokens: int, name: str, link, router, tokens, targets):
    """On one attention rank -> loss [1], gradients of the router [1, H, E] and of the tokens [T, H]."""
    import jax

    def loss(router, tokens):
        idx, weights = route(router, tokens)
        # This rank owns no experts: it receives one slot of zeros, and hands it on.
        recv, _, handle, *_ = link.dispatch(layer, idx, tokens, weights, 1, name=name)
        out = tokens + link.combine(layer, handle, recv, len(tokens), name=name)
        return ((out - targets) ** 2).sum() / num_tokens

    value, (g_router, g_tokens) = jax.value_and_grad(loss, (0, 1))(router, tokens)
    return value[None], g_router[None], g_tokens


def feed_forward(params, rows, expert):
    """rows [C, H] of the experts [C]; an expert that is none gives zeros. params: up [n, H, F], down [n, F, H]."""
    import jax
    import jax.numpy as jnp

    hidden = jnp.tanh(jnp.einsum("ch,nhf->cnf", rows, params["up"]))
    out = jnp.einsum("cnf,nfh->cnh", hidden, params["down"])
    return (out * jax.nn.one_hot(expert, out.shape[1])[..., None]).sum(1)


def serve(layer, slots: int, name: str, link, params):
    """On one expert rank, for one attention rank -> gradients of its experts; two that keep the exchanges alive."""
    import jax

    idx, row, nothing = link.nothing(layer)  # This rank has no tokens.

    def one_layer(params, row):
        recv, weights, handle, *_ = link.dispatch(layer, idx, row, nothing, slots, name=name)
        expert = link.expert_of_slots(handle, slots)[0]
        out = feed_forward(params, recv[0], expert)[None] * weights[..., None]
        return link.combine(layer, handle, out, 1, name=name)

    receipt, pull = jax.vjp(one_layer, params, row)
    g_params, g_row = pull(receipt)  # The rows' gradients come from the attention rank.
    return g_params, g_row, receipt


# ---- the training ----


def make_problem(args):
    """-> router, params of all experts, and of each micro-batch tokens and targets [M * T, H]."""
    import numpy as np

    rng = np.random.default_rng(0)
    experts, rows = 2 * args.experts, args.attention * _TOKENS

    def normal(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    router = normal(_HIDDEN, experts)
    params = {
        "up": normal(experts, _HIDDEN, _FFN, scale=0.2),
        "down": normal(experts, _FFN, _HIDDEN, scale=0.2),
    }
    mixing = normal(_HIDDEN, _HIDDEN, scale=0.1)
    tokens = [normal(rows, _HIDDEN) for _ in range(_BATCHES)]
    return router, params, [(batch, batch + batch @ mixing) for batch in tokens]


def descend(values, gradients):
    import jax

    return jax.tree.map(lambda value, g: value - _LEARNING_RATE * g, values, gradients)


def train(args, group, meshes, problem):
    """-> the losses and the router, on attention ranks; the params, on expert ranks; None where they are not."""
    import epd.jax as ep
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    attention, experts = meshes
    router, params, batches = problem
    m, layer = args.attention, ep.EpLayerConfig(top_k=_TOP_K)
    rows = m * _TOKENS
    pairs, shapes = [], []
    for batch in range(_BATCHES):  # Each micro-batch has its own pair, and so all are in flight.
        name = f"ffn{batch}"
        pairs += [
            (attention, functools.partial(attend, layer, _BATCHES * rows, name)),
            (experts, functools.partial(serve, layer, _TOKENS * _TOP_K, name)),
        ]
        row = jax.ShapeDtypeStruct((args.experts, _HIDDEN), jnp.float32)
        shapes += [
            jax.tree.map(
                lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
                ((m,), (m, *router.shape), (rows, _HIDDEN)),
                is_leaf=lambda shape: isinstance(shape[0], int),
            ),
            (jax.eval_shape(lambda: params), row, row),
        ]
    run = ep.roles(pairs, group, shapes, name="attention_and_experts", metadata={"layer": "0"})

    def put(array, mesh, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    @functools.partial(jax.jit, out_shardings=NamedSharding(attention, PartitionSpec()))
    def over_all_ranks(parts):
        return jax.tree.map(lambda *leaves: sum(leaf.sum(0) for leaf in leaves), *parts)

    @jax.jit
    def descend_by_all(params, parts):
        return descend(params, jax.tree.map(lambda *leaves: sum(leaves), *parts))

    here = [jax.process_index() in {d.process_index for d in mesh.devices} for mesh in meshes]
    if here[0]:
        router = put(router, attention)
        batches = [[put(array, attention, "attention") for array in batch] for batch in batches]
    if here[1]:
        params = jax.tree.map(lambda array: put(array, experts, "experts"), params)
    losses = []
    for _ in range(args.steps):
        arguments = [((router, *batch), (params,)) for batch in batches]
        results = run(*(role for batch in arguments for role in batch))
        attended, served = results[0::2], results[1::2]
        if here[0]:
            value, g_router = over_all_ranks([part[:2] for part in attended])
            losses.append(float(value))
            router = descend(router, g_router)
        if here[1]:
            gradients = [g_params for batch in served for g_params, _, _ in batch]
            params = descend_by_all(params, gradients)
    return (losses, router) if here[0] else None, params if here[1] else None


def run_rank(args, check) -> int:
    import epd.jax as ep
    import jax
    import numpy as np
    from jax.sharding import Mesh

    jax.config.update("jax_platforms", "cpu")
    m, n = args.attention, args.experts
    jax.distributed.initialize(args.coordinator, m + n, args.rank)
    devices = np.array(jax.devices())
    meshes = Mesh(devices[:m], ("attention",)), Mesh(devices[m:], ("experts",))
    group = ep.RoleGroup(
        "experts",
        *meshes,
        num_experts=2 * n,
        max_tokens_per_rank=_TOKENS,
        recv_capacity_per_rank=_TOKENS * _TOP_K,
        hidden_dim=_HIDDEN,
        max_token_dtype="float32",
    )
    problem = make_problem(args)
    with group:
        attended, params = train(args, group, meshes, problem)
    if attended is not None and args.rank == 0:
        losses = attended[0]
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {args.steps} steps", flush=True)
    wrong = check(args, problem, attended, params)
    if wrong:
        print(f"rank {args.rank}: {wrong}", flush=True)
    return 1 if wrong else 0


def main(script: str = __file__, check=lambda *results: None) -> int:
    """``check(args, problem, attended, params)``: what is wrong with this process's results, or None."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attention", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--experts", type=int, default=3, help="ranks (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=300, help="seconds until they are ended")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return launch.guarded(lambda: run_rank(args, check))
    ranks = args.attention + args.experts
    return launch.verdict(script, launch.run(script, sys.argv[1:], ranks, args.timeout))


if __name__ == "__main__":
    sys.exit(main())
