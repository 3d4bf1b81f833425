"""What the quality gate found, as a table, as JSON and as pictures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamgen.distances import Pixels
from streamgen.pocket.sheet import write_png
from streamgen.quality_compare import INVISIBLE_DB, KEPT, REJECT_DB, ClipScore, Pair, verdict

# What an error is multiplied with in pictures of differences: 32 levels are white.
GAIN: Final = 8
GAP: Final = 2  # white pixels between pictures
BETWEEN_CLIPS: Final = 8
VERDICTS: Final = {
    "invisible": f"invisible: {INVISIBLE_DB:g} dB or more in every chunk",
    "visible": f"visible on close look: a chunk is between {REJECT_DB:g} and {INVISIBLE_DB:g} dB",
    "reject": f"rejected: a chunk is below {REJECT_DB:g} dB",
}
PICTURED: Final = ("shown", "worst")  # fields that are no figures


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What two sides came to. `missing` says for a metric why it was not measured."""

    baseline: Mapping[str, Any]
    candidate: Mapping[str, Any]
    machine: Mapping[str, Any]
    clips: tuple[ClipScore, ...]
    missing: Mapping[str, str]

    @property
    def worst(self) -> ClipScore:
        """Return the clip with the worst chunk."""
        return min(self.clips, key=lambda clip: clip.worst_chunk.psnr_db)

    @property
    def verdict(self) -> str:
        """Return the verdict on the worst chunk: invisible, visible or reject."""
        return verdict(self.worst.worst_chunk.psnr_db)


def lines(report: Report) -> list[str]:
    """Return the table that a person reads."""
    chunk, worst = report.worst.worst_chunk, report.worst
    return [
        *(
            f"{side}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
            for side, facts in (("baseline", report.baseline), ("candidate", report.candidate))
        ),
        "",
        f"{'':<40} {'PSNR dB':>15} {'SSIM':>15} {'LPIPS':>15} {'drift':>7} {'flicker':>13}",
        f"{'':<40} {'all':>8}{'worst':>7} {'all':>8}{'worst':>7} {'all':>8}{'worst':>7} "
        f"{'dB':>7} {'chunk':>7}{'win':>6}",
        *map(_clip_line, report.clips),
        "worst: of any chunk; flicker: the candidate's over the baseline's",
        *(f"{name.upper()} missing: {why}" for name, why in report.missing.items()),
        "",
        f"{VERDICTS[report.verdict]}: worst {chunk.psnr_db:.1f} dB in chunk {chunk.index} "
        f"(from frame {chunk.first_frame}) of {worst.name}",
    ]


def as_json(report: Report) -> dict[str, Any]:
    """Return everything measured, ready for JSON."""
    return {
        "verdict": report.verdict,
        "worst_chunk_psnr_db": report.worst.worst_chunk.psnr_db,
        "thresholds_db": {"invisible": INVISIBLE_DB, "reject": REJECT_DB},
        "machine": dict(report.machine),
        "baseline": dict(report.baseline),
        "candidate": dict(report.candidate),
        "missing": dict(report.missing),
        "clips": [
            {
                field.name: _plain(getattr(clip, field.name))
                for field in dataclasses.fields(clip)
                if field.name not in PICTURED
            }
            for clip in report.clips
        ],
    }


def write(report: Report, file: Path | None, sheet: Path | None, difference: Path | None) -> None:
    """Write the files that were asked for."""
    if file is not None:
        file.write_text(json.dumps(as_json(report), indent=2, ensure_ascii=False) + "\n", "utf-8")
    if sheet is not None:
        write_png(sheet, contact_sheet(report.clips))
    if difference is not None:
        write_png(difference, _joined(list(_triple(report.worst.worst)), axis=1, gap=GAP))


def contact_sheet(clips: Sequence[ClipScore]) -> Pixels:
    """Return one picture: three rows a clip, of the baseline, the candidate and the difference.

    Up to eight evenly spaced frames of each clip stand from left to right.
    """
    rows = []
    for clip in clips:
        picked = [clip.shown[i] for i in _evenly(len(clip.shown), KEPT)]
        columns = [_joined(list(_triple(pair)), axis=0, gap=GAP) for pair in picked]
        rows.append(_joined(columns, axis=1, gap=GAP))
    width = max(row.shape[1] for row in rows)
    padded = [
        np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255)
        for row in rows
    ]
    return _joined(padded, axis=0, gap=BETWEEN_CLIPS)


def difference_picture(a: Pixels, b: Pixels) -> Pixels:
    """Return where two pictures differ: black where they are equal, white from 32 levels on."""
    far = np.abs(a.astype(np.int16) - b)
    picture: Pixels = np.minimum(255, GAIN * far).astype(np.uint8)
    return picture


def _triple(pair: Pair) -> tuple[Pixels, Pixels, Pixels]:
    difference = difference_picture(pair.baseline, pair.candidate)
    return pair.baseline, pair.candidate, difference


def _evenly(count: int, wanted: int) -> list[int]:
    places = np.linspace(0, count - 1, min(count, wanted)).round().astype(int)
    return [int(place) for place in places]


def _joined(pictures: list[Pixels], *, axis: int, gap: int) -> Pixels:
    """Put pictures beside each other (axis 1) or below each other (axis 0), white between them."""
    widths = [(0, gap if axis == 0 else 0), (0, gap if axis == 1 else 0), (0, 0)]
    spaced = [np.pad(picture, widths, constant_values=255) for picture in pictures[:-1]]
    return np.concatenate([*spaced, pictures[-1]], axis=axis)


def _clip_line(clip: ClipScore) -> str:
    worst_ssim = min(chunk.ssim for chunk in clip.chunks)
    distances = [chunk.lpips for chunk in clip.chunks if chunk.lpips is not None]
    lpips = f"{'-':>8}{'-':>7}"
    if clip.lpips is not None:
        lpips = f"{clip.lpips:>8.4f}{max(distances):>7.3f}"
    name = clip.name if len(clip.name) <= 40 else f"{clip.name[:18]}…{clip.name[-21:]}"
    drift = "-" if clip.drift_db is None else f"{clip.drift_db:+.2f}"
    flicker = clip.flicker
    return (
        f"{name:<40} {clip.psnr_db:>8.2f}{clip.worst_chunk.psnr_db:>7.2f} {clip.ssim:>8.4f}"
        f"{worst_ssim:>7.3f} {lpips} {drift:>7} "
        f"{_ratio(flicker.chunk_candidate, flicker.chunk_baseline):>7}"
        f"{_ratio(flicker.window_candidate, flicker.window_baseline):>6}"
    )


def _ratio(value: float | None, other: float | None) -> str:
    return "-" if value is None or other is None else f"{value / other:.2f}"


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
