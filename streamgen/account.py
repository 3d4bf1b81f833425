"""What a generation costs in FLOPs, bytes and seconds, from a model's shape. No tensor, no I/O.

    t        = t_text + g * T_eff * (2 * P_tok * N + 4 * L * N^2 * d / s) / (peak * eta * p * e(p)) + t_VAE
    cards    = load * GPU-seconds of a request
    K/V      = 2 * d * L * bytes of an element, a token

N tokens, L layers, d width, P_tok the parameters that one token passes through, g 2 with
classifier-free guidance and else 1, T_eff effective steps, s what sparsity gains in attention,
p cards, e(p) their efficiency, eta achieved / peak. A multiply-add counts as two operations; norms,
softmax and rotation are left out.
"""  # noqa: E501 - the formula is one line

from __future__ import annotations

from dataclasses import dataclass

from streamgen.account_cards import MEMORY_ETA, Card
from streamgen.account_shapes import DiTShape, FluxDiT, TextShape, WanDiT

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class PassFlops:
    """The operations of one forward by kind; `linear` has the timestep's projections, too."""

    linear: int
    attention: int
    cross: int = 0

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.linear + self.attention + self.cross

    @property
    def attention_share(self) -> float:
        """Return the self-attention's part."""
        return self.attention / self.total

    @property
    def linear_share(self) -> float:
        """Return the matrix products' part."""
        return self.linear / self.total


@dataclass(frozen=True, slots=True)
class Stage:
    """One line of the ledger: what a stage computes, moves and takes, and which of both bounds."""

    name: str
    flops: float
    bytes: float
    seconds: float
    bound: str


# Transformers.


def token_parameters(dit: DiTShape | FluxDiT) -> int:
    """Return P_tok: the parameters of matrices that one token passes through.

    In FLUX's double blocks a token passes through its own stream's weights alone; modulation is
    computed once a step, and the text's k and v of Wan's cross-attention once a prompt.
    """
    d = dit.dim
    if isinstance(dit, FluxDiT):
        block = (4 + 2 * dit.mlp_ratio) * d * d
        return (dit.double_blocks + dit.single_blocks) * block + 2 * dit.in_dim * d
    patch = dit.patch_size[1] * dit.patch_size[2]
    block = 6 * d * d + 2 * d * dit.ffn_dim
    return dit.num_layers * block + patch * d * (dit.in_dim + dit.out_dim)


def parameters(dit: DiTShape | FluxDiT) -> int:
    """Return all parameters, as a checkpoint holds them."""
    d = dit.dim
    if isinstance(dit, FluxDiT):
        return _flux_parameters(dit)
    values = dit.patch_size[1] * dit.patch_size[2]
    text = dit.text_dim * d + d + d * d + d
    time = dit.freq_dim * d + d + d * d + d + 6 * (d * d + d)
    patch = dit.in_dim * values * d + d
    head = dit.out_dim * values * (d + 1) + 2 * d
    return dit.num_layers * block_parameters(dit) + text + time + patch + head


def block_parameters(dit: DiTShape) -> int:
    """Return all parameters of one block."""
    d = dit.dim
    attention = 4 * (d * d + d) + 2 * d  # with the norms of q and k
    mlp = 2 * d * dit.ffn_dim + dit.ffn_dim + d
    return 2 * attention + 2 * d + mlp + 6 * d


def layer_parameters(dit: DiTShape | FluxDiT) -> float:
    """Return the parameters of one block, on average: what an offloaded layer must bring."""
    if isinstance(dit, FluxDiT):
        return parameters(dit) / num_layers(dit)
    d = dit.dim
    return 8 * d * d + 2 * d * dit.ffn_dim


def num_layers(dit: DiTShape | FluxDiT) -> int:
    """Return L."""
    return dit.double_blocks + dit.single_blocks if isinstance(dit, FluxDiT) else dit.num_layers


