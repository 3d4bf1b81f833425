"""The cache changes nothing: paged streams equal the dense, cache-free reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvcache import WindowConfig
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.parity.replay import Recording, StreamInputs, StreamReplay
from streamgen.sampler import FlowSchedule, Sampler
from tests.oracle import DenseDiT, DenseStream, random_weights

TOLERANCE = 5e-5


@dataclass(frozen=True)
class Case:
    """A model and a stream, all sizes free."""

    heads: int = 2
    head_dim: int = 12
    layers: int = 2
    chunk: int = 3
    chunks: int = 5
    window: int | None = None
    sink: int = 0
    steps: tuple[int, ...] = (1000, 500)
    shift: float = 5.0
    size: tuple[int, int] = (4, 6)
    qk_norm: bool = True
    cross_attn_norm: bool = True

    def config(self) -> DiTConfig:
        dim = self.heads * self.head_dim
        return DiTConfig(
            dim=dim,
            ffn_dim=2 * dim + 4,
            num_layers=self.layers,
            num_heads=self.heads,
            text_dim=10,
            text_len=5,
            in_dim=4,
            out_dim=4,
            freq_dim=32,
            qk_norm=self.qk_norm,
            cross_attn_norm=self.cross_attn_norm,
        )

    def inputs(self) -> StreamInputs:
        generator = torch.Generator().manual_seed(self.chunk)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        frame = (4, *self.size)
        return StreamInputs(
            noise=draw(self.chunks * self.chunk, *frame),
            renoise=draw(self.chunks, len(self.steps) - 1, self.chunk, *frame),
            prompt_embeds=draw(5, 10),
            chunk_frames=self.chunk,
        )


CASES = {
    "unlimited": Case(),
    "one head, three layers": Case(heads=1, head_dim=20, layers=3),
    "three heads, chunk of 2": Case(heads=3, head_dim=8, chunk=2, chunks=6),
    "frame by frame": Case(chunk=1, chunks=7, window=4, sink=1),
    "window": Case(window=6),
    "window and sink": Case(window=9, sink=3, chunks=6),
    "sink and chunk fill the window": Case(window=6, sink=3),
    "window no multiple of the chunk": Case(window=7, chunks=6),
    "window and sink no multiples": Case(window=8, sink=2, chunks=6),
    "chunk of 2, window of 5, sink of 1": Case(chunk=2, window=5, sink=1, chunks=7),
    "sink longer than a chunk": Case(chunk=2, window=7, sink=3, chunks=7),
    "window longer than the stream": Case(window=40, sink=3),
    "one step": Case(steps=(1000,), window=5),
    "four steps, shift 8": Case(steps=(1000, 757, 522, 100), shift=8.0, chunks=4, window=7),
    "one token row": Case(size=(2, 10), window=6),
    "no norms": Case(qk_norm=False, cross_attn_norm=False, window=6),
}


def model_for(case: Case) -> CausalDiT:
    model = CausalDiT(case.config())
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    model.load_state_dict(random_weights(shapes, seed=1))
    return model.requires_grad_(False)


def sampler_for(case: Case) -> Sampler:
    schedule = FlowSchedule(case.shift)
    return Sampler(schedule, schedule.warp(case.steps))


def replayed(case: Case, model: CausalDiT, *, fused: bool) -> Recording:
    limit = None if case.window else case.chunk * case.chunks
    window = WindowConfig(case.window, case.sink, limit)
    return StreamReplay(model, sampler_for(case), case.inputs(), window, fused=fused).run()


def dense(case: Case, model: CausalDiT) -> DenseStream:
    config, inputs, sampler = model.config, case.inputs(), sampler_for(case)
    weights = model.state_dict()
    reference = DenseDiT(weights, config.num_heads, config.freq_dim)
    return DenseStream(
        reference,
        inputs.prompt_embeds,
        inputs.noise,
        inputs.renoise,
        case.chunk,
        sampler.timesteps,
        sampler.sigmas,
        case.window,
        case.sink,
    )


@pytest.mark.parametrize("fused", [False, True], ids=["sequential", "fused"])
@pytest.mark.parametrize("name", CASES)
def test_cached_stream_equals_dense_reference(name: str, fused: bool) -> None:
    """Latents and every flow, the commit passes' too, agree with a forward that has no cache."""
    case = CASES[name]
    model = model_for(case)
    latents, flows = dense(case, model).run()
    recording = replayed(case, model, fused=fused)
    assert float((recording.output - latents).abs().max()) < TOLERANCE
    assert recording.flows.keys() == {
        (c, p) for c in range(len(flows)) for p in range(len(flows[0]))
    }
    for (chunk, step), flow in recording.flows.items():
        assert float((flow - flows[chunk, step]).abs().max()) < TOLERANCE, (chunk, step)


def test_dense_reference_sees_a_wrong_window() -> None:
    """The reference notices a window one frame too long: the comparison above is not blind."""
    case = CASES["window"]
    model = model_for(case)
    latents, _ = dense(Case(window=7), model).run()
    wrong = replayed(case, model, fused=False).output
    assert float((wrong - latents).abs().max()) > 100 * TOLERANCE


def test_one_block_causal_forward_equals_the_commit_passes() -> None:
    """All commit flows come out of a single masked forward over the finished stream."""
    case = CASES["window no multiple of the chunk"]
    model = model_for(case)
    stream = dense(case, model)
    recording = replayed(case, model, fused=True)
    output = recording.output
    times = torch.zeros(len(output))
    flow = stream.model.flow(output, times, stream.prompt, stream.visible(len(output)))
    commit = len(case.steps)
    committed = torch.cat([recording.flows[c, commit] for c in range(case.chunks)])
    assert float((committed - flow).abs().max()) < TOLERANCE
