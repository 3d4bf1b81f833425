"""Passes over static inputs, eager and replayed: the same values, and a contract that graphs need.

A tape stands in for the CUDA graph (tests/tape.py): it replays operations where their tensors were.
"""

from __future__ import annotations

import logging

import pytest
import torch

from kvcache import PageTable, WindowConfig
from streamgen.account_memory import GRAPH_ROWS
from streamgen.faults import Faults
from streamgen.model_runner import ModelRunner, Row, StepBatch
from tests.streamgen.static_runner import (
    CHUNK,
    SHAPE,
    WINDOW,
    Stream,
    captured,
    close,
    new_runner,
    run_streams,
)
from tests.tape import Tape, TapeGraph, storages

READS_OF_THE_DEVICE = ("_local_scalar_dense", "item", "nonzero", "equal")


def test_static_inputs_give_what_the_reference_gives() -> None:
    close(run_streams(new_runner()), run_streams(new_runner(static=False)))


@pytest.mark.parametrize("deterministic", [False, True])
def test_replays_give_what_eager_passes_give(deterministic: bool) -> None:
    """Each flow as it was returned, though later replays use the same memory."""
    runner = new_runner(deterministic=deterministic)
    graphs = captured(runner)
    assert runner.graphs.sizes == GRAPH_ROWS
    eager = new_runner(deterministic=deterministic)
    close(run_streams(runner), run_streams(eager))
    assert runner.num_eager == 0
    assert eager.num_eager == sum(graph.replays for graph in graphs) > 6
    for mine, theirs in zip(
        runner.pool.k + runner.pool.v, eager.pool.k + eager.pool.v, strict=True
    ):
        torch.testing.assert_close(mine[:-1], theirs[:-1], atol=1e-5, rtol=1e-5, equal_nan=True)


def test_graphs_are_captured_largest_first_and_leave_no_trace() -> None:
    runner = new_runner()
    before = [t[:-1].clone() for t in runner.pool.k + runner.pool.v]
    sizes: list[int] = []
    capture = runner.graphs.capture

    def watched(*arguments: object) -> str | None:
        forward_of = arguments[1]

        def watched_forward_of(size: int) -> object:
            sizes.append(size)
            return forward_of(size)  # type: ignore[operator]

        return capture(arguments[0], watched_forward_of, *arguments[2:])  # type: ignore[arg-type]

    runner.graphs.capture = watched  # type: ignore[method-assign, assignment]
    captured(runner)
    assert sizes == list(reversed(GRAPH_ROWS))
    for tensor, old in zip(runner.pool.k + runner.pool.v, before, strict=True):
        assert torch.equal(tensor[:-1].nan_to_num(7.0), old.nan_to_num(7.0))


def test_five_rows_take_the_graph_of_six_and_are_those_of_five() -> None:
    runner, eager = new_runner(), new_runner()
    graphs = captured(runner)
    results = []
    for one in (runner, eager):
        streams = [Stream(one, seed) for seed in range(5)]
        results.append([one.run(StepBatch(tuple(s.rows(500.0)[0] for s in streams)))])
    close(*results)
    replays = {size: g.replays for size, g in zip(reversed(GRAPH_ROWS), graphs, strict=True)}
    assert replays == {size: int(size == 6) for size in GRAPH_ROWS}


@pytest.mark.parametrize(
    ("window", "length", "num_eager"),
    [
        (WINDOW, 2, 4),  # a shorter chunk
        (WindowConfig(12), CHUNK, 1),  # in the end it sees more than the static lists hold
        (WindowConfig(9, 3, rotary="relative"), CHUNK, 1),  # and here a larger sink is rotated
    ],
)
def test_what_was_not_captured_runs_eagerly_and_is_counted(
    window: WindowConfig, length: int, num_eager: int
) -> None:
    results = []
    for runner in (new_runner(), new_runner(static=False)):
        if runner.static_attention is not None:
            captured(runner)
        stream, flows = Stream(runner, 0, window), []
        for _ in range(4):
            staging = stream.table.begin(length)
            row = Row(stream.latents()[:length], 700.0, staging, stream.slot)
            flows.append(runner.run(StepBatch((row,))))
            stream.table.commit()
        results.append((flows, runner.num_eager))
    assert results[0][1] == num_eager
    close(results[0][0], results[1][0])


@pytest.mark.parametrize("kind", ["oom", "error"])
def test_q48_a_capture_that_fails_leaves_eager_passes_and_says_why(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    runner = new_runner()
    with caplog.at_level(logging.WARNING):
        runner.capture_graphs(TapeGraph, Faults.parse(f"graph.capture:{kind}@2"))
    assert "passes run eagerly, as capturing them failed at 6 rows" in caplog.text
    assert f"fault graph.capture:{kind}" in caplog.text
    assert runner.graphs.sizes == ()
    close(run_streams(runner), run_streams(new_runner()))
    assert runner.num_eager > 0


def prepared(runner: ModelRunner) -> StepBatch:
    """Return a forward of four rows with full windows."""
    streams = [Stream(runner, seed) for seed in range(2)]
    for _ in range(5):
        rows = [row for s in streams for row in s.rows(500.0)]
        runner.run(StepBatch(tuple(rows)))
        for stream in streams:
            stream.done()
    return StepBatch(tuple(row for s in streams for row in s.rows(300.0)))


def test_a_pass_asks_the_device_for_nothing_and_keeps_nothing() -> None:
    runner = new_runner()
    batch = prepared(runner)
    runner.run(batch)  # the last few angles of rotated sinks are remembered, on the host
    tape, before = Tape(record=False), storages()
    with tape:
        flows = runner.run(batch)
    assert len(tape.names) > 100
    assert not [name for name in tape.names if any(read in name for read in READS_OF_THE_DEVICE)]
    assert tape.kept() <= before | {flow.untyped_storage().data_ptr() for flow in flows}


def test_a_pass_needs_no_value_and_stays_on_its_device() -> None:
    """On the meta device, where there are none: only filling the inputs meets the host."""
    runner = new_runner(device="meta")
    static = runner.static_attention
    assert static is not None
    table = PageTable(runner.pool, WINDOW, CHUNK)
    row = Row(torch.zeros(CHUNK, *SHAPE), 500.0, table.begin(CHUNK), 0)
    with torch.inference_mode():
        inputs = runner.inputs.fill([row], 2, CHUNK, static, is_static=True)
        tape = Tape(record=False)
        with tape:
            flow = runner._flow(inputs)
    assert flow.shape == (2, CHUNK, *SHAPE)
    assert tape.devices == {"meta"}


def test_inputs_and_pages_keep_their_addresses() -> None:
    runner = new_runner()
    batch = prepared(runner)

    def addresses(size: int) -> list[int]:
        assert runner.static_attention is not None
        rows = batch.rows[:size]
        inputs = runner.inputs.fill(rows, size, CHUNK, runner.static_attention, is_static=True)
        tensors = [inputs.latents, inputs.timesteps, inputs.frame_index, runner.inputs._text_slots]
        return [t.data_ptr() for t in (*tensors, *runner.pool.k, *runner.pool.v)]

    first = addresses(4)
    for _ in range(3):
        runner.run(batch)
        assert addresses(2) == first
        assert addresses(4) == first
