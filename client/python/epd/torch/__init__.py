"""Expert parallelism for PyTorch through epd: dispatch and combine tokens between processes, on CPU tensors.

::

    from epd.torch import Group

    with Group.join("moe", ranks=4, rank=rank, num_experts=8, max_tokens_per_rank=512,
                    recv_capacity_per_rank=4096, hidden_dim=2048, max_token_dtype=torch.float32) as group:
        plan = group.prepare(topk_idx)                                      # [T, K]
        recv, recv_weights = group.dispatch(plan, tokens, topk_weights)     # [C, H], [C]
        rows = [expert(zone) for expert, zone in zip(experts, plan.zones(recv))]
        out = group.combine(plan, torch.cat(rows) * recv_weights[:, None])  # [T, H]

Gradients are exchanged by autograd. A failed operation raises ``EpError`` on every rank. What can be set from outside is in
the table of ``epd.jax.environment``, but for what that says of JAX and of GPUs.
"""

from epd import _extras

_extras.require("torch", "torch")

from epd._errors import EpError
from epd.torch.experts import through_experts
from epd.torch.group import Group
from epd.torch.plan import Plan

__all__ = ["EpError", "Group", "Plan", "through_experts"]
