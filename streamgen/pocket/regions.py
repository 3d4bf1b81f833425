"""Regions of a binary picture: opening, closing and connected components, in numpy alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


def grow(mask: Mask, radius: int = 1) -> Mask:
    """Return the mask `[H, W]` grown by some pixels in the four directions."""
    for _ in range(radius):
        grown = mask.copy()
        grown[1:] |= mask[:-1]
        grown[:-1] |= mask[1:]
        grown[:, 1:] |= mask[:, :-1]
        grown[:, :-1] |= mask[:, 1:]
        mask = grown
    return mask


def close(mask: Mask, radius: int = 2) -> Mask:
    """Return the mask `[H, W]` with gaps of up to twice the radius filled."""
    return ~grow(~grow(mask, radius), radius)


def open_(mask: Mask, radius: int = 2) -> Mask:
    """Return the mask `[H, W]` without parts thinner than twice the radius."""
    return ~close(~mask, radius)


def components(mask: Mask) -> list[Mask]:
    """Return the connected regions (four neighbours) of a mask `[H, W]`, in reading order."""
    framed = np.pad(mask, ((0, 0), (1, 1)))
    rows, edges = (found.tolist() for found in np.nonzero(framed[:, 1:] != framed[:, :-1]))
    # Runs of a row: where it begins and ends; edges come in such pairs.
    runs = list(zip(rows[::2], edges[::2], edges[1::2], strict=True))
    parents = list(range(len(runs)))
    above = 0
    for label, (row, first, end) in enumerate(runs):
        while runs[above][0] < row - 1:
            above += 1
        other = above
        while runs[other][0] == row - 1:
            if runs[other][1] < end and first < runs[other][2]:
                parents[_root(parents, label)] = _root(parents, other)
            other += 1
    regions: dict[int, Mask] = {}
    for label, (row, first, end) in enumerate(runs):
        region = regions.setdefault(_root(parents, label), np.zeros(mask.shape, bool))
        region[row, first:end] = True
    return list(regions.values())


def _root(parents: list[int], label: int) -> int:
    while parents[label] != label:
        parents[label] = parents[parents[label]]
        label = parents[label]
    return label
