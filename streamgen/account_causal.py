"""The ledger of a causal few-step model as it is served: chunks, sessions. No tensor, no I/O.

A chunk takes `steps` denoise passes and a commit, which rides in the next chunk's first forward
when it is fused: so many rows, one forward fewer. Full windows are counted, those of a session that
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from streamgen import account
from streamgen.account import PassFlops, Stage
from streamgen.account_cards import LINK_ETA, TYPICAL, VAE_ETA, Card
from streamgen.account_options import FLUX_OVERHEAD, quantized_speed_up, weight_bytes
from streamgen.account_shapes import CausalModel
from streamgen.account_vae import DecoderCost, decoder_cost
from streamgen.cost_table import CostTable
from streamgen.planner import Planner, Refusal, SessionLoad, Space

FRAMES_PER_LATENT: Final = 4
DECODE: Final = "VAE"  # the stage that may run beside the others
MAX_SESSIONS_A_PASS: Final = 8
# Times the seconds that peaks explain from which a measured stage is bound by neither of them.
OVERHEAD: Final = 2.0
MOST_SESSIONS: Final = 64  # that a plan counts up to; a device of more is told as this many


@dataclass(frozen=True, slots=True)
class Load:
    """A model at the settings and on the device that are asked about."""

    model: CausalModel
    card: Card
    eta: float = TYPICAL
    quantize: str = "none"
    sparsity: float = 1.0
    cards: int = 1
    fused: bool = True
    bound: float = 0.85  # of the device's time that sessions may need
    graphs: bool = True  # on a card, passes are captured
    offloaded: bool = False  # blocks' weights come from main memory in each pass

    @property
    def latent_size(self) -> tuple[int, int]:
        """Return height and width of a latent frame."""
        return self.model.size[1] // 8, self.model.size[0] // 8

    @property
    def tokens_per_frame(self) -> int:
        """Return the tokens of a latent frame."""
        (height, width), (_, down, across) = self.latent_size, self.model.dit.patch_size
        return height // down * (width // across)

    @property
    def kv_frame_bytes(self) -> int:
        """Return the K/V bytes of a latent frame."""
        model = self.model
        return account.kv_frame_bytes(
            model.dit, self.tokens_per_frame, model.element_bytes, quantized=model.quantized_kv
        )

    @property
    def chunk_pixel_frames(self) -> int:
        """Return the frames of a steady chunk."""
        return FRAMES_PER_LATENT * self.model.chunk_frames

    @property
    def period_s(self) -> float:
        """Return the seconds a chunk plays."""
        return self.chunk_pixel_frames / self.model.fps

    @property
    def shares_device(self) -> bool:
        """Return whether a decode takes time from the passes."""
        measured = self.card.measured
        return measured is None or measured.decode_shares_device


def row_flops(load: Load) -> PassFlops:
    """Return the operations of one pass of one session with a full window."""
    model = load.model
    return account.pass_flops(
        model.dit, model.chunk_frames, load.tokens_per_frame, model.window_frames
    )


def decode_cost(load: Load) -> DecoderCost:
    """Return what decoding a chunk takes."""
    return decoder_cost(load.model.vae, load.model.chunk_frames, *load.latent_size)


def pass_s(load: Load, rows: int) -> float:
    """Return the seconds of a forward of so many rows, on one card or split over `cards`.

    Weights that come from main memory do so while the block before them computes.
    """
    computed = _computed_s(load, rows)
    return max(computed, transfer_s(load)) if load.offloaded else computed


def transfer_bytes(load: Load) -> int:
    """Return the bytes of all blocks, which a forward brings where they are offloaded."""
    model = load.model
    return model.dit.num_layers * account.block_parameters(model.dit) * model.element_bytes


def transfer_s(load: Load) -> float:
    """Return the seconds in which all blocks come over the card's link."""
    assert load.card.link is not None, load.card.name
    return transfer_bytes(load) / (load.card.link * LINK_ETA)


def _computed_s(load: Load, rows: int) -> float:
    if load.card.measured is not None:
        return load.card.measured.pass_s(rows * row_flops(load).total)
    stages = _pass_stages(load, rows, 1)
    if load.cards == 1:
        return sum(stage.seconds for stage in stages)
    alone = sum(stage.seconds for stage in stages)
    return alone / (load.cards * account.efficiency(load.cards, FLUX_OVERHEAD))


def decode_stage(load: Load) -> Stage:
    """Return the decode of a chunk: its state is read and written once a latent."""
    cost, size = decode_cost(load), load.model.vae_element_bytes
    moved = size * load.model.chunk_frames * (cost.parameters + 2 * cost.state)
    stage = account.roofline(DECODE, cost.flops, moved, load.card, VAE_ETA)
    if load.card.measured is None:
        return stage
    return _measured(stage, load.card.measured.decode_s(cost.flops))


def chunk_stages(load: Load) -> list[Stage]:
    """Return the ledger of a steady chunk of a session alone."""
    rows = load.model.steps + 1
    forwards = load.model.steps if load.fused else rows
    stages = _pass_stages(load, rows, forwards)
    at_hand = replace(load, offloaded=False)
    total, modelled = passes_s(at_hand), sum(stage.seconds for stage in stages)
    taken = [total * stage.seconds / modelled for stage in stages]
    if load.card.measured is None:
        stages = [replace(stage, seconds=s) for stage, s in zip(stages, taken, strict=True)]
    else:
        stages = [_measured(stage, s) for stage, s in zip(stages, taken, strict=True)]
    if load.offloaded:
        waited_s = passes_s(load) - total
        moved = forwards * transfer_bytes(load)
        stages.append(Stage("waits for layers", 0, moved, waited_s, "link"))
    return [*stages, decode_stage(load)]