def pass_flops(
    dit: DiTShape, num_frames: int, tokens_per_frame: int, visible_frames: int
) -> PassFlops:
    """Return the operations of one causal pass over `num_frames` latent frames of a session.

    Its tokens see `visible_frames`, themselves among them, sink included.
    """
    d, tokens = dit.dim, num_frames * tokens_per_frame
    per_frame = dit.freq_dim * d + 7 * d * d
    return PassFlops(
        2 * token_parameters(dit) * tokens + 2 * per_frame * num_frames,
        4 * tokens * visible_frames * tokens_per_frame * d * dit.num_layers,
        4 * tokens * dit.text_len * d * dit.num_layers,
    )


def step_flops(dit: FluxDiT | WanDiT, tokens: int) -> PassFlops:
    """Return the operations of a one-shot forward, in which all `tokens` see one another.

    FLUX's text tokens are among them; Wan's are attended beside them.
    """
    linear = 2 * token_parameters(dit) * tokens
    attention = 4 * num_layers(dit) * tokens**2 * dit.dim
    if isinstance(dit, FluxDiT):
        return PassFlops(linear, attention)
    return PassFlops(linear, attention, 4 * dit.num_layers * tokens * dit.text_len * dit.dim)


def text_flops(text: TextShape, tokens: int) -> int:
    """Return the operations of encoding a prompt of so many tokens, padding included."""
    return 2 * text.layer_parameters * tokens + 4 * text.num_layers * tokens**2 * text.dim


def text_kv_flops(dit: DiTShape) -> int:
    """Return the operations of a prompt's cross-attention K/V."""
    d = dit.dim
    return 2 * dit.text_len * (dit.text_dim * d + d * d + 2 * d * d * dit.num_layers)


def crossover_tokens(dit: DiTShape | FluxDiT) -> float:
    """Return the N at which attention computes as much as the matrix products."""
    return token_parameters(dit) / (2 * num_layers(dit) * dit.dim)


def score_bytes(num_heads: int, tokens: int, element_bytes: int = 2) -> int:
    """Return the bytes of one layer's score matrix, were it ever made."""
    return num_heads * tokens**2 * element_bytes


# What a session keeps.


def kv_bytes_per_token(dit: DiTShape, element_bytes: int = 2) -> int:
    """Return the bytes of K and V of one token in all layers."""
    return 2 * dit.dim * dit.num_layers * element_bytes


def kv_frame_bytes(
    dit: DiTShape, tokens_per_frame: int, element_bytes: int, *, quantized: bool = False
) -> int:
    """Return the bytes of a latent frame's K/V on its page.

    In 8 bits each head has a float32 scale for K and one for V in every layer.
    """
    if not quantized:
        return tokens_per_frame * kv_bytes_per_token(dit, element_bytes)
    return tokens_per_frame * kv_bytes_per_token(dit, 1) + 8 * dit.num_heads * dit.num_layers


def gathered_bytes(
    dit: DiTShape, tokens_per_frame: int, element_bytes: int, *, quantized: bool = False
) -> int:
    """Return the bytes where a latent frame's K/V of one layer are brought together.

    K and V in 8 bits come there in turn before they are converted.
    """
    return tokens_per_frame * dit.dim * (2 * element_bytes + (1 if quantized else 0))


def cross_kv_bytes(dit: DiTShape, element_bytes: int = 2) -> int:
    """Return the bytes of a prompt's cross-attention K/V."""
    return dit.text_len * kv_bytes_per_token(dit, element_bytes)


def visible_frames(num_before: int, chunk: int, window: int | None, sink: int = 0) -> int:
    """Return the latent frames in view of a chunk that comes after `num_before` others.

    The window counts the sink and the chunk; ValueError when they do not fit in it.
    """
    if window is None:
        return num_before + chunk
    if sink + chunk > window:
        raise ValueError(f"sink {sink} + chunk {chunk} = {sink + chunk} > window {window}")
    return min(window, num_before + chunk)


