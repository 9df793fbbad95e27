"""The mixture-of-experts block of DeepSeek-V3 with epd.jax.layers: one step, forward and backward.

    python deepseek_v3_moe.py                 2 x 2 devices of this process, the block in small
    python deepseek_v3_moe.py --mesh 1x4

The block as its authors describe it (DeepSeek-V3 Technical Report, sections 2.1.2 and 2.2; the published configuration in
brackets): scores are sigmoids of ``x @ W_g``. Of 8 groups of experts (n_group) the 4 (topk_group) are kept whose best two
biased scores sum highest, and of these the 8 (num_experts_per_tok) experts of the highest biased scores are used. The
bias per expert (e_score_correction_bias) decides that and nothing else. A token's weights are its scores over their sum
(norm_topk_prob), times 2.5 (routed_scaling_factor). Every expert is a SwiGLU of inner width 2048 (moe_intermediate_size);
one shared expert (n_shared_experts) takes every token, with weight 1. The bias is moved against the load of the last step
instead of a loss over the batch; a small loss (alpha) balances each sequence.

Names of the published model's parameters, of layer L and expert e, and where they go. Its matrices are [out, in], this
layer's [in, out]; ``from_published`` does what the table says:

    model.layers.L.mlp.gate.weight                       [E, H]     params["router"]["kernel"]           [H, E]     transposed
    model.layers.L.mlp.gate.e_score_correction_bias      [E]        params["router"]["selection_bias"]   [E]
    model.layers.L.mlp.experts.e.gate_proj.weight        [F, H]     params["experts"]["gate"][e]         [H, F]     transposed
    model.layers.L.mlp.experts.e.up_proj.weight          [F, H]     params["experts"]["up"][e]           [H, F]     transposed
    model.layers.L.mlp.experts.e.down_proj.weight        [H, F]     params["experts"]["down"][e]         [F, H]     transposed
    model.layers.L.mlp.shared_experts.gate_proj.weight   [S, H]     params["shared"]["gate"]             [H, S]     transposed
    model.layers.L.mlp.shared_experts.up_proj.weight     [S, H]     params["shared"]["up"]               [H, S]     transposed
    model.layers.L.mlp.shared_experts.down_proj.weight   [H, S]     params["shared"]["down"]             [S, H]     transposed

with S = n_shared_experts * moe_intermediate_size. Fields of its configuration are arguments of ``config_of``.
"""

import argparse
import os
import sys
from collections.abc import Mapping

import numpy as np

_PUBLISHED = {
    "hidden_size": 7168,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_shared_experts": 1,
}
# The same block with every ratio that matters, small enough for a laptop.
_SMALL = {
    **_PUBLISHED,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
}
_BALANCE = 1e-4  # alpha, of the loss over each sequence.
_SEQUENCES, _LENGTH = 2, 16  # Of a device.


def config_of(published: Mapping):
    """The MoeConfig of the block, from the published model's configuration."""
    from epd.jax.layers import MoeConfig, RouterConfig

    router = RouterConfig(
        num_experts=published["n_routed_experts"],
        top_k=published["num_experts_per_tok"],
        scoring="sigmoid",
        normalize=published["norm_topk_prob"],
        scale=published["routed_scaling_factor"],
        num_groups=published["n_group"],
        groups_kept=published["topk_group"],
        group_score="top2",
        selection_bias=True,
        balance_loss=_BALANCE,
        balance_over="sequence",
    )
    return MoeConfig(
        hidden_dim=published["hidden_size"],
        ffn_dim=published["moe_intermediate_size"],
        router=router,
        shared_ffn_dim=published["n_shared_experts"] * published["moe_intermediate_size"],
    )


def from_published(weights: Mapping[str, np.ndarray], layer: int, num_experts: int) -> dict:
    """The layer's parameters, from the published model's arrays by name."""
    block = f"model.layers.{layer}.mlp"

    def matrix(name: str) -> np.ndarray:
        return np.asarray(weights[f"{block}.{name}.weight"], np.float32).T

    def all_experts(name: str) -> np.ndarray:
        return np.stack([matrix(f"experts.{e}.{name}_proj") for e in range(num_experts)])

    bias = np.asarray(weights[f"{block}.gate.e_score_correction_bias"], np.float32)
    names = ("gate", "up", "down")
    return {
        "router": {"kernel": matrix("gate"), "selection_bias": bias},
        "experts": {name: all_experts(name) for name in names},
        "shared": {name: matrix(f"shared_experts.{name}_proj") for name in names},
    }


