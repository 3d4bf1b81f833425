"""The exchanges that options make, and the assumptions they rest on. No tensor, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamgen import account
from streamgen.account_cards import COMPILED, EAGER, TYPICAL, VAE_ETA, Card
from streamgen.account_shapes import FluxDiT, Reference, WanDiT
from streamgen.account_vae import decoder_cost
from streamgen.errors import ConfigError, Unsupported

# Assumptions: each is shown beside the figures it explains (account_recorded.py).
FP8_SPEED_UP: Final = (1.4, 1.7)  # of the matrix products, quantising activations included
INT4_SPEED_UP: Final = 6.0  # on a card with INT4 tensor cores, whose peak is eight times bf16's
ATTENTION_KERNEL: Final = 1.10  # FlashAttention 3 over 2, end to end
STEP_CACHE: Final = {"0.25": 19, "0.4": 16, "0.6": 14}  # full steps of 28, by threshold
STACKED_STEP_CACHE: Final = 1.7  # upon all the others
STACKED_FP8: Final = 1.35
SPARSE_SPEED_UP: Final = 3.5  # of attention, in blocks of 128
LINK: Final = 26e9  # bytes a second from host memory, PCIe 4 x16
FLUX_OVERHEAD: Final = 0.174  # e(4) = 0.66: short sequences, much of a step is not split
WAN_OVERHEAD: Final = 0.0141  # e(8) = 0.91: long ones
TEXT_TOKENS: Final = 512
# Of 4-bit weights: a 16-bit scale for each 64, and beside them a branch of this rank.
GROUP, BRANCH_RANK = 64, 32


def refuse_dead_options(is_few_step: bool, step_cache: str | None, parallel: str) -> None:
    """Raise Unsupported for what a few-step model has left nothing to save for."""
    if not is_few_step:
        return
    why = {
        "step_cache": "few-step distillation makes every step differ from the one before it: "
        "a step cache would hit none",
        "pipefusion": "PipeFusion reads activations of the step before as if they were this "
        "step's, and few steps are too unlike",
        "cfg": "guidance is distilled into the weights: there is no second pass for another card",
    }
    asked = "step_cache" if step_cache else parallel
    if asked in why:
        raise Unsupported(f"{asked} with a few-step model: {why[asked]}", param=asked)


def quantized_speed_up(quantize: str, card: Card) -> float:
    """Return what quantised weights gain in the matrix products. Raises ConfigError if nothing."""
    if quantize == "fp8":
        if card.fp8_flops is None:
            raise ConfigError(f"{card.name} has no FP8 products", param="quantize")
        return sum(FP8_SPEED_UP) / 2
    if quantize == "int4":
        # Memory is saved all the same; Hopper and later have no INT4 tensor cores.
        return INT4_SPEED_UP if card.int4_flops is not None else 1.0
    return 1.0


def weight_bytes(parameters: float, quantize: str, element_bytes: int) -> float:
    """Return the bytes of a DiT's weights; 4-bit ones without their 16-bit branch."""
    per_weight = {"fp8": 1.0, "int4": 0.5 + 2 / GROUP}
    return parameters * per_weight.get(quantize, element_bytes)


def flux_int4_bytes(dit: FluxDiT) -> float:
    """Return the bytes of FLUX in 4 bits: weights, scales, and the 16-bit branch and embedders.

    Modulation has zero points as well, and no branch.
    """
    d, m = dit.dim, dit.mlp_ratio
    blocks = 24 * dit.double_blocks + 12 * dit.single_blocks
    modulation = (12 * dit.double_blocks + 3 * dit.single_blocks) * d * d
    sides = 2 * dit.double_blocks * (4 + 2 + 2 * (1 + m)) + dit.single_blocks * (4 + m + 2 + m)
    sixteen_bit = account.parameters(dit) - blocks * d * d - modulation
    quantised = weight_bytes(blocks * d * d + modulation, "int4", 2)
    branch = 2 * (BRANCH_RANK * sides * d + sixteen_bit)
    return quantised + modulation / GROUP * 2 + branch


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What one request of a one-shot reference costs."""

    tokens: int
    step: account.PassFlops
    passes: float  # effective steps, twice with guidance
    text: account.Stage
    dit: account.Stage
    vae: account.Stage

    @property
    def seconds(self) -> float:
        """Return the seconds of all three stages."""
        return self.text.seconds + self.dit.seconds + self.vae.seconds

    @property
    def text_vae_share(self) -> float:
        """Return the part of the time that is not the DiT's."""
        return 1 - self.dit.seconds / self.seconds


