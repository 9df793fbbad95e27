"""``transformer_engine.jax.moe.moe``: the layer of ``epd.jax.layers`` under the arguments of Transformer Engine's."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from epd.jax._transformer_engine import moe_arguments
from epd.jax._transformer_engine.moe_router import RouterArguments
from epd.jax._transformer_engine.quantize import QuantizerSet, noop_quantizer_set
from epd.jax._transformer_engine.receive_capacity import (
    ALIGNMENT,
    get_moe_recv_capacity_per_rank,
)
from epd.jax.config import bootstrapped
from epd.jax.layers import Axes, MoeConfig
from epd.jax.layers import moe as layer
from epd.jax.mesh import MeshResource, active_mesh, current_layout, global_shard_guard


def _parameters(
    gate_kernel: jax.Array,
    wi: jax.Array,
    wo: jax.Array,
    biases: tuple[jax.Array | None, ...],
    expert_bias: jax.Array | None,
) -> dict[str, dict[str, jax.Array]]:
    """As ``epd.jax.layers`` names them."""
    ffn = wi.shape[2] // 2
    names = ("gate_bias", "up_bias", "down_bias")
    held = {name: bias for name, bias in zip(names, biases, strict=True) if bias is not None}
    router = {"kernel": gate_kernel}
    if expert_bias is not None:
        router["selection_bias"] = expert_bias
    return {
        "router": router,
        "experts": {"gate": wi[..., :ffn], "up": wi[..., ffn:], "down": wo, **held},
    }


def moe(
    x: jax.Array,
    gate_kernel: jax.Array,
    wi: jax.Array,
    wo: jax.Array,
    wi_0_bias: jax.Array | None = None,
    wi_1_bias: jax.Array | None = None,
    wo_bias: jax.Array | None = None,
    expert_bias: jax.Array | None = None,
    *,
    num_experts: int,
    num_experts_per_tok: int,
    activation_type: str = "silu",
    score_function: Any = "softmax",
    use_pre_softmax: bool = False,
    num_groups: int | None = None,
    group_topk: int | None = None,
    scaling_factor: float = 1.0,
    aux_loss_coeff: float = 0.0,
    apply_topk_weights_early: bool = False,
    quantizer_sets: tuple[QuantizerSet, QuantizerSet] = (noop_quantizer_set, noop_quantizer_set),
    mesh_resource: MeshResource | None = None,
    quant_before_fsdp_ag: bool = False,
    ep_axis: str | tuple[str, ...] | None = None,
    data_parallelism_axes: Sequence[str] | None = None,
    input_axes: Sequence[str | None] = (),
    gate_kernel_axes: Sequence[str | None] = (),
    wi_kernel_axes: Sequence[str | None] = ("exp", "embed", "mlp"),
    wo_kernel_axes: Sequence[str | None] = ("exp", "mlp", "embed"),
    dtype: DTypeLike = jnp.float32,
    recv_capacity_per_rank: int | None = None,
    wi_0_checkpoint_name: str | None = None,
    wi_1_checkpoint_name: str | None = None,
    wo_checkpoint_name: str | None = None,
    dispatch_checkpoint_name: str | None = None,
    weight_gather: Any = None,
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """Routes each token to its experts, runs them on the ranks that own them, and sums what they make. Collective; differentiable.

    Args:
        x: ``[batch, sequence, hidden]``, traced; the batch is split over the data axes and ``ep_axis``.
        gate_kernel: ``[hidden, num_experts]``, traced; the router's. Its logits and scores are float32.
        wi: ``[num_experts, hidden, 2 * ffn]``, traced: the columns that go through the activation, then those that are
            multiplied with them.
        wo: ``[num_experts, ffn, hidden]``, traced.
        wi_0_bias, wi_1_bias, wo_bias: ``[num_experts, ffn]`` twice and ``[num_experts, hidden]``, all or none; traced.
        expert_bias: ``[num_experts]``, traced; moves the choice of experts of a router without softmax, and has no gradient.
        num_experts: static, as all that follow; those of the group.
        num_experts_per_tok: routes of a token.
        activation_type: of the first half of ``wi``'s columns.
        score_function: "softmax", "sigmoid" or "sqrtsoftplus".
        use_pre_softmax: a softmax router's weights are the chosen of all experts' scores, and not the softmax of the chosen.
        num_groups, group_topk: the experts form groups, of which a token may use so many; None: no groups.
        scaling_factor: of the weights.
        aux_loss_coeff: of the load-balancing loss over all ranks' tokens; 0: none.
        apply_topk_weights_early: a route's weight is multiplied to the inner rows, before ``wo``; else to the expert's row.
        mesh_resource: None: that of the active global_shard_guard.
        ep_axis, data_parallelism_axes: mesh axes by name, beside or in place of a MeshResource.
        wi_kernel_axes, wo_kernel_axes: logical names; an ``ffn`` that Flax's rules split stays split.
        input_axes, gate_kernel_axes: hints, which nothing here needs.
        dtype: of ``x`` and of the experts' matrices in the products, and of the result.
        recv_capacity_per_rank: slots of a rank's receive buffer; None: enough for any routing.

    Returns:
        ``[batch, sequence, hidden]``; the loss times its coefficient, a float32 scalar, or None; and int32 ``[R, 1]``, the slots
        that each rank needed, padding included: more than the capacity where ``drop_on_overflow`` left routes out.

    Raises:
        RuntimeError: not bootstrapped.
        NotImplementedError: what epd does not offer, by name: quantisers, ``quant_before_fsdp_ag``, ``weight_gather``, names
            for checkpoints.
        ValueError, TypeError: shapes, sizes, dtypes and axes that do not fit, each with got and expected.
        At run time, on every rank, what ep_dispatch and ep_combine raise.
    """
    del input_axes, gate_kernel_axes
    others = {
        "quant_before_fsdp_ag": quant_before_fsdp_ag,
        "weight_gather": weight_gather,
        "wi_0_checkpoint_name": wi_0_checkpoint_name,
        "wi_1_checkpoint_name": wi_1_checkpoint_name,
        "wo_checkpoint_name": wo_checkpoint_name,
        "dispatch_checkpoint_name": dispatch_checkpoint_name,
    }
    moe_arguments.refuse_what_is_not_offered(quantizer_sets, others)
    arrays = {
        "x": x,
        "gate_kernel": gate_kernel,
        "wi": wi,
        "wo": wo,
        "wi_0_bias": wi_0_bias,
        "wi_1_bias": wi_1_bias,
        "wo_bias": wo_bias,
        "expert_bias": expert_bias,
    }
    hidden, ffn = moe_arguments.check_shapes(arrays, num_experts)
    mesh = active_mesh(x)
    resource = moe_arguments.resource_of(mesh, mesh_resource, ep_axis, data_parallelism_axes)
    router = RouterArguments(
        num_experts,
        num_experts_per_tok,
        score_function,
        use_pre_softmax,
        num_groups,
        group_topk,
        scaling_factor,
        aux_loss_coeff,
        expert_bias is not None,
    ).config()
    group = bootstrapped().config
    tokens = x.shape[0] * x.shape[1] // current_layout(x, resource=resource).num_shards
    config = MoeConfig(
        hidden,
        ffn,
        router,
        activation=activation_type,
        use_bias=wo_bias is not None,
        apply_weights="early" if apply_topk_weights_early else "late",
        alignment=ALIGNMENT,
        recv_capacity=recv_capacity_per_rank
        or get_moe_recv_capacity_per_rank(
            num_experts=num_experts,
            num_experts_per_tok=num_experts_per_tok,
            max_tokens_per_rank=max(1, tokens),
            ep_size=group.ep_size,
        ),
        axes=Axes(
            mlp=moe_arguments.inner_axis(mesh, wi_kernel_axes, wo_kernel_axes, resource, ffn)
        ),
    )
    params = _parameters(gate_kernel, wi, wo, (wi_0_bias, wi_1_bias, wo_bias), expert_bias)
    with global_shard_guard(resource):
        out, aux = layer(config, params, x.astype(dtype))
    loss = aux.loss.mean() if aux_loss_coeff else None
    return out, loss, aux.demand[:, None]