def random_weights(published: Mapping, layer: int, seed: int) -> dict[str, np.ndarray]:
    """Arrays under the published model's names and shapes."""
    rng, block = np.random.default_rng(seed), f"model.layers.{layer}.mlp"
    hidden, inner = published["hidden_size"], published["moe_intermediate_size"]
    experts = published["n_routed_experts"]

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def swiglu(name: str, width: int) -> dict[str, np.ndarray]:
        return {
            f"{block}.{name}.gate_proj.weight": matrix(width, hidden),
            f"{block}.{name}.up_proj.weight": matrix(width, hidden),
            f"{block}.{name}.down_proj.weight": matrix(hidden, width),
        }

    weights = {
        f"{block}.gate.weight": matrix(experts, hidden),
        f"{block}.gate.e_score_correction_bias": 0.1 * matrix(experts),
        **swiglu("shared_experts", published["n_shared_experts"] * inner),
    }
    for e in range(experts):
        weights |= swiglu(f"experts.{e}", inner)
    return weights


def step(mesh, published: Mapping, weights: Mapping, layer: int, tokens: np.ndarray):
    """-> the block's result, and the gradients of its mean square: of parameters and tokens. Moves the bias once."""
    import jax
    from epd.jax import layers
    from jax.sharding import NamedSharding, PartitionSpec

    config = config_of(published)
    params = jax.tree.map(
        lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec)),
        from_published(weights, layer, config.router.num_experts),
        layers.partition_specs(config),
    )
    rows = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec(("dp", "ep"))))

    def value(params, tokens):
        out, aux = layers.moe(config, params, tokens)
        return (out**2).mean(), (out, aux)

    (_, (out, aux)), grads = jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))(params, rows)
    bias = params["router"]["selection_bias"]
    moved = layers.updated_selection_bias(bias, np.asarray(aux.load).sum(0), rate=1e-3)
    raised = int((np.asarray(moved) > np.asarray(bias)).sum())
    print(f"balance loss {float(aux.balance_loss.mean()):.2f}; the bias of {raised} experts rises")
    return out, grads


def main(check=lambda *results: True) -> int:
    """``check(published, weights, layer, tokens, out, grads)``: whether the results are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mesh", default="2x2", help="dp x ep, of CPU devices (default: %(default)s)"
    )
    dp, ep = (int(size) for size in parser.parse_args().mesh.split("x"))
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={dp * ep}"

    import epd.jax
    import jax
    from epd.jax import layers
    from jax.sharding import AxisType

    jax.config.update("jax_platforms", "cpu")
    mesh = jax.make_mesh((dp, ep), ("dp", "ep"), axis_types=(AxisType.Auto, AxisType.Auto))
    resource = epd.jax.MeshResource(dp_resource="dp", ep_resource="ep")
    config, tokens = config_of(_SMALL), _SEQUENCES * _LENGTH
    with jax.set_mesh(mesh), epd.jax.global_shard_guard(resource):
        epd.jax.ep_bootstrap(
            world_size=mesh.size,
            rank=0,
            num_experts=config.router.num_experts,
            max_tokens_per_rank=tokens,
            recv_capacity_per_rank=layers.recv_capacity(config, tokens, ep, "float32"),
            hidden_dim=config.hidden_dim,
            max_token_dtype="float32",
        )
        layer = 3  # The first three layers of the published model are dense.
        weights = random_weights(_SMALL, layer, seed=0)
        shape = (mesh.size * _SEQUENCES, _LENGTH, config.hidden_dim)
        given = np.random.default_rng(1).standard_normal(shape, np.float32)
        passed = check(_SMALL, weights, layer, given, *step(mesh, _SMALL, weights, layer, given))
        epd.jax.ep_finalize()
    print(f"deepseek_v3_moe: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