def reserved_frames(window: int, chunk: int, *, fused: bool = True) -> int:
    """Return the latent frames a session reserves: a fused commit still sees what is evicted."""
    return window + (chunk if fused else 0)


def latent_bytes(channels: int, height: int, width: int, frames: int, element_bytes: int) -> int:
    """Return the bytes of latents kept to remake a window."""
    return channels * height * width * frames * element_bytes


# Seconds.


def roofline(name: str, flops: float, moved: float, card: Card, eta: float) -> Stage:
    """Return a stage's seconds: the longer of its arithmetic at `eta` and its memory traffic."""
    compute_s = flops / (card.peak_flops * eta)
    memory_s = moved / (card.bandwidth * MEMORY_ETA)
    bound = "arithmetic" if compute_s >= memory_s else "memory"
    return Stage(name, flops, moved, max(compute_s, memory_s), bound)


def intensity(flops: float, weight_bytes: float) -> float:
    """Return the operations for each byte of weights; arithmetic bounds above the card's knee."""
    return flops / weight_bytes


def amdahl(share: float, speed_up: float) -> float:
    """Return what all gains when `share` of the time gains `speed_up`, which may be inf."""
    assert 0 <= share <= 1, share
    assert speed_up > 0, speed_up
    return 1 / ((1 - share) + share / speed_up)


def needed_speed_up(share: float, gain: float) -> float:
    """Return the speed-up of a part that explains the gain of the whole: Amdahl, the other way."""
    rest = 1 / gain - (1 - share)
    assert rest > 0, f"no speed-up of a share of {share} explains {gain}"
    return share / rest


# Many cards and many requests.


def tensor_parallel_bytes(cards: int, tokens: int, dim: int, layers: int, size: int = 2) -> float:
    """Return the bytes a card sends a step when every matrix is split."""
    return 4 * (cards - 1) / cards * tokens * dim * layers * size


def ulysses_bytes(cards: int, tokens: int, dim: int, layers: int, size: int = 2) -> float:
    """Return the bytes a card sends a step when tokens are split, and heads for attention."""
    return tensor_parallel_bytes(cards, tokens, dim, layers, size) / cards


def cfg_parallel_bytes(tokens: int, channels: int, size: int = 2) -> int:
    """Return the bytes a step when each card does one of guidance's two passes: one output."""
    return tokens * channels * size


def pipefusion_bytes(tokens: int, dim: int, size: int = 2) -> int:
    """Return the bytes a step at one border between stages of layers."""
    return tokens * dim * size


def efficiency(cards: int, overhead: float) -> float:
    """Return e(p): each further card costs `overhead` of one card's time."""
    return 1 / (1 + overhead * (cards - 1))


def cards_for(load: float, gpu_s: float) -> float:
    """Return the cards that a load of so many requests a second keeps busy, not rounded."""
    return load * gpu_s


def price_of(gpu_s: float, price_an_hour: float) -> float:
    """Return the dollars of so many seconds on one card."""
    return gpu_s * price_an_hour / HOUR_S


def _flux_parameters(dit: FluxDiT) -> int:
    d, m = dit.dim, dit.mlp_ratio
    head_norms = 2 * 128  # of q and k, one head wide
    stream = 4 * d * d + 4 * d + 2 * m * d * d + m * d + d + head_norms + 6 * (d * d + d)
    single = (3 + m) * (d * d + d) + (1 + m) * d * d + d + head_norms + 3 * (d * d + d)
    vectors = 2 if dit.has_guidance else 1
    embedders = vectors * (dit.freq_dim * d + d * d + 2 * d) + dit.pooled_dim * d + d * d + 2 * d
    ends = dit.in_dim * d + d + dit.text_dim * d + d + d * dit.in_dim + dit.in_dim
    last = 2 * (d * d + d)
    return 2 * dit.double_blocks * stream + dit.single_blocks * single + embedders + ends + last
