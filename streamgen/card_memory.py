"""What an engine will take of a card's memory, known before anything is loaded."""

from __future__ import annotations

from streamgen import account
from streamgen.account_memory import (
    CONTEXT_BYTES,
    eager_rows,
    graph_bytes,
    pass_bytes,
    resident_parameters,
)
from streamgen.account_vae import decoder_cost, vae_parameters
from streamgen.model_runner import RunnerConfig
from streamgen.models.presets import Preset


def memory_parts(
    preset: Preset, sizes: RunnerConfig, num_sessions: int, element_bytes: int, *, graphs: bool
) -> dict[str, float]:
    """Return the bytes of each part that is there for as long as the engine is."""
    dit, (_, height, width) = preset.dit, sizes.latent_shape
    tokens = dit.tokens_per_frame(height, width)
    is_quantized = sizes.quantized_kv
    frame = account.kv_frame_bytes(dit, tokens, element_bytes, quantized=is_quantized)
    gathered = account.gathered_bytes(dit, tokens, element_bytes, quantized=is_quantized)
    a_row = sizes.chunk_frames * tokens
    state = decoder_cost(preset.vae, sizes.chunk_frames, height, width).state
    return {
        "weights": resident_parameters(dit, sizes.offload_layers) * element_bytes,
        "VAE": vae_parameters(preset.vae) * element_bytes,
        "K/V": (sizes.num_frames + 1) * frame,
        "gathered K/V": sizes.visible_frames * gathered,
        "texts": sizes.text_slots * account.cross_kv_bytes(dit, element_bytes),
        "decoder states": num_sessions * state * element_bytes,
        "CUDA graphs": graph_bytes(dit, sizes.max_rows, a_row, element_bytes) if graphs else 0,
        "activations": pass_bytes(
            dit, eager_rows(sizes.max_rows, graphs=graphs), a_row, element_bytes
        ),
        "context": CONTEXT_BYTES,
    }
