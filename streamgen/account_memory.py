"""The ledger of bytes of a causal model as it is served. No tensor, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamgen import account, account_causal
from streamgen.account_cards import GIB
from streamgen.account_causal import FRAMES_PER_LATENT, Load
from streamgen.account_options import weight_bytes
from streamgen.account_vae import vae_parameters

SPARE_TEXT_SLOTS: Final = 8  # as the engine has beside those that sessions may need
CONTEXT_BYTES: Final = GIB  # of a CUDA context with its libraries
USABLE_MEMORY: Final = 0.92  # the rest is lost to the allocator's pieces


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device of a deployment with room for `sessions`."""

    sessions: int
    weights: float  # of the DiT
    text_weights: float
    vae_weights: float
    kv: int
    cross_kv: int
    decoder_state: int
    latents: int
    runtime: int  # context, activations; what a calibrated process holds besides

    @property
    def total(self) -> float:
        """Return the sum."""
        return (
            self.weights + self.text_weights + self.vae_weights + self.kv + self.cross_kv
            + self.decoder_state + self.latents + self.runtime
        )  # fmt: skip


def memory(load: Load, sessions: int) -> Memory:
    """Return the ledger of bytes with pools for so many sessions, as the engine makes them."""
    model = load.model
    size, held = model.element_bytes, model.window_frames
    refill = -(-held // model.chunk_frames) + 1
    slots = 2 * sessions + refill + SPARE_TEXT_SLOTS
    reserved = account.reserved_frames(held, model.chunk_frames)
    measured = load.card.measured
    return Memory(
        sessions,
        weight_bytes(account.parameters(model.dit), load.quantize, size),
        model.text_parameters * model.text_element_bytes,
        vae_parameters(model.vae) * model.vae_element_bytes,
        sessions * reserved * load.kv_frame_bytes,
        slots * account.cross_kv_bytes(model.dit, size),
        sessions * account_causal.decode_cost(load).state * model.vae_element_bytes,
        sessions * account.latent_bytes(model.dit.in_dim, *load.latent_size, held, 2),
        CONTEXT_BYTES + activation_bytes(load) if measured is None else measured.runtime_bytes,
    )


def activation_bytes(load: Load) -> int:
    """Return the most that is alive within a pass of two rows or a decode, roughly.

    A pass: the residual stream, a norm's output, q, k, v and the MLP's inside. A decode: input and
    output of its widest convolution, for the frames of one latent.
    """
    model, (height, width) = load.model, load.latent_size
    tokens = 2 * model.chunk_frames * load.tokens_per_frame
    inside = tokens * (5 * model.dit.dim + 2 * model.dit.ffn_dim) * model.element_bytes
    pixels = FRAMES_PER_LATENT * 64 * height * width
    widest = 2 * getattr(model.vae, "dim", 64) * pixels * model.vae_element_bytes
    return int(max(inside, 2 * widest))


def sessions_by_memory(load: Load) -> int:
    """Return how many sessions' pools the device holds."""
    room = USABLE_MEMORY * load.card.memory_bytes * load.cards
    one, two = memory(load, 1).total, memory(load, 2).total
    # Weights are on every card; what sessions keep is split.
    room -= (load.cards - 1) * (memory(load, 0).total)
    return max(0, int((room - one) // (two - one)) + 1)
