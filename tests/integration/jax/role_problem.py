"""Two programs of roles, their data, and the same in NumPy: layers that add what the experts make of a token to it.

Numbers are small integers, so that sums have the same bits in whatever order they are taken.
"""

import functools

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from world import World

CFG = ep.EpLayerConfig(top_k=2, dispatch_output_per_expert_alignment=2)
TOKENS, HIDDEN, SLOTS, BATCHES = 5, 160, 64, 2


def meshes_of(m: int, n: int) -> tuple[Mesh, Mesh]:
    """Of eight devices each role has four at most: of two processes with four devices, each has one role."""
    devices = np.array(jax.devices())
    first = 4 if len(devices) == 8 else m
    return Mesh(devices[:m], ("attention",)), Mesh(devices[first : first + n], ("experts",))


def _owner(expert: int, n: int) -> int:
    return (2 * expert + 1) % n


def group_of(m: int, n: int, **changed) -> ep.RoleGroup:
    sizes = {
        "num_experts": n + 3,
        "expert_owner": [_owner(expert, n) for expert in range(n + 3)],
        "max_tokens_per_rank": 8,
        "recv_capacity_per_rank": SLOTS,
        "hidden_dim": HIDDEN,
        "max_token_dtype": jnp.float32,
    }
    return ep.RoleGroup(f"roles-{m}-{n}", *meshes_of(m, n), **{**sizes, **changed})


# ---- the programs ----


def _attend(name: str, link: ep.RoleLink, idx, tokens, weights):
    """idx, weights [T, layers, K]. -> out, and the gradients of half of its square."""

    def layers(tokens, weights):
        for layer in range(idx.shape[1]):
            at = f"{name}.{layer}"
            recv, _, handle, counts, _ = link.dispatch(
                CFG, idx[:, layer], tokens, weights[:, layer], 1, name=at
            )
            tokens = tokens + link.combine(CFG, handle, recv, TOKENS, name=at)
        return tokens

    out, pull = jax.vjp(layers, tokens, weights)
    return out, *pull(out)


def _expert(link: ep.RoleLink, name: str, scales, idx, row, nothing) -> jax.Array:
    """Rows times the number of their expert, sent back."""
    recv, weights, handle, counts, _ = link.dispatch(CFG, idx, row, nothing, SLOTS, name=name)
    expert = link.expert_of_slots(handle, SLOTS)
    one_hot = jax.nn.one_hot(expert, scales.shape[1], dtype=scales.dtype)
    scale = (one_hot * scales[:, None, :]).sum(-1)
    return link.combine(CFG, handle, recv * (scale * weights)[..., None], 1, name=name)


def _serve(name: str, num_layers: int, link: ep.RoleLink, scales):
    """scales [1, n]: each expert multiplies its rows. -> their gradient, and what only keeps the operations alive."""
    idx, row, nothing = link.nothing(CFG)

    def layers(scales, row):
        to = idx
        for layer in range(num_layers):
            at = f"{name}.{layer}"
            if layer:
                to, row, _ = link.nothing(CFG, after=row)
            row = _expert(link, at, scales, to, row, nothing)
        return row

    receipt, pull = jax.vjp(layers, scales, row)
    return *pull(receipt), receipt


def _attend_in_a_loop(name: str, link: ep.RoleLink, idx, tokens, weights):
    """``_attend``, as a scan over the layers: a name of a loop is used once in each round."""

    def layers(tokens, weights):
        def layer(tokens, parts):
            idx, weights = parts
            recv, _, handle, counts, _ = link.dispatch(CFG, idx, tokens, weights, 1, name=name)
            out = link.combine(CFG, handle, recv, TOKENS, name=name)
            return tokens + out, None

        parts = (idx.swapaxes(0, 1), weights.swapaxes(0, 1))
        return jax.lax.scan(layer, tokens, parts)[0]

    out, pull = jax.vjp(layers, tokens, weights)
    return out, *pull(out)


def _serve_in_a_loop(name: str, num_layers: int, link: ep.RoleLink, scales):
    idx, row, nothing = link.nothing(CFG)

    def layers(scales, row):
        def layer(row, _):
            return _expert(link, name, scales, idx, row, nothing), None

        return jax.lax.scan(layer, row, length=num_layers)[0]

    receipt, pull = jax.vjp(layers, scales, row)
    return *pull(receipt), receipt


def pairs_of(m: int, n: int, num_layers: int, looped: bool = False) -> list:
    """A pair of programs for each micro-batch."""
    attention, experts = meshes_of(m, n)
    attend, serve = (_attend_in_a_loop, _serve_in_a_loop) if looped else (_attend, _serve)
    return [
        pair
        for batch in range(BATCHES)
        for pair in (
            (attention, functools.partial(attend, f"ffn{batch}")),
            (experts, functools.partial(serve, f"ffn{batch}", num_layers)),
        )
    ]


