"""Whole passes as CUDA graphs: one launch where there were thousands.

A graph is captured for each of a few numbers of rows. All that differs between passes of one number
is data in buffers that keep their addresses, so filling and full windows, any timesteps and any
pages replay the same graph; a smaller batch is padded to the next number captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from streamgen.faults import NO_FAULTS, Faults
from streamgen.models.causal_dit import CausalDiT

# Before it is captured a forward makes what it makes once: workspaces, tables, compiled kernels.
WARM_UPS: Final = 2


def compile_blocks(dit: CausalDiT) -> None:
    """Let torch compile what blocks do before and after their self-attention.

    All blocks share the compiled code, one for each number of rows; attention itself is left alone.
    """
    for block in dit.layers:
        for part in ("before_attention", "after_attention"):
            setattr(block, part, torch.compile(getattr(block, part), dynamic=False))


class Graph(Protocol):
    """Something that does again what it saw done."""

    def capture(self, forward: Callable[[], Tensor]) -> Tensor:
        """See a forward done, and return where its result will be after each replay."""

    def replay(self) -> None:
        """Do it again with what its inputs hold now."""


class CudaGraph:
    """A CUDA graph; those made with one `pool` share the memory between their inputs and results.

    Sharing is sound because they are replayed one at a time, in the order of one stream, and a
    result is copied before the next replay.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, forward: Callable[[], Tensor]) -> Tensor:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UPS):
                forward()
        torch.cuda.current_stream().wait_stream(beside)
        with torch.cuda.graph(self._graph, pool=self._pool):
            return forward()

    def replay(self) -> None:
        self._graph.replay()


def cuda_graphs() -> Callable[[], Graph]:
    """Return what makes CUDA graphs that share one pool of memory."""
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)


class GraphRunner:
    """The graphs of a forward, by number of rows."""

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[Graph, Tensor]] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of rows that are captured, ascending."""
        return tuple(sorted(self._graphs))

    def capture(
        self,
        sizes: Sequence[int],
        forward_of: Callable[[int], Callable[[], Tensor]],
        new_graph: Callable[[], Graph],
        faults: Faults = NO_FAULTS,
    ) -> str | None:
        """Capture the forward of each number of rows, largest first; return what went wrong.

        The largest needs the most memory and leaves it to the others. When one fails, none is kept:
        passes run eagerly, and the caller says why.
        """
        for size in sorted(sizes, reverse=True):
            try:
                faults.hit("graph.capture")
                graph = new_graph()
                self._graphs[size] = graph, graph.capture(forward_of(size))
            except RuntimeError as error:  # of memory, or of a kernel that cannot be captured
                self._graphs.clear()
                return f"{size} rows: {type(error).__name__}: {error}"
        return None

    def size_for(self, num_rows: int) -> int | None:
        """Return the smallest number captured that has room for so many rows, or None."""
        return min((size for size in self._graphs if size >= num_rows), default=None)

    def run(self, size: int) -> Tensor:
        """Replay a graph; its result is there until the next replay of any."""
        graph, result = self._graphs[size]
        graph.replay()
        return result