def passes_s(load: Load) -> float:
    """Return the seconds of a chunk's forwards: fused, the first of them has two rows."""
    steps = load.model.steps
    if load.fused:
        return (steps - 1) * pass_s(load, 1) + pass_s(load, 2)
    return (steps + 1) * pass_s(load, 1)


def chunk_s(load: Load) -> float:
    """Return the seconds from one chunk of a session alone to the next."""
    return _every_s(load, passes_s(load), decode_stage(load).seconds)


def gains_without(load: Load) -> dict[str, float]:
    """Return how many times as fast chunks would come without each stage: what it gains at most.

    A decode that runs beside longer passes gains nothing.
    """
    stages, now_s = chunk_stages(load), chunk_s(load)
    gains = {}
    for stage in stages:
        left = {each.name: each.seconds for each in stages if each is not stage}
        decode = left.pop(DECODE, 0.0)
        gains[stage.name] = now_s / _every_s(load, sum(left.values()), decode)
    return gains


def _every_s(load: Load, passes: float, decode: float) -> float:
    return host_s(load) + (passes + decode if load.shares_device else max(passes, decode))


def latency_s(load: Load) -> float:
    """Return the seconds from the begin of a chunk to its frames, a session alone."""
    return host_s(load) + passes_s(load) + decode_stage(load).seconds


def host_s(load: Load) -> float:
    """Return the seconds of a chunk that are neither passes nor decode, where they were measured.

    Theirs are not counted on a card, whose host runs ahead of it.
    """
    return 0.0 if load.card.measured is None else load.card.measured.host_s


def text_stage(load: Load) -> Stage:
    """Return what a prompt costs, once: its encoding and its cross-attention K/V."""
    model = load.model
    flops = model.text_flops + account.text_kv_flops(model.dit)
    moved = model.text_parameters * model.text_element_bytes
    return account.roofline("text", flops, moved, load.card, load.eta)


# Sessions.


def planner_of(load: Load, costs: CostTable) -> Planner:
    """Return admission's own planner, with unlimited memory."""
    space = Space(1 << 62, 1 << 62, 1 << 62)
    return Planner(costs, 2 * MAX_SESSIONS_A_PASS, space, load.bound)


def cost_table(load: Load) -> CostTable:
    """Return what the engine would measure at warm-up."""
    rows = (1, 2, 4, 8, 16)
    refill = -(-load.model.window_frames // load.model.chunk_frames)
    return CostTable(
        {n: pass_s(load, n) for n in rows},
        decode_s=decode_stage(load).seconds,
        recache_s=pass_s(load, refill),
        decode_shares_device=load.shares_device,
    )


def session_load(load: Load) -> SessionLoad:
    """Return what admission is told of a session."""
    model = load.model
    return SessionLoad(model.steps, load.chunk_pixel_frames, model.fps, Space(0, 0, 0))


def utilisation(load: Load, sessions: int) -> float:
    """Return the share of the device that so many sessions need, as admission counts it."""
    return planner_of(load, cost_table(load)).utilisation([session_load(load)] * sessions)


def sessions_by_time(load: Load) -> int:
    """Return how many sessions admission lets in; 0 when one alone is not in time."""
    planner, one = planner_of(load, cost_table(load)), session_load(load)
    if planner.utilisation([one]) > 1:
        return 0
    inside = 1
    while inside < MOST_SESSIONS:
        if isinstance(planner.admit(one, [one] * inside, planner.capacity), Refusal):
            break
        inside += 1
    return inside


def price_an_hour(load: Load) -> float | None:
    """Return the dollars of an hour of one session's video when the device is well filled."""
    if load.card.price is None:
        return None
    sessions = max(1, sessions_by_time(load))
    return load.card.price * load.cards * utilisation(load, sessions) / sessions


def _measured(stage: Stage, seconds: float) -> Stage:
    """Return a stage with the seconds it was measured at, and what bounds it then.

    Much more than its arithmetic and its memory traffic explain is overhead: small products, and
    threads or kernels that are started.
    """
    bound = "overhead" if seconds > OVERHEAD * stage.seconds else stage.bound
    return replace(stage, seconds=seconds, bound=bound)


def _pass_stages(load: Load, rows: int, forwards: int) -> list[Stage]:
    """Return the stages of `rows` rows in `forwards` forwards: weights are read by each forward."""
    model, flops = load.model, row_flops(load)
    size = model.element_bytes
    speed_up = quantized_speed_up(load.quantize, load.card) if load.quantize != "none" else 1.0
    weights = weight_bytes(account.token_parameters(model.dit), load.quantize, size)
    # Kernels read K/V as they are computed: 8-bit ones are converted before.
    frame = account.kv_frame_bytes(model.dit, load.tokens_per_frame, size)
    kv = (model.window_frames + model.chunk_frames) * frame
    cross = account.cross_kv_bytes(model.dit, size)
    work = (
        ("linear", flops.linear, speed_up, forwards * weights),
        ("attention", flops.attention, load.sparsity, rows * kv / load.sparsity),
        ("cross-attention", flops.cross, 1.0, rows * cross),
    )
    stages = []
    for name, count, gain, moved in work:
        timed = account.roofline(name, rows * count / gain, moved, load.card, load.eta)
        stages.append(replace(timed, flops=rows * count))
    return stages
