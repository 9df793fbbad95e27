"""Plan: where each token of a step goes."""

from dataclasses import dataclass, field

import torch

from epd.torch._exchange import Exchange, ExchangeFunction, Routing, root


@dataclass(eq=False)
class Plan:
    """What ``Group.prepare`` agreed on with the other ranks, for any number of dispatches and combines.

    Attributes:
        token_counts: int32 ``[experts of this rank]`` rows that each of this rank's experts receives, in ascending order of the
            experts, padding included, before any drop.
        leading: the shape of the tokens without their last dimension; T is its product.
        routing: what the library knows of it.
        name: by which ranks find the operations, or None.
        group: the name of the group.
    """

    token_counts: torch.Tensor
    _total: int | torch.Tensor = field(repr=False)  # A tensor where prepare was compiled.
    leading: tuple[int, ...]
    routing: Routing = field(repr=False)
    name: str | None
    group: str
    # What the last operation gave, see ExchangeFunction.
    after: torch.Tensor = field(default_factory=lambda: root(False), repr=False)

    @property
    def total_recv(self) -> int:
        """The sum of the counts, the slots that a receive buffer needs. Reading it in what is compiled breaks the graph."""
        return int(self._total)

    def zones(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``[C, ...]`` of a receive buffer -> views of each of this rank's experts' rows; what lies behind them is left out.

        ValueError: the buffer has fewer slots, because routes beyond it were dropped.
        """
        if rows.shape[0] < self.total_recv:
            raise ValueError(
                f"Plan.zones: rows has {rows.shape[0]} slots, fewer than total_recv, {self.total_recv}"
            )
        return torch.split(rows[: self.total_recv], self.token_counts.tolist())

    def exchange(
        self,
        exchange: Exchange,
        rows: torch.Tensor,
        weights: torch.Tensor | None,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Makes an operation of this plan, after the one before it. For Group. ``out``: without gradients only."""
        if out is not None:
            return exchange.run(rows, weights, out)
        after = self.after
        if torch.is_grad_enabled() and not after.requires_grad:
            after = root(True)
        out, out_weights, self.after = ExchangeFunction.apply(exchange, after, rows, weights)
        return out, out_weights
