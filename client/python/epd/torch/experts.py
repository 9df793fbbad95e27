"""through_experts: a layer's experts, spread over the ranks of a group."""

from collections.abc import Callable

import torch

from epd.torch.group import Group

# (rows [C, H], experts int64 [C, 1], weights [C, 1]) -> [C, H]
ExpertsForward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def through_experts(
    group: Group,
    forward: ExpertsForward,
    tokens: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
) -> torch.Tensor:
    """Sends each token to its experts, runs this rank's own on what came, and sums the results back. Collective.

    Args:
        group: whose ranks own the experts.
        forward: runs this rank's experts: the rows that came, which of its experts each is for (0 is the first of
            ``group.experts``), and its weight, by which the result is to be multiplied. Where nothing came it gets one row of
            zeros of weight 0 for expert 0, so that the graph of every rank holds its experts' parameters, with gradients of 0. Not
            called on a rank without experts.
        tokens: ``[T, H]``; T may differ between ranks, or be 0.
        topk_idx: int32 or int64 ``[T, K]`` experts of the group; -1: none.
        topk_weights: floating ``[T, K]``, which ``forward`` gets in this dtype.

    Returns:
        ``[T, H]`` of the dtype that ``forward`` gives.

    Raises:
        As ``Group.prepare``, ``dispatch`` and ``combine``.
    """
    plan = group.prepare(topk_idx)
    rows, weights = group.dispatch(plan, tokens, topk_weights)
    if group.experts:
        owners = torch.repeat_interleave(plan.token_counts.long())[
            : len(rows)
        ]  # Fewer if some were dropped.
        if not len(owners):
            owners = torch.zeros(1, dtype=torch.int64, device=rows.device)
        rows = forward(rows, owners[:, None], weights[:, None].to(topk_weights.dtype))
    return group.combine(plan, rows)
