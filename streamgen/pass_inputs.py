"""What a pass reads, in buffers that never move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvcache import AttentionBackend, AttentionPlan, RowPages, TextKVPool, TextRows, fill_from_host
from streamgen.step_batch import Row

if TYPE_CHECKING:
    from streamgen.model_runner import RunnerConfig


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host's tensor on a device, without waiting for what the device is doing."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class PassInputs:
    """The arguments of a forward: R rows of F frames."""

    latents: Tensor  # [R, F, C, h, w]
    timesteps: Tensor  # [R, F]
    frame_index: Tensor  # [R]
    text: TextRows
    attention: AttentionPlan


class InputBuffers:
    """The buffers of all passes. A pass of R rows has the first R of each.

    Filling them waits for no device. Where the attention's inputs are static too, so that all of
    a pass's are, its forward may be captured once and replayed for whatever they hold next.
    """

    def __init__(self, config: RunnerConfig, text: TextKVPool, tokens_per_frame: int) -> None:
        rows, frames, device = config.max_rows, config.chunk_frames, config.device
        self.text = text
        self.tokens_per_frame = tokens_per_frame
        self._latents = torch.zeros(rows, frames, *config.latent_shape, device=device)
        self._timesteps = torch.zeros(rows, frames, device=device)
        self._frame_index = torch.zeros(rows, dtype=torch.int64, device=device)
        self._text_slots = torch.zeros(rows, dtype=torch.int64, device=device)

    def fill(
        self,
        rows: Sequence[Row],
        num_rows: int,
        num_frames: int,
        attention: AttentionBackend,
        *,
        is_static: bool,
    ) -> PassInputs:
        """Take in rows, padded to `num_rows` of `num_frames`.

        What is padded has latents of zeros, and no pages.
        """
        num_padded = num_rows - len(rows)
        latents = self._latents[:num_rows, :num_frames]
        for i, row in enumerate(rows):
            latents[i, : row.staging.num_frames].copy_(row.latents)
            latents[i, row.staging.num_frames :].zero_()
        latents[len(rows) :].zero_()
        times = [row.timestep for row in rows] + [0.0] * num_padded
        fill_from_host(self._timesteps[:num_rows], [[t] * self._timesteps.shape[1] for t in times])
        first = [row.staging.frame_index for row in rows] + [0] * num_padded
        fill_from_host(self._frame_index[:num_rows], first)
        pages = [row.pages for row in rows] + [RowPages((), ())] * num_padded
        return PassInputs(
            latents,
            self._timesteps[:num_rows, :num_frames],
            self._frame_index[:num_rows],
            self._text([row.text_slot for row in rows] + [0] * num_padded, is_static),
            attention.plan(pages, num_frames * self.tokens_per_frame),
        )

    def _text(self, slots: Sequence[int], is_static: bool) -> TextRows:
        if not is_static:
            return self.text.rows(slots)
        index = self._text_slots[: len(slots)]
        fill_from_host(index, slots)
        return self.text.gathered(index)
