"""The router's arguments of ``moe`` as a ``RouterConfig``."""

import enum
from dataclasses import dataclass
from typing import Any

from epd.jax.layers import RouterConfig
from epd.jax.layers.config import SCORINGS


class ScoreFunction(enum.Enum):
    """What a router makes of its logits, for who does not say it by a string."""

    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    SQRTSOFTPLUS = "sqrtsoftplus"


@dataclass(frozen=True)
class RouterArguments:
    """As ``moe`` takes them; ``biased``: there is an expert_bias."""

    num_experts: int
    num_experts_per_tok: int
    score_function: Any
    use_pre_softmax: bool
    num_groups: int | None
    group_topk: int | None
    scaling_factor: float
    aux_loss_coeff: float
    biased: bool

    def config(self) -> RouterConfig:
        """The same in the words of ``epd.jax.layers``.

        Raises:
            ValueError: what does not fit, with got and expected.
            NotImplementedError: groups of which a token takes more than two experts.
        """
        scoring = self._scoring()
        # One score that is no softmax is left as it is: over its sum it would be 1.
        normalize = (
            not self.use_pre_softmax if scoring == "softmax" else self.num_experts_per_tok > 1
        )
        return RouterConfig(
            self.num_experts,
            self.num_experts_per_tok,
            scoring=scoring,
            normalize=normalize,
            scale=self.scaling_factor,
            selection_bias=self.biased,
            balance_loss=self.aux_loss_coeff,
            **self._groups(),
        )

    def _scoring(self) -> str:
        given = getattr(self.score_function, "name", self.score_function)  # Or an enum's member.
        scoring = given.lower() if isinstance(given, str) else ""
        if scoring not in SCORINGS:
            raise ValueError(
                f"moe: score_function is {self.score_function!r}; it must be one of {SCORINGS}"
            )
        if self.biased and scoring == "softmax":
            raise ValueError(
                "moe: expert_bias is given, but score_function is 'softmax'; use 'sigmoid' or 'sqrtsoftplus', or"
                " None"
            )
        return scoring

    def _groups(self) -> dict[str, Any]:
        groups, kept = self.num_groups, self.group_topk
        if (groups is None) != (kept is None):
            raise ValueError(
                f"moe: num_groups is {groups} and group_topk {kept}; give both, or neither"
            )
        if groups is None or kept is None:
            return {}
        if kept < 1:
            raise ValueError(f"moe: group_topk is {kept}; it must be 1 or more")
        # A group's score is the sum of its best experts, as many as a token takes of each group.
        best = self.num_experts_per_tok // kept
        if best not in (1, 2):
            raise NotImplementedError(
                f"epd does not offer moe's group_topk {kept} with num_experts_per_tok {self.num_experts_per_tok}: a token"
                f" would take {best} experts of a group; 1 and 2 are offered"
            )
        score = "max" if best == 1 else "top2"
        return {"num_groups": groups, "groups_kept": kept, "group_score": score}
