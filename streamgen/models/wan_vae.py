"""The Wan 2.1 causal video VAE: a streaming shell over diffusers' `AutoencoderKLWan`.

diffusers keeps the history of the causal convolutions in the model between calls; here each stream
owns its history, as a value that is handed in and out, so streams interleave freely. The first
latent of a stream decodes to one pixel frame, each later one to `temporal_factor`; any chunking
gives the frames of a whole decode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

_MIDDLE: Final = {"resnets.0": "middle.0", "attentions.0": "middle.1", "resnets.1": "middle.2"}
_RESIDUAL: Final = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}
_OUTER: Final = {"conv_in": "conv1", "norm_out": "head.0", "conv_out": "head.2"}


# fmt: off
WAN21_LATENT_MEAN: Final = (
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
    0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
)
WAN21_LATENT_STD: Final = (
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
)
# fmt: on


@dataclass(frozen=True, slots=True)
class WanVAEConfig:
    """Widths and latent statistics of the VAE; the defaults are Wan 2.1's.

    `temporal_downsample` has one entry a spatial down-sampling, encoder order. Latents handed out
    are normalised a channel: (mean - latent_mean) / latent_std.
    """

    dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    latent_mean: tuple[float, ...] = WAN21_LATENT_MEAN
    latent_std: tuple[float, ...] = WAN21_LATENT_STD

    def __post_init__(self) -> None:
        """Raise ValueError when the lengths do not belong together."""
        if len(self.temporal_downsample) != len(self.dim_mult) - 1:
            raise ValueError(
                f"temporal_downsample has {len(self.temporal_downsample)} entries, dim_mult"
                f" {len(self.dim_mult)}: one fewer is needed"
            )
        if {len(self.latent_mean), len(self.latent_std)} != {self.z_dim}:
            raise ValueError(
                f"latent_mean has {len(self.latent_mean)} and latent_std {len(self.latent_std)}"
                f" entries for {self.z_dim} latent channels"
            )

    @property
    def spatial_factor(self) -> int:
        """Return the pixels a latent spans in height and in width."""
        return 1 << len(self.temporal_downsample)

    @property
    def temporal_factor(self) -> int:
        """Return the pixel frames of every latent but the first."""
        return 1 << sum(self.temporal_downsample)


@dataclass(frozen=True, slots=True)
class WanVAEState:
    """What one stream carries from call to call; never changed, so holding one is a snapshot.

    `history` has a slot a causal convolution, in order of execution: its last two input frames,
    diffusers' marker of a time up-sampling that has seen one latent, or None. `pending` are pixel
    frames that wait for the rest of their group (encoder only).
    """

    history: tuple[Tensor | str | None, ...]
    pending: Tensor | None = None
    started: bool = False

    @property
    def nbytes(self) -> int:
        """Return the bytes held on the device."""
        held = [t for t in (*self.history, self.pending) if isinstance(t, Tensor)]
        return sum(t.numel() * t.element_size() for t in held)


@dataclass(slots=True)
class _History:
    """A call's working copy of the history, in the two arguments diffusers' networks take."""

    slots: list[Tensor | str | None]
    cursor: list[int] = field(default_factory=lambda: [0])


class WanVAE(nn.Module):
    """Encode and decode video, whole or as a stream.

    Latents are normalised, float32 `[batch, n, z_dim, h, w]`; pixels RGB `[batch, frames, 3, H, W]`
    in [0, 1], except where a method says raw: about [-1, 1], not clamped.
    """

    def __init__(self, config: WanVAEConfig | None = None) -> None:
        # Here, because it takes seconds, and whoever uses another VAE need not wait.
        from diffusers import AutoencoderKLWan

        super().__init__()
        self.config = config = config or WanVAEConfig()
        self.vae = AutoencoderKLWan(
            base_dim=config.dim,
            z_dim=config.z_dim,
            dim_mult=list(config.dim_mult),
            num_res_blocks=config.num_res_blocks,
            temperal_downsample=list(config.temporal_downsample),
        ).eval()
        self.vae.requires_grad_(False)  # or every stream's history would keep its graph
        self._num_slots = {
            part: sum(type(m).__name__ == "WanCausalConv3d" for m in network.modules())
            for part, network in (("encoder", self.vae.encoder), ("decoder", self.vae.decoder))
        }

    def original_keys(self) -> dict[str, str]:
        """Map this module's tensor names to those of original Wan VAE checkpoints."""
        return {name: self._original_key(name) for name in self.state_dict()}

    def decoder_state(self) -> WanVAEState:
        """Return the state of a stream that has decoded nothing yet."""
        return WanVAEState((None,) * self._num_slots["decoder"])

    def encoder_state(self) -> WanVAEState:
        """Return the state of a stream that has encoded nothing yet."""
        return WanVAEState((None,) * self._num_slots["encoder"])

    def decode(self, latents: Tensor) -> Tensor:
        """Decode a whole clip: n latents to 1 + temporal_factor * (n - 1) frames."""
        return self.decode_step(latents, self.decoder_state())[0]

    def decode_step(self, latents: Tensor, state: WanVAEState) -> tuple[Tensor, WanVAEState]:
        """Decode the next n >= 1 latents of a stream; returns frames and the new state."""
        raw, state = self.decode_raw(latents, state)
        return (raw.clamp(-1, 1) + 1) / 2, state

    def decode_raw(self, latents: Tensor, state: WanVAEState) -> tuple[Tensor, WanVAEState]:
        """Decode as `decode_step` does, but return the decoder's own raw frames."""
        history = _History(list(state.history))
        frames = []
        for i, latent in enumerate(torch.split(self.decoder_input(latents), 1, dim=2)):
            history.cursor[0] = 0
            first = i == 0 and not state.started
            decoded = self.vae.decoder(
                latent, feat_cache=history.slots, feat_idx=history.cursor, first_chunk=first
            )
            frames.append(decoded)
        raw = torch.cat(frames, dim=2).transpose(1, 2)
        return raw, WanVAEState(tuple(history.slots), started=True)

    def decoder_input(self, latents: Tensor) -> Tensor:
        """Return what the decoder network is given, `[batch, z_dim, n, h, w]`."""
        mean, std = self._statistics(latents.device)
        scaled = (latents.float() * std + mean).transpose(1, 2)
        mixed: Tensor = self.vae.post_quant_conv(scaled.to(self.vae.dtype))
        return mixed

    def encode(self, video: Tensor) -> Tensor:
        """Encode a whole clip of 1 + temporal_factor * k frames to 1 + k latents.

        Raises ValueError for another number of frames.
        """
        latents, state = self.encode_step(video, self.encoder_state())
        if state.pending is not None:
            raise ValueError(
                f"{video.shape[1]} frames are not 1 plus a multiple of"
                f" {self.config.temporal_factor}"
            )
        return latents

    def encode_step(self, frames: Tensor, state: WanVAEState) -> tuple[Tensor, WanVAEState]:
        """Encode the next one or more frames of a stream; a latent appears with its last frame.

        The first group is one frame, later ones are `temporal_factor`. Returns latents
        `[batch, n >= 0, z_dim, h, w]`, the mean without sampling, and the new state.
        """
        waiting = frames if state.pending is None else torch.cat([state.pending, frames], dim=1)
        groups, rest = self._split_groups(waiting, state.started)
        history = _History(list(state.history))
        encoded = []
        for group in groups:
            history.cursor[0] = 0
            video = (group * 2 - 1).transpose(1, 2).to(self.vae.dtype)
            encoded.append(
                self.vae.encoder(video, feat_cache=history.slots, feat_idx=history.cursor)
            )
        new_state = WanVAEState(tuple(history.slots), rest, state.started or bool(groups))
        if not encoded:
            batch, _, _, height, width = frames.shape
            factor = self.config.spatial_factor
            shape = (batch, 0, self.config.z_dim, height // factor, width // factor)
            return frames.new_empty(shape, dtype=torch.float32), new_state
        moments: Tensor = self.vae.quant_conv(torch.cat(encoded, dim=2))
        mean, std = self._statistics(frames.device)
        latents = moments[:, : self.config.z_dim].transpose(1, 2).float()
        return (latents - mean) / std, new_state

    def _statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the latents, `[z_dim, 1, 1]`.

        No buffers: casting the module to half precision would round them.
        """
        mean = torch.tensor(self.config.latent_mean, dtype=torch.float32, device=device)
        std = torch.tensor(self.config.latent_std, dtype=torch.float32, device=device)
        return mean[:, None, None], std[:, None, None]

    def _split_groups(self, frames: Tensor, started: bool) -> tuple[list[Tensor], Tensor | None]:
        size = self.config.temporal_factor
        head = 0 if started else 1
        whole = head + (frames.shape[1] - head) // size * size
        lengths = [1] * head + [size] * ((whole - head) // size)
        rest = frames[:, whole:].clone() if whole < frames.shape[1] else None
        return list(torch.split(frames[:, :whole], lengths, dim=1)), rest

    def _original_key(self, name: str) -> str:
        """Return the original Wan name of one tensor of diffusers' model.

        The original flattens each network into lists: encoder blocks keep their index, a decoder
        stage is its residual blocks followed by its up-sampling.
        """
        name = name.removeprefix("vae.")
        name = name.replace("post_quant_conv.", "conv2.").replace("quant_conv.", "conv1.")
        if not name.startswith(("encoder.", "decoder.")):
            return name
        part, _, rest = name.partition(".")
        stage_length = self.config.num_res_blocks + 2
        if match := re.match(r"mid_block\.(\w+\.\d)\.", rest):
            rest = f"{_MIDDLE[match[1]]}.{rest[match.end() :]}"
        elif match := re.match(r"down_blocks\.(\d+)\.", rest):
            rest = f"downsamples.{match[1]}.{rest[match.end() :]}"
        elif match := re.match(r"up_blocks\.(\d+)\.(resnets|upsamplers)\.(\d+)\.", rest):
            offset = int(match[3]) if match[2] == "resnets" else stage_length - 1
            rest = f"upsamples.{int(match[1]) * stage_length + offset}.{rest[match.end() :]}"
        else:
            head, _, tail = rest.partition(".")
            return f"{part}.{_OUTER[head]}.{tail}"
        block, _, leaf = rest.rpartition(".")
        block, _, layer = block.rpartition(".")
        return f"{part}.{block}.{_RESIDUAL.get(layer, layer)}.{leaf}"
