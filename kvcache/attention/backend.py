"""What a model needs from attention over pages; one file here implements it for one library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvcache.errors import GeometryError
from kvcache.pool import KVPool
from kvcache.staging import Rotation

Turn = Callable[[int], Callable[[Tensor], Tensor]]
"""Map a number of frames to the function that moves keys [..., head_dim] on by as many."""


@dataclass(frozen=True, slots=True)
class RowPages:
    """List the pages one row writes, in token order, and the pages it may read, in any order.

    The targets of its `rotation` are among those it reads; rows may share one. A row of a forward
    padded to a captured size has no pages.
    """

    write_pages: tuple[int, ...]
    visible_pages: tuple[int, ...]
    rotation: Rotation | None = None


class AttentionPlan(Protocol):
    """Run the self-attention of one forward, layer by layer."""

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """Real tokens of each row; the rest is padding."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the K/V of all rows, rotate, then let each row attend to its visible pages only.

        q, k, v and the result are [rows, tokens, heads, head_dim]. K/V of padded tokens reach no
        page but the scratch page; their output is finite and means nothing.
        """


class AttentionBackend(Protocol):
    """Turn page lists into attention."""

    def plan(self, rows: Sequence[RowPages], tokens_per_row: int) -> AttentionPlan:
        """Prepare one forward, on the host, once for all layers.

        Rows may be ragged: those with fewer than `tokens_per_row` tokens are padded at the end.
        Raises GeometryError when the rows do not fit.
        """


def check_rows(pool: KVPool, rows: Sequence[RowPages], tokens_per_row: int) -> None:
    """Raise GeometryError unless these rows can be one forward over this pool."""
    page_tokens = pool.geometry.page_tokens
    if tokens_per_row % page_tokens:
        raise GeometryError(f"{tokens_per_row} tokens a row are not whole pages of {page_tokens}")
    written = [page for row in rows for page in row.write_pages]
    if len(written) != len(set(written)):
        raise GeometryError(f"rows write the same page: {sorted(written)}")
    for row in rows:
        if len(row.write_pages) * page_tokens > tokens_per_row:
            raise GeometryError(
                f"{len(row.write_pages)} pages of {page_tokens} tokens exceed "
                f"{tokens_per_row} tokens a row"
            )
        if row.write_pages and not row.visible_pages:
            raise GeometryError("a row with tokens sees no page")
        for page in (*row.write_pages, *row.visible_pages):
            if not 0 <= page < pool.num_pages:
                raise GeometryError(f"page {page} is not among the {pool.num_pages} of this pool")
    for rotation in rotations(rows):
        source, target = rotation.source_pages, rotation.target_pages
        if len(source) != len(target) or set(target) & {*source, *written}:
            raise GeometryError(f"{rotation} does not bring keys to as many pages of their own")


def rotations(rows: Sequence[RowPages]) -> list[Rotation]:
    """Return what these rows want rotated, each once.

    Raises GeometryError when two want different keys on the same page.
    """
    found = list(dict.fromkeys(row.rotation for row in rows if row.rotation is not None))
    targets = [page for rotation in found for page in rotation.target_pages]
    if len(targets) != len(set(targets)):
        raise GeometryError(f"rows want different keys on the same pages: {found}")
    return found
