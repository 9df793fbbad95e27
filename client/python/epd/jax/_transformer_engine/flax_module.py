"""``transformer_engine.jax.flax``: a Flax module that hands out sets of quantisers, and the layer as one. Needs Flax."""

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen

from epd.jax._transformer_engine.moe import moe
from epd.jax._transformer_engine.quantize import QuantizerSet, noop_quantizer_set, refused


class TransformerEngineBase(linen.Module):
    """A linen module without state of its own."""

    def generate_quantizer_set(
        self,
        postfix: str = "",
        variable_collection: str | None = None,
        quantization_checkpoint_name: str | None = None,
        fp8_recipe: Any = None,
        n_groups: int | None = None,
    ) -> QuantizerSet:
        """The set that does nothing.

        Raises:
            NotImplementedError: an ``fp8_recipe``.
        """
        del postfix, variable_collection, quantization_checkpoint_name, n_groups
        if fp8_recipe is not None:
            raise refused(f"generate_quantizer_set(fp8_recipe={type(fp8_recipe).__name__})")
        return noop_quantizer_set


_Names = tuple[str | None, ...]
_MATRICES = linen.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


class _MoEBlock(TransformerEngineBase):
    """``moe`` with parameters of its own: ``gate_kernel``, ``wi``, ``wo``, and the biases that are asked for, each boxed with the
    logical names of its dimensions. The arguments are moe's; experts lie on the MeshResource's ``ep_resource``.

    Args:
        intermediate_size: the inner dimension of an expert.
        use_ffn_bias: whether ``wi_0_bias``, ``wi_1_bias`` and ``wo_bias`` are added.
        use_expert_routing_bias: whether a float32 ``expert_bias`` moves the choice of experts.
        quantization_recipe: None; another one is a NotImplementedError.
    """

    num_experts: int = 8
    num_experts_per_tok: int = 2
    intermediate_size: int = 2048
    activation_type: str = "silu"
    score_function: Any = "softmax"
    use_pre_softmax: bool = False
    num_groups: int | None = None
    group_topk: int | None = None
    scaling_factor: float = 1.0
    use_expert_routing_bias: bool = False
    aux_loss_coeff: float = 0.0
    gate_kernel_axes: _Names = ()
    wi_kernel_axes: _Names = ("exp", "embed", "mlp")
    wo_kernel_axes: _Names = ("exp", "mlp", "embed")
    input_axes: _Names = ()
    data_parallelism_axes: tuple[str, ...] = ()
    apply_topk_weights_early: bool = False
    recv_capacity_per_rank: int | None = None
    dtype: Any = jnp.float32
    kernel_init: Any = None
    bias_init: Any = linen.initializers.zeros
    expert_bias_init: Any = linen.initializers.zeros
    use_ffn_bias: bool = False
    quantization_recipe: Any = None

    @linen.compact
    def __call__(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array | None, jax.Array]:
        """``[batch, sequence, hidden]`` -> what ``moe`` returns."""
        if inputs.ndim != 3:
            raise ValueError(
                f"_MoEBlock: inputs has shape {list(inputs.shape)}, expected [batch, sequence, hidden]"
            )
        self.generate_quantizer_set(fp8_recipe=self.quantization_recipe)
        hidden, experts, inner = inputs.shape[-1], self.num_experts, self.intermediate_size
        matrix = self.kernel_init or _MATRICES
        kernels = (
            self._made("gate_kernel", matrix, self.gate_kernel_axes, (hidden, experts)),
            self._made("wi", matrix, self.wi_kernel_axes, (experts, hidden, 2 * inner)),
            self._made("wo", matrix, self.wo_kernel_axes, (experts, inner, hidden)),
        )
        biases: list[jax.Array | None] = [None] * 4
        if self.use_ffn_bias:
            for index, (name, role, size) in enumerate(
                (
                    ("wi_0_bias", "mlp", inner),
                    ("wi_1_bias", "mlp", inner),
                    ("wo_bias", "embed", hidden),
                )
            ):
                biases[index] = self._made(name, self.bias_init, ("exp", role), (experts, size))
        if self.use_expert_routing_bias:
            made = (self.expert_bias_init, ("exp",), (experts,), jnp.float32)
            biases[3] = self._made("expert_bias", *made)
        return moe(
            inputs,
            *kernels,
            *biases,
            num_experts=experts,
            num_experts_per_tok=self.num_experts_per_tok,
            activation_type=self.activation_type,
            score_function=self.score_function,
            use_pre_softmax=self.use_pre_softmax,
            num_groups=self.num_groups,
            group_topk=self.group_topk,
            scaling_factor=self.scaling_factor,
            aux_loss_coeff=self.aux_loss_coeff,
            apply_topk_weights_early=self.apply_topk_weights_early,
            data_parallelism_axes=self.data_parallelism_axes,
            input_axes=self.input_axes,
            gate_kernel_axes=self.gate_kernel_axes,
            wi_kernel_axes=self.wi_kernel_axes,
            wo_kernel_axes=self.wo_kernel_axes,
            dtype=self.dtype,
            recv_capacity_per_rank=self.recv_capacity_per_rank,
        )

    def _made(
        self, name: str, initializer: Any, axes: _Names, shape: tuple[int, ...], dtype: Any = None
    ) -> jax.Array:
        boxed = linen.with_logical_partitioning(initializer, axes)
        return cast(jax.Array, self.param(name, boxed, shape, dtype or self.dtype))
