"""Muon for the matrices and AdamW for the rest, and a moving average of the weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from streamgen.pocket.train.precision import has_bf16


class Muon(torch.optim.Optimizer):
    """Step along the orthogonalised momentum of each matrix (Jordan et al., 2024).

    Weights of more than two dimensions count as matrices `[out, the rest]`. Equal shapes are
    orthogonalised together.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                nesterov = p.grad.lerp(buffer, group["momentum"])
                by_shape[tuple(p.flatten(1).shape)].append((p, nesterov.flatten(1)))
            for (rows, columns), entries in by_shape.items():
                update = orthogonalise(torch.stack([g for _, g in entries]))
                # The root mean square of AdamW's usual update (Liu et al., 2025).
                scale = group["lr"] * 0.2 * max(rows, columns) ** 0.5
                for (p, _), u in zip(entries, update, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(u.view_as(p), alpha=-scale)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return the nearest semi-orthogonal matrices `[n, rows, columns]` by Newton-Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if has_bf16(matrices.device) else matrices
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return result


class Optimizers:
    """Muon on the hidden matrices, AdamW on everything else, one schedule for both."""

    def __init__(
        self, model: nn.Module, *, muon_lr: float, adam_lr: float, adam_names: tuple[str, ...] = ()
    ) -> None:
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            is_matrix = p.ndim >= 2 and "modulation" not in name
            (matrices if is_matrix and not name.startswith(adam_names) else rest).append(p)
        self.parts = [
            Muon(matrices, lr=muon_lr),
            torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.base = [muon_lr, adam_lr]

    def step(self, scale: float) -> None:
        """Update with both learning rates times `scale`, then clear the gradients."""
        for part, lr in zip(self.parts, self.base, strict=True):
            for group in part.param_groups:
                group["lr"] = lr * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return both states, to resume from."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Resume from `state_dict`."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


class Average:
    """Exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the model."""
        for name, value in model.state_dict().items():
            self.weights[name].lerp_(value, 1 - self.decay)


def ramp(step: int, num_steps: int, warmup: int = 50, decay_share: float = 0.3) -> float:
    """Return the learning-rate factor: linear warm-up, constant, linear decay to 2 %."""
    decay_steps = max(1.0, decay_share * num_steps)
    return max(0.02, min(1.0, (step + 1) / warmup, (num_steps - step) / decay_steps))