def shapes_of(m: int, n: int, group: ep.RoleGroup, num_layers: int) -> list:
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    rows = f32(m * TOKENS, HIDDEN)
    attended = (rows, rows, f32(m * TOKENS, num_layers, 2))
    served = (f32(n, group.config.num_local_experts), f32(n, HIDDEN), f32(n, HIDDEN))
    return [attended, served] * BATCHES


# ---- data, and the same in NumPy ----


def data_of(m: int, group: ep.RoleGroup, num_layers: int, seed: int):
    rng = np.random.default_rng(seed)
    experts, rows = group.config.num_experts, m * TOKENS
    batches = [
        (
            rng.integers(-1, experts, (rows, num_layers, 2)).astype(np.int32),
            rng.integers(-2, 3, (rows, HIDDEN)).astype(np.float32),
            rng.integers(0, 3, (rows, num_layers, 2)).astype(np.float32),
        )
        for _ in range(BATCHES)
    ]
    return batches, rng.integers(-1, 3, experts).astype(np.float32)


def _by_rank(group: ep.RoleGroup, n: int, values: np.ndarray) -> np.ndarray:
    """[E] -> [N, n], in the order of each rank's experts, zeros beyond."""
    table = np.zeros((n, group.config.num_local_experts), np.float32)
    for rank in range(n):
        own = [value for expert, value in enumerate(values) if _owner(expert, n) == rank]
        table[rank, : len(own)] = own
    return table


def _reference(batch, scales: np.ndarray):
    """-> out, gradients of tokens and weights, and by token and expert those of the scales."""
    idx, tokens, weights = batch
    scale = np.where(idx >= 0, scales[idx], 0)  # [T, layers, K]
    inputs, factors = [tokens], 1 + (weights * scale).sum(-1)
    for layer in range(idx.shape[1]):
        inputs.append(inputs[-1] * factors[:, layer, None])
    grad = out = inputs.pop()
    g_weights, g_scales = np.zeros_like(weights), np.zeros((len(tokens), len(scales)), np.float32)
    for layer in reversed(range(idx.shape[1])):
        dots = (inputs[layer] * grad).sum(1, keepdims=True)
        g_weights[:, layer] = scale[:, layer] * dots
        for token, slot in np.argwhere(idx[:, layer] >= 0):
            g_scales[token, idx[token, layer, slot]] += weights[token, layer, slot] * dots[token, 0]
        grad = grad * factors[:, layer, None]
    return out, grad, g_weights, g_scales


def put(array: np.ndarray, mesh: Mesh) -> jax.Array:
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def is_here(mesh: Mesh) -> bool:
    return any(d.process_index == jax.process_index() for d in mesh.devices.reshape(-1))


def arguments_of(m: int, n: int, group: ep.RoleGroup, batches, scales) -> list:
    """For each pair; None where this process has no device of its mesh."""
    attention, experts = meshes_of(m, n)
    arguments = []
    for batch in batches:
        arguments.append(
            tuple(put(part, attention) for part in batch) if is_here(attention) else None
        )
        table = _by_rank(group, n, scales)
        arguments.append((put(table, experts),) if is_here(experts) else None)
    return arguments


def expect(world: World, m: int, n: int, group: ep.RoleGroup, batches, scales, results) -> None:
    attention, experts = meshes_of(m, n)
    for number, batch in enumerate(batches):
        attended, served = results[2 * number : 2 * number + 2]
        out, g_tokens, g_weights, g_scales = _reference(batch, scales)
        if is_here(attention):
            for got, want, what in zip(
                attended, (out, g_tokens, g_weights), ("out", "tokens", "weights"), strict=True
            ):
                world.expect_equal(got, want, f"{what} of micro-batch {number}")
        if is_here(experts):
            for rank, (got, row, receipt) in enumerate(served):
                own = g_scales[rank * TOKENS : (rank + 1) * TOKENS].sum(0)
                world.expect_equal(got, _by_rank(group, n, own), f"scales for token rank {rank}")
                world.expect_equal(row, np.zeros((n, HIDDEN)))
                world.expect_equal(receipt, np.zeros((n, HIDDEN)))


def run_and_compare(
    world: World, m: int, n: int, num_layers: int = 1, steps: int = 2, looped: bool = False
) -> None:
    """Several steps, all started before the first one's results are looked at."""
    with group_of(m, n) as group:
        batches, scales = data_of(m, group, num_layers, 300 + 10 * m + n)
        pairs = pairs_of(m, n, num_layers, looped)
        run = ep.roles(pairs, group, shapes_of(m, n, group, num_layers))
        started = [run.start(*arguments_of(m, n, group, batches, scales)) for _ in range(steps)]
        for one in started:
            expect(world, m, n, group, batches, scales, one.result())
    world.barrier(f"roles {m} {n} {num_layers} {looped}")
