"""The ledger of bytes of a causal model as it is served. No tensor, no I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamgen import account, account_causal
from streamgen.account_cards import GIB
from streamgen.account_causal import FRAMES_PER_LATENT, MAX_SESSIONS_A_PASS, Load
from streamgen.account_options import weight_bytes
from streamgen.account_shapes import DiTShape
from streamgen.account_vae import vae_parameters

SPARE_TEXT_SLOTS: Final = 8  # as the engine has beside those that sessions may need
RESIDENT_BLOCKS: Final = 2  # of those that are offloaded: the one at work and the next
GRAPH_ROWS: Final = (1, 2, 3, 4, 6, 8)  # of the passes that the engine captures on a card
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
    gathered_kv: int  # where a row's window is brought together, for kernels that read no pages
    graphs: int  # the pool of captured passes
    runtime: int  # context, activations; what a calibrated process holds besides

    @property
    def kept(self) -> float:
        """Return the sum of weights, pools and what sessions keep."""
        return (
            self.weights + self.text_weights + self.vae_weights + self.kv + self.cross_kv
            + self.decoder_state + self.latents
        )  # fmt: skip

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.kept + self.gathered_kv + self.graphs + self.runtime


def memory(load: Load, sessions: int) -> Memory:
    """Return the ledger of bytes with pools for so many sessions, as the engine makes them."""
    model, measured = load.model, load.card.measured
    size, held = model.element_bytes, model.window_frames
    refill = -(-held // model.chunk_frames) + 1
    slots = 2 * sessions + refill + SPARE_TEXT_SLOTS
    reserved = account.reserved_frames(held, model.chunk_frames)
    rows = max(2 * min(sessions, MAX_SESSIONS_A_PASS), refill)
    tokens = model.chunk_frames * load.tokens_per_frame
    gathered = account.gathered_bytes(
        model.dit, load.tokens_per_frame, size, quantized=model.quantized_kv
    )
    graphs = graph_bytes(model.dit, rows, tokens, size) if load.graphs else 0
    eager = pass_bytes(model.dit, eager_rows(rows, graphs=load.graphs), tokens, size)
    return Memory(
        sessions,
        weight_bytes(resident_parameters(model.dit, load.offloaded), load.quantize, size),
        model.text_parameters * model.text_element_bytes,
        vae_parameters(model.vae) * model.vae_element_bytes,
        sessions * reserved * load.kv_frame_bytes,
        slots * account.cross_kv_bytes(model.dit, size),
        sessions * account_causal.decode_cost(load).state * model.vae_element_bytes,
        sessions * account.latent_bytes(model.dit.in_dim, *load.latent_size, held, 2),
        held * gathered if measured is None else 0,
        graphs if measured is None else 0,
        CONTEXT_BYTES + max(eager, decode_bytes(load))
        if measured is None
        else measured.runtime_bytes,
    )


def resident_parameters(dit: DiTShape, offloaded: bool) -> int:
    """Return the parameters that are on the device."""
    away = max(0, dit.num_layers - RESIDENT_BLOCKS) if offloaded else 0
    return account.parameters(dit) - away * account.block_parameters(dit)


def pass_bytes(dit: DiTShape, rows: int, tokens: int, element_bytes: int) -> int:
    """Return the most that is alive within a forward of so many rows of `tokens` each.

    That is in a block's MLP, after its first product: its inside before and after the GELU, and of
    the model's width nine: the block's input, q, k, v and what attention saw, the query and the
    result of cross-attention, the stream after them, normed. Beside it are the rotary angles in
    float32 and the texts' K/V of this layer.
    """
    inside = tokens * (9 * dit.dim + 2 * dit.ffn_dim) * element_bytes
    angles = tokens * dit.dim // dit.num_heads * 4
    texts = 2 * dit.text_len * dit.dim * element_bytes
    return rows * (inside + angles + texts)


def graph_bytes(dit: DiTShape, max_rows: int, tokens: int, element_bytes: int) -> int:
    """Return the pool that the graphs share: the largest one's forward, and each one's result."""
    sizes = [rows for rows in GRAPH_ROWS if rows <= max_rows]
    values = dit.out_dim * dit.patch_size[1] * dit.patch_size[2] * element_bytes
    return pass_bytes(dit, max(sizes), tokens, element_bytes) + sum(sizes) * tokens * values


def eager_rows(max_rows: int, *, graphs: bool) -> int:
    """Return the rows of the largest forward that is not captured: at least a shorter chunk's."""
    return 1 if graphs and max_rows <= max(GRAPH_ROWS) else max_rows


def decode_bytes(load: Load) -> int:
    """Return the most that is alive within a decode, roughly.

    That is input and output of its widest convolution, for the frames of one latent.
    """
    model, (height, width) = load.model, load.latent_size
    pixels = FRAMES_PER_LATENT * 64 * height * width
    widest = 2 * getattr(model.vae, "dim", 64) * pixels * model.vae_element_bytes
    return int(2 * widest)


def sessions_by_memory(load: Load) -> int:
    """Return how many sessions' pools the device holds."""
    room = USABLE_MEMORY * load.card.memory_bytes * load.cards
    # Weights are on every card; what sessions keep is split.
    room -= (load.cards - 1) * (memory(load, 0).total)
    return most_sessions(lambda sessions: memory(load, sessions).total, room)


def most_sessions(total: Callable[[int], float], room: float) -> int:
    """Return the most sessions whose `total` of bytes, which rises, fits into so many."""
    most = 1
    while total(most) <= room:
        most *= 2
    return max(0, bisect_right(range(most), room, key=total) - 1)
