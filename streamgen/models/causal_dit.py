"""The causal diffusion transformer of Wan 2.1, read from top to bottom.

One forward serves every use. It takes rows: a few consecutive latent frames of one session, each
frame with its own timestep, at any place of its stream. What a row may see is not the model's
business: the caller passes `attention`, a function of (layer, q, k, v), which in the server writes
K/V to pages and reads the pages of the row's window, and in training masks a dense product. In the
same way `text` gives each row's cross-attention K/V, made once a prompt by `text_kv`.

Weights carry the names of the original checkpoints. Shapes in comments: R rows, F frames a row,
P tokens a frame, T = F * P, d width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamgen.models.fused import LinearBias, LinearGELU, in_steps
from streamgen.models.norm import RMSNorm
from streamgen.models.rope import rotate, rotate_normed, rotation

SelfAttention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
TextKV = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class DiTConfig:
    """Shape of a causal DiT; `DiTConfig(dim=1536, ffn_dim=8960, ...)` is Wan 2.1's 1.3B."""

    dim: int
    ffn_dim: int
    num_layers: int
    num_heads: int
    text_dim: int = 4096
    text_len: int = 512
    in_dim: int = 16
    out_dim: int = 16
    freq_dim: int = 256
    patch_size: tuple[int, int, int] = (1, 2, 2)
    qk_norm: bool = True
    cross_attn_norm: bool = True
    eps: float = 1e-6
    gelu: Literal["tanh", "none"] = "tanh"  # the approximation in the MLP, as torch calls it

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ValueError(f"dim {self.dim} is not divisible by num_heads {self.num_heads}")
        if self.patch_size[0] != 1:
            raise ValueError(f"patch_size {self.patch_size} must not span frames")

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.dim // self.num_heads

    def tokens_per_frame(self, height: int, width: int) -> int:
        """Return the tokens of one latent frame of `height` x `width` latents."""
        return (height // self.patch_size[1]) * (width // self.patch_size[2])


class Projections(nn.Module):
    """The q, k, v and o matrices of one attention, with norms on q and k."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q, self.k, self.v, self.o = (LinearBias(config.dim, config.dim) for _ in range(4))
        self.norm_q, self.norm_k = (
            RMSNorm(config.dim, config.eps) if config.qk_norm else nn.Identity() for _ in range(2)
        )

    def query(self, x: Tensor) -> Tensor:
        """Return q `[R, T, H, d/H]`, normalised."""
        q: Tensor = self.norm_q(self.q(x)).unflatten(-1, (-1, self.head_dim))
        return q

    def rotated(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q and k, normalised and rotated, and v, each `[R, T, H, d/H]`."""
        heads = (-1, self.head_dim)
        v = self.v(x).unflatten(-1, heads)
        if isinstance(self.norm_q, RMSNorm) and isinstance(self.norm_k, RMSNorm) and in_steps(x):
            q = rotate_normed(self.q(x), self.norm_q.weight, self.norm_q.eps, turn)
            return q, rotate_normed(self.k(x), self.norm_k.weight, self.norm_k.eps, turn), v
        q, k = self.query(x), self.norm_k(self.k(x)).unflatten(-1, heads)
        return rotate(q, turn), rotate(k, turn), v

    def key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return k, normalised, and v, each `[R, T, H, d/H]`."""
        k: Tensor = self.norm_k(self.k(x))
        v: Tensor = self.v(x)
        heads = (-1, self.head_dim)
        return k.unflatten(-1, heads), v.unflatten(-1, heads)


class Block(nn.Module):
    """Self-attention, cross-attention and MLP; a timestep modulates the first and the last."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.dim, self.eps = config.dim, config.eps
        self.self_attn = Projections(config)
        self.cross_attn = Projections(config)
        self.norm3 = (
            nn.LayerNorm(config.dim, eps=config.eps) if config.cross_attn_norm else nn.Identity()
        )
        self.ffn = nn.Sequential(
            LinearGELU(config.dim, config.ffn_dim, config.gelu),
            nn.Identity(),  # where the GELU is in published checkpoints
            LinearBias(config.ffn_dim, config.dim),
        )
        self.modulation = nn.Parameter(torch.randn(1, 6, config.dim) / config.dim**0.5)

    def before_attention(
        self, x: Tensor, time: Tensor, turn: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k (both rotated) and v of the self-attention, `[R, T, H, d/H]`.

        `x` is `[R, T, d]`, `time` `[R, F, 6, d]`, `turn` `[R, T, 1, d/2H, 2]`.
        """
        shift, scale = self._modulation(time, 0, x), self._modulation(time, 1, x)
        return self.self_attn.rotated(self._normed(x, shift, scale), turn)

    def after_attention(
        self, x: Tensor, seen: Tensor, time: Tensor, text_k: Tensor, text_v: Tensor
    ) -> Tensor:
        """Return the block's output `[R, T, d]` from what its self-attention saw."""
        x = _gated(x, self.self_attn.o(seen.flatten(2)), self._modulation(time, 2, x))
        q = self.cross_attn.query(self.norm3(x))
        read = F.scaled_dot_product_attention(
            q.transpose(1, 2), text_k.transpose(1, 2), text_v.transpose(1, 2)
        )
        x = x + self.cross_attn.o(read.transpose(1, 2).flatten(2))
        shift, scale = self._modulation(time, 3, x), self._modulation(time, 4, x)
        return _gated(x, self.ffn(self._normed(x, shift, scale)), self._modulation(time, 5, x))

    def _modulation(self, time: Tensor, index: int, x: Tensor) -> Tensor:
        # Added in float32: the table and the timestep's row may cancel.
        row = self.modulation.float()[:, index] + time[:, :, index].float()  # [R, F, d]
        return row.to(x.dtype)

    def _normed(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return _modulated(F.layer_norm(x, (self.dim,), eps=self.eps), shift, scale)


class Head(nn.Module):
    """Modulated norm and projection to the patch's latents."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.dim, self.eps = config.dim, config.eps
        values = config.out_dim * config.patch_size[1] * config.patch_size[2]
        self.head = nn.Linear(config.dim, values)
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / config.dim**0.5)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return `[R, T, values]`; `time` is the unprojected embedding `[R, F, d]`."""
        table = self.modulation.float()[:, None] + time.float()[:, :, None]  # [R, F, 2, d]
        shift, scale = table.to(x.dtype).unbind(2)
        out: Tensor = self.head(
            _modulated(F.layer_norm(x, (self.dim,), eps=self.eps), shift, scale)
        )
        return out


class CausalDiT(nn.Module):
    """Predict the flow (noise - x0) of rows of latent frames.

    `deterministic` computes each row's matrix products on their own, so that a row's result is the
    same bits in any company; it costs what batching gains.
    """

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.deterministic = False
        self.patch_embedding = nn.Conv3d(
            config.in_dim, config.dim, config.patch_size, stride=config.patch_size
        )
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, config.dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.dim, config.dim),
        )
        self.time_embedding = nn.Sequential(
            nn.Linear(config.freq_dim, config.dim), nn.SiLU(), nn.Linear(config.dim, config.dim)
        )
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(config.dim, config.dim * 6))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.head = Head(config)

    @property
    def layers(self) -> Iterable[Block]:
        """Return the blocks in order; each may be there only until the next is asked for."""
        return cast("Iterable[Block]", self.blocks)

    def text_kv(self, prompt_embeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return every layer's cross-attention k and v of prompts.

        `prompt_embeds` is `[n, text_len, text_dim]`, zero rows after the text; they are attended
        too, as in training. Results are `[layers, n, text_len, H, d/H]`.
        """
        context = self.text_embedding(prompt_embeds.to(self.patch_embedding.weight.dtype))
        pairs = [block.cross_attn.key_value(context) for block in self.layers]
        return torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs])

    def embed_time(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding `[R, F, d]` of timesteps `[R, F]` and its projection `[R, F, 6, d]`.

        Sinusoids are computed in float64 on the raw timestep, cosines first.
        """
        half = self.config.freq_dim // 2
        exponent = torch.arange(half, dtype=torch.float64, device=t.device) / half
        angles = t.double()[..., None] * 10_000.0**-exponent
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1).to(
            self.patch_embedding.weight.dtype
        )
        embedding: Tensor = self.time_embedding(waves)
        projected: Tensor = self.time_projection(embedding)
        return embedding, projected.unflatten(-1, (6, -1))

    def forward(
        self,
        latents: Tensor,
        t: Tensor,
        frame_index: Tensor,
        text: TextKV,
        attention: SelfAttention,
    ) -> Tensor:
        """Return the flow of rows of latents, `[R, F, C, h, w]` as given.

        `t` is `[R, F]` in 0..1000, `frame_index` `[R]` the absolute number of each row's first
        frame, `text(layer)` each row's (k, v) `[R, text_len, H, d/H]`.
        """
        rows, frames, _, height, width = latents.shape
        _, ph, pw = self.config.patch_size
        grid = (height // ph, width // pw)
        numbers = frame_index[:, None] + torch.arange(frames, device=frame_index.device)
        turn = rotation(numbers, *grid, self.config.head_dim)
        x = self._by_row(self._embed_patches, latents)[0]
        embedding, time = self._by_row(self.embed_time, t)
        for layer, block in enumerate(self.layers):
            q, k, v = self._by_row(block.before_attention, x, time, turn)
            seen = attention(layer, q, k, v)
            x = self._by_row(block.after_attention, x, seen, time, *text(layer))[0]
        x = self._by_row(self.head, x, embedding)[0]
        patches = x.view(rows, frames, *grid, ph, pw, self.config.out_dim)
        return patches.permute(0, 1, 6, 2, 4, 3, 5).reshape(rows, frames, -1, height, width)

    def _embed_patches(self, latents: Tensor) -> Tensor:
        # A patch convolution is a product with its weight: no copy to channels-first video.
        weight, bias = self.patch_embedding.weight, self.patch_embedding.bias
        _, ph, pw = self.config.patch_size
        rows, frames, channels, height, width = latents.shape
        patches = latents.view(rows, frames, channels, height // ph, ph, width // pw, pw)
        patches = patches.permute(0, 1, 3, 5, 2, 4, 6).reshape(rows, -1, channels * ph * pw)
        return F.linear(patches.to(weight.dtype), weight.flatten(1), bias)

    def _by_row(
        self, function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        if not self.deterministic or len(inputs[0]) == 1:
            out = function(*inputs)
            return out if isinstance(out, tuple) else (out,)
        results = [function(*(x[i : i + 1] for x in inputs)) for i in range(len(inputs[0]))]
        outs = [r if isinstance(r, tuple) else (r,) for r in results]
        return tuple(torch.cat(parts) for parts in zip(*outs, strict=True))


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scale and shift tokens `[R, T, d]` by values `[R, F, d]` of their frame."""
    per_frame = x.unflatten(1, (shift.shape[1], -1))
    return torch.addcmul(shift[:, :, None], per_frame, 1 + scale[:, :, None]).flatten(1, 2)


def _gated(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """Add to `[R, T, d]` an update times the gate `[R, F, d]` of its frame."""
    frames = (gate.shape[1], -1)
    added = torch.addcmul(x.unflatten(1, frames), update.unflatten(1, frames), gate[:, :, None])
    return added.flatten(1, 2)