def reference_tokens(reference: Reference, size: tuple[int, int], frames: int) -> int:
    """Return N: image tokens, with FLUX's text tokens."""
    plane = size[0] // 16 * (size[1] // 16)
    if isinstance(reference.dit, FluxDiT):
        return plane + reference.dit.text_len
    return plane * latent_frames(frames)


def latent_frames(frames: int) -> int:
    """Return the latent frames of a clip of pixel frames."""
    return 1 - (1 - frames) // 4


def request_cost(
    reference: Reference,
    card: Card,
    *,
    eta: float = TYPICAL,
    size: tuple[int, int] | None = None,
    frames: int | None = None,
    steps: float | None = None,
    quantize: str = "none",
    sparsity: float = 1.0,
) -> RequestCost:
    """Return the ledger of one request. `steps` are effective: those not taken from a cache."""
    size, frames = size or reference.size, frames or reference.frames
    passes = (steps or reference.steps) * (2 if reference.guided else 1)
    dit = reference.dit
    tokens = reference_tokens(reference, size, frames)
    step = account.step_flops(dit, tokens)
    speed_up = quantized_speed_up(quantize, card)
    weights = weight_bytes(account.parameters(dit), quantize, 2)
    effective = step.linear / speed_up + step.attention / sparsity + step.cross
    timed = account.roofline("DiT", passes * effective, passes * weights, card, eta)
    text = account.text_flops(reference.text, TEXT_TOKENS)
    decoder = decoder_cost(reference.vae, latent_frames(frames), size[1] // 8, size[0] // 8)
    passes_text = 2 if reference.guided else 1
    text_bytes = 2 * reference.text.layer_parameters
    return RequestCost(
        tokens,
        step,
        passes,
        account.roofline("text", passes_text * text, passes_text * text_bytes, card, TYPICAL),
        account.Stage("DiT", passes * step.total, timed.bytes, timed.seconds, timed.bound),
        account.roofline("VAE", decoder.flops, 2 * decoder.parameters, card, VAE_ETA),
    )


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of a layer's arithmetic and of bringing its weights from host memory."""

    compute_s: float
    transfer_s: float

    @property
    def slowdown(self) -> float:
        """Return how much slower all gets when only one layer is on the card at a time."""
        return max(1.0, self.transfer_s / self.compute_s)


def offload(dit: FluxDiT | WanDiT, tokens: int, passes: int, card: Card, eta: float) -> LayerTime:
    """Return what offloading layers costs; a layer's weights serve `passes` before they go."""
    layer_flops = passes * account.step_flops(dit, tokens).total / account.num_layers(dit)
    return LayerTime(
        layer_flops / (card.peak_flops * eta), 2 * account.layer_parameters(dit) / LINK
    )


@dataclass(frozen=True, slots=True)
class Serving:
    """A row of the serving table: an option upon those before it."""

    name: str
    gpu_s: float
    factor: float  # by which it is cheaper than the row before
    assumption: str


def serving_ladder(reference: Reference, card: Card, few: Reference | None) -> list[Serving]:
    """Return GPU-seconds a request as options are stacked: the DiT's alone, and all of `few`.

    `few` is the distilled sibling, None where there is none. What the model is too few-step for, or
    the card lacks, is left out.
    """
    eager = request_cost(reference, card, eta=EAGER).dit.seconds
    compiled = request_cost(reference, card, eta=COMPILED).dit.seconds / ATTENTION_KERNEL
    rows = [
        Serving("eager", eager, 1.0, f"eta {EAGER}"),
        Serving(
            "compile + FA3", compiled, eager / compiled,
            f"eta {COMPILED}, and {ATTENTION_KERNEL} for the kernel",
        ),
    ]  # fmt: skip
    if card.fp8_flops is not None:
        gpu_s = rows[-1].gpu_s / STACKED_FP8
        rows.append(Serving("+ FP8", gpu_s, STACKED_FP8, f"factor {STACKED_FP8}"))
    if not reference.is_few_step:
        gpu_s = rows[-1].gpu_s / STACKED_STEP_CACHE
        rows.append(
            Serving("+ step cache", gpu_s, STACKED_STEP_CACHE, f"factor {STACKED_STEP_CACHE}")
        )
    if few is not None:
        gpu_s = request_cost(few, card).seconds
        rows.append(Serving(few.name, gpu_s, rows[-1].gpu_s / gpu_s, f"eta {TYPICAL}, all stages"))
    return rows
