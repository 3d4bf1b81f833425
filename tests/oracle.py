"""The dense reference: a causal DiT without cache, pages or rows, and the streams it makes.

Every pass of a chunk runs over the whole stream so far, all earlier frames clean and at timestep 0,
with a mask that says which frames each frame saw when it was made. Written from the description of
the published model, in float64, and from nothing of the product but the names of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class DenseDiT:
    """Compute a causal DiT's flow from its weights, under the original Wan names."""

    weights: Mapping[str, Tensor]
    num_heads: int
    freq_dim: int = 256
    patch: int = 2
    eps: float = 1e-6

    def flow(
        self,
        latents: Tensor,
        t: Tensor,
        prompt: Tensor,
        visible: Tensor,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the flow of `latents` [frames, C, h, w] at timesteps `t` [frames].

        Frame i attends to the frames j with `visible[i, j]`; `prompt` is [text_len, text_dim], or
        one a frame. To frame i, frame j lies at `positions[i, j]`, by default its number.
        """
        frames, channels, height, width = latents.shape
        p, grid = self.patch, (height // self.patch, width // self.patch)
        patches = latents.double().reshape(frames, channels, grid[0], p, grid[1], p)
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels * p * p)
        x = patches @ self._weight("patch_embedding").flatten(1).T + self._bias("patch_embedding")
        tokens = grid[0] * grid[1]
        if positions is None:
            positions = torch.arange(frames).expand(frames, -1)
        angles = self._angles(positions, grid)
        mask = visible.repeat_interleave(tokens, 1)
        time, table = self._time(t)
        text = self._mlp("text_embedding", prompt.double()).expand(frames, -1, -1)
        num_layers = 1 + max(int(k.split(".")[1]) for k in self.weights if k.startswith("blocks."))
        for layer in range(num_layers):
            x = self._block(f"blocks.{layer}", x, table, text, angles, mask, tokens)
        shift, scale = (self._get("head.modulation")[0] + time[:, None]).unbind(1)
        x = self._linear("head.head", self._modulated(x, shift, scale, tokens))
        x = x.reshape(frames, *grid, p, p, -1).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(frames, -1, height, width)

    def _block(
        self,
        name: str,
        x: Tensor,
        table: Tensor,
        text: Tensor,
        angles: Tensor,
        mask: Tensor,
        tokens: int,
    ) -> Tensor:
        rows = (self._get(f"{name}.modulation")[0] + table).unbind(1)
        h = self._modulated(x, rows[0], rows[1], tokens)
        attended = self._attend(f"{name}.self_attn", h, h, mask, angles)
        x = x + attended * rows[2].repeat_interleave(tokens, 0)
        h = x
        if f"{name}.norm3.weight" in self.weights:
            norm = (self._weight(f"{name}.norm3"), self._bias(f"{name}.norm3"))
            h = F.layer_norm(x, x.shape[-1:], *norm, eps=self.eps)
        x = x + self._attend(f"{name}.cross_attn", h, text, None, None)
        h = self._mlp(f"{name}.ffn", self._modulated(x, rows[3], rows[4], tokens))
        return x + h * rows[5].repeat_interleave(tokens, 0)

    def _attend(
        self, name: str, x: Tensor, context: Tensor, mask: Tensor | None, angles: Tensor | None
    ) -> Tensor:
        q = self._heads(self._rms(f"{name}.norm_q", self._linear(f"{name}.q", x)))
        k = self._heads(self._rms(f"{name}.norm_k", self._linear(f"{name}.k", context)))
        v = self._heads(self._linear(f"{name}.v", context))
        if angles is None:
            q = q.unflatten(1, (len(context), -1)).transpose(0, 1)
        else:  # [frames, keys, lanes]: to each frame, the keys lie elsewhere
            frames = torch.arange(len(angles))
            own = angles.unflatten(1, (len(angles), -1))[frames, frames]
            q = _turned(q.unflatten(1, (len(angles), -1)).transpose(0, 1), own[:, None])
            k = _turned(k[None], angles[:, None])
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [frames, heads, tokens, keys]
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        seen = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2).flatten(0, 1)
        return self._linear(f"{name}.o", seen)

    def _angles(self, positions: Tensor, grid: tuple[int, int]) -> Tensor:
        lanes = self.weights["patch_embedding.bias"].numel() // self.num_heads // 2
        third = lanes // 3
        rows = torch.arange(grid[0])[:, None].expand(grid)
        columns = torch.arange(grid[1]).expand(grid)
        shape = (*positions.shape, *grid)
        axes = (positions[..., None, None].expand(shape), rows.expand(shape), columns.expand(shape))
        angles = [
            axis[..., None].double() / 10_000 ** (torch.arange(n).double() / n)
            for axis, n in zip(axes, (lanes - 2 * third, third, third), strict=True)
        ]
        return torch.cat(angles, dim=-1).flatten(1, 3)  # [frames, keys, lanes]

    def _time(self, t: Tensor) -> tuple[Tensor, Tensor]:
        half = self.freq_dim // 2
        angles = t.double()[:, None] / 10_000 ** (torch.arange(half).double() / half)
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        time = self._linear("time_embedding.2", F.silu(self._linear("time_embedding.0", waves)))
        return time, self._linear("time_projection.1", F.silu(time)).unflatten(1, (6, -1))

    def _modulated(self, x: Tensor, shift: Tensor, scale: Tensor, tokens: int) -> Tensor:
        h = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        return h * (1 + scale).repeat_interleave(tokens, 0) + shift.repeat_interleave(tokens, 0)

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        return self._linear(f"{name}.2", F.gelu(self._linear(f"{name}.0", x), approximate="tanh"))

    def _rms(self, name: str, x: Tensor) -> Tensor:
        if f"{name}.weight" not in self.weights:
            return x
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self._weight(name)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)  # [.., heads, n, head_dim]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self._weight(name).T + self._bias(name)

    def _weight(self, name: str) -> Tensor:
        return self._get(f"{name}.weight")

    def _bias(self, name: str) -> Tensor:
        return self._get(f"{name}.bias")

    def _get(self, name: str) -> Tensor:
        return self.weights[name].double()


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn
    return torch.view_as_real(pairs).flatten(-2)


@dataclass(frozen=True)
class DenseStream:
    """Generate a stream with a dense model: noise [frames, C, h, w], renoise [chunk, pass, ...]."""

    model: DenseDiT
    prompt: Tensor
    noise: Tensor
    renoise: Tensor
    chunk_frames: int
    timesteps: Sequence[float]
    sigmas: Sequence[float]
    window_frames: int | None = None
    sink_frames: int = 0

    def run(self) -> tuple[Tensor, Tensor]:
        """Return the latents and the flows [chunk, pass, frame, C, h, w], commit pass last."""
        clean = self.noise[:0]
        flows = []
        for chunk in range(len(self.noise) // self.chunk_frames):
            x = self.noise[chunk * self.chunk_frames :][: self.chunk_frames]
            for k, (t, sigma) in enumerate(zip(self.timesteps, self.sigmas, strict=True)):
                flows.append(self.chunk_flow(clean, x, t))
                x = (x.double() - sigma * flows[-1]).float()
                if k + 1 < len(self.sigmas):
                    following = self.sigmas[k + 1]
                    x = (1 - following) * x + following * self.renoise[chunk, k]
            flows.append(self.chunk_flow(clean, x, 0.0))
            clean = torch.cat([clean, x])
        per_chunk = len(self.timesteps) + 1
        return clean, torch.stack(flows).unflatten(0, (-1, per_chunk))

    def chunk_flow(self, clean: Tensor, x: Tensor, t: float) -> Tensor:
        """Return the flow of chunk `x` at timestep `t` after the `clean` frames."""
        total = len(clean) + len(x)
        times = torch.tensor([0.0] * len(clean) + [t] * len(x), dtype=torch.float64)
        latents = torch.cat([clean, x])
        return self.model.flow(latents, times, self.prompt, self.visible(total))[len(clean) :]

    def visible(self, num_frames: int) -> Tensor:
        """Return which frames each frame sees [frames, frames]: itself a window after its chunk."""
        ends = (torch.arange(num_frames) // self.chunk_frames + 1) * self.chunk_frames
        seen, end = torch.arange(num_frames)[None], ends[:, None]
        if self.window_frames is None:
            return seen < end
        recent = seen >= end - (self.window_frames - self.sink_frames)
        return (seen < end) & (recent | (seen < self.sink_frames))


def random_weights(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Tensor]:
    """Draw weights of a scale at which every part of the network shows in the output."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: Sequence[int]) -> Tensor:
        values = torch.randn(tuple(shape), generator=generator)
        if name.endswith("bias"):
            return 0.1 * values
        if "norm" in name:
            return 1 + 0.1 * values
        if name.endswith("modulation"):
            return 0.3 * values
        return values / torch.tensor(shape[1:]).prod().sqrt()

    return {name: draw(name, shape) for name, shape in shapes.items()}
