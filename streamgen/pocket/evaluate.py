"""Measure how well `pocket` obeys prompts, with detectors that look at the pixels.

    python -m streamgen.pocket.evaluate [--quick] [--json FILE] [--sheet FILE.png] [--minutes 30]

Prompts describe combinations of attributes that training never showed, under seeds it never used.
The full form takes about half an hour on two cores, the quick one some minutes. Exits 0 whether or
not the marks are met: it measures, tests judge.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Final

import numpy as np
import numpy.typing as npt

from streamgen import Engine
from streamgen.pocket.captions import caption
from streamgen.pocket.detectors import read, saturation, sharpness
from streamgen.pocket.measures import (
    CHUNKS_UNTIL_JUDGED,
    SCENERY,
    Bytes,
    Case,
    accuracy,
    degrade,
    draw_seed,
    generate,
    progress,
    run_prompts,
    run_rewinds,
    run_switches,
    unseen_scene,
)
from streamgen.pocket.outlines import GHOST, fit
from streamgen.pocket.sheet import contact_sheet, write_png
from streamgen.pocket.text_encoder import WEIGHTS
from streamgen.pocket.world import ATTRIBUTES, FPS, random_scene, render

CHUNK: Final = 12  # frames
LATER_MINUTES: Final = 5.0  # of a longer run, looked at as well as its end
DISTINCT_PIXELS: Final = 4.0  # mean distance of two tracks that counts as another scene
SHEET_ROWS: Final = 20
FIRST_FRAMES: Final = (2, 5, 8)  # of the first chunk, which has nine
STEADY_FRAMES: Final = (15, 27, 39, 51)  # one of each later chunk

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is generated."""

    prompts: int = 96
    switches: int = 48  # of each transition
    rewinds: int = 24
    seeds: int = 8
    long_runs: int = 2
    minutes: float = 30.0
    truth: int = 200


QUICK = Sizes(prompts=20, switches=10, rewinds=6, seeds=4, long_runs=1, minutes=1.0, truth=40)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `mark` is a least value, or a greatest one when `at_most`."""

    section: str
    name: str
    value: float  # a share, or what `form` says
    mark: float | None = None
    at_most: bool = False
    form: str = "{:.1%}"

    @property
    def met(self) -> bool | None:
        """Return whether the mark is met; None without a mark."""
        if self.mark is None:
            return None
        return self.value <= self.mark if self.at_most else self.value >= self.mark


def prompt_rows(section: str, cases: Sequence[Case], marks: Mapping[str, float]) -> list[Row]:
    """Return the rows of one set of cases."""
    return [Row(section, name, share, marks.get(name)) for name, share in accuracy(cases).items()]


def rewind_rows(
    cases: Sequence[Case], closeness: Sequence[float], marks: Mapping[str, float]
) -> list[Row]:
    """Return what is kept after going back, and how close the first chunk then is."""
    section = "after a rewind, on K/V made again"
    near = [
        Row(
            section, "first chunk against what it was, mean PSNR", mean(closeness), form="{:.1f} dB"
        ),
        Row(section, "the same, worst", min(closeness), form="{:.1f} dB"),
    ]
    return prompt_rows(section, cases, marks) + near


def outline_rows(cases: Sequence[Case], clips: Sequence[Bytes]) -> list[Row]:
    """Return how cleanly things are drawn, by motion, and how many first chunks show a ghost.

    Measured, without a mark: the eye judges the sheet.
    """
    section = "against the drawing of the scene that fits best"
    errors: dict[str, list[float]] = {motion: [] for motion in ATTRIBUTES["motion"]}
    ghosts = []
    for i, (case, clip) in enumerate(zip(cases, clips, strict=True)):
        errors[case.scene.motion] += [fit(clip[n], case.scene, n).error for n in STEADY_FRAMES]
        ghosts.append(median(fit(clip[n], case.scene, n).ghost for n in FIRST_FRAMES))
        progress("outlines", i + 1, len(cases))
    rows = [
        Row(section, f"colours around what {motion}, mean error", mean(e), form="{:.1f} of 255")
        for motion, e in errors.items()
        if e
    ]
    share = mean(ghost > GHOST for ghost in ghosts)
    return [
        *rows,
        Row(section, f"first chunks with a ghost of over {GHOST} pixels", share),
        Row(section, "ghost in a first chunk, mean", mean(ghosts), form="{:.0f} pixels"),
    ]


def stability_rows(engine: Engine, runs: int, minutes: float) -> list[Row]:
    """Compare later minutes of long runs with the first one: largest relative changes."""
    rng = np.random.default_rng(13)
    span = min(1.0, minutes / 5)
    moments = sorted({minutes, min(minutes, LATER_MINUTES)})
    changes: list[list[Floats]] = []  # by run and moment
    for i in range(runs):
        prompt, _ = caption(unseen_scene(rng), rng)
        num_chunks = max(10, round(minutes * 60 * FPS / CHUNK))
        figures = []
        for index, frames in enumerate(generate(engine, prompt, draw_seed(rng), num_chunks)):
            presence = read(frames).presence if index % 3 == 0 else np.nan
            figures.append((saturation(frames), sharpness(frames), presence))
            progress(f"long run {i + 1} of {runs}", index + 1, num_chunks)
        per_minute = num_chunks / minutes
        first = np.nanmean(figures[: round(span * per_minute)], axis=0)
        ends = [round(moment * per_minute) for moment in moments]
        later = [np.nanmean(figures[end - round(span * per_minute) : end], axis=0) for end in ends]
        changes.append([np.abs(each - first) / np.maximum(first, 1e-3) for each in later])
    names = ("saturation change", "sharpness change", "object presence change")
    return [
        Row(f"after {moment:g} minutes, against the first {span:g}", n, v, 0.10, at_most=True)
        for moment, worst in zip(moments, np.max(changes, axis=0).tolist(), strict=True)
        for n, v in zip(names, worst, strict=True)
    ]


def seed_rows(engine: Engine, seeds: int) -> list[Row]:
    """Return the share of pairs of seeds whose objects keep to clearly different tracks."""
    rows = []
    for motion in ATTRIBUTES["motion"]:
        scene = replace(unseen_scene(np.random.default_rng(14)), motion=motion, weather="clear")
        prompt, _ = caption(scene, np.random.default_rng(15))
        tracks = []
        for seed in range(seeds):
            chunks = list(generate(engine, prompt, seed, 3))
            tracks.append(read(np.concatenate(chunks[1:])).centres)
            progress(f"seeds, {motion}", seed + 1, seeds)
        distances = [
            np.nanmean(np.hypot(*(tracks[i] - tracks[j]).T))
            for i in range(seeds)
            for j in range(i)
            if (~np.isnan(tracks[i] - tracks[j])).any()
        ]
        share = float(np.mean([d > DISTINCT_PIXELS for d in distances])) if distances else 0.0
        # What rests has one of three places, so a third of all pairs are alike by right.
        mark = 0.5 if motion == "rests" else 0.85
        rows.append(Row("distinct seeds", f"pairs that differ, {motion}", share, mark))
    return rows


def detector_rows(count: int) -> list[Row]:
    """Measure the detectors themselves on renderings, clean and degraded."""
    rng = np.random.default_rng(16)
    clean, degraded = [], []
    for i in range(count):
        scene = random_scene(rng)
        clip = render(scene, 36, int(rng.integers(500)))
        clean.append(Case("", scene, 0, read(clip)))
        degraded.append(Case("", scene, 0, read(degrade(clip, rng))))
        progress("detectors", i + 1, count)
    marks = dict.fromkeys((*ATTRIBUTES, "count"), 0.98)
    return [
        *prompt_rows("detectors on renderings", clean, marks),
        *prompt_rows("detectors on blurred, noisy renderings", degraded, marks),
    ]


def evaluate(engine: Engine, sizes: Sizes) -> tuple[list[Row], list[Case], list[Bytes]]:
    """Run everything; return the table, the held-out cases and their clips."""
    each = dict.fromkeys(ATTRIBUTES, 0.85)
    plain = {**each, **dict.fromkeys(SCENERY, 0.95), "count": 0.85, "all together": 0.65}
    rows = detector_rows(sizes.truth)
    cases, clips = run_prompts(engine, sizes.prompts, "train")
    rows += prompt_rows("unseen scenes and seeds", cases, plain) + outline_rows(cases, clips)
    cases, clips = run_prompts(engine, sizes.prompts, "heldout")
    rows += prompt_rows("unseen wording", cases, dict.fromkeys(ATTRIBUTES, 0.80))
    for transition, chunks in CHUNKS_UNTIL_JUDGED.items():
        section = f"{'two chunks' if chunks == 2 else 'a chunk'} after a {transition}"
        rows += prompt_rows(section, run_switches(engine, sizes.switches, transition), each)
    rows += rewind_rows(*run_rewinds(engine, sizes.rewinds), each)
    rows += seed_rows(engine, sizes.seeds)
    rows += stability_rows(engine, sizes.long_runs, sizes.minutes)
    return rows, cases, clips


def table_text(rows: Iterable[Row]) -> str:
    """Return the table as Markdown."""
    lines = ["| | measured | mark | met |", "|---|---|---|---|"]
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(f"| **{section}** | | | |")
        mark = "" if row.mark is None else f"{'at most ' * row.at_most}{row.mark:.0%}"
        met = {None: "", True: "yes", False: "NO"}[row.met]
        lines.append(f"| {row.name} | {row.form.format(row.value)} | {mark} | {met} |")
    return "\n".join(lines)


def as_json(rows: Iterable[Row], cases: Iterable[Case], sizes: Sizes) -> dict[str, object]:
    """Return everything measured, with the hashes of the weights, ready for JSON."""
    weights = sorted(WEIGHTS.parent.glob("*.safetensors"))
    return {
        "sizes": asdict(sizes),
        "weights": {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in weights},
        "rows": [{**asdict(row), "met": row.met} for row in rows],
        "unseen wording": [
            {"prompt": c.prompt, "seed": c.seed, "asked": c.scene.labels(), "seen": c.seen.values}
            for c in cases
        ],
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer prompts, one minute")
    parser.add_argument("--minutes", type=float, help="length of the long runs")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--sheet", type=Path, help="write a contact sheet PNG to this file")
    args = parser.parse_args()
    sizes = QUICK if args.quick else Sizes()
    if args.minutes is not None:
        sizes = replace(sizes, minutes=args.minutes)
    with Engine("pocket") as engine:
        rows, cases, clips = evaluate(engine, sizes)
    print(table_text(rows))
    if args.json is not None:
        text = json.dumps(as_json(rows, cases, sizes), indent=2, ensure_ascii=False)
        args.json.write_text(text + "\n", encoding="utf-8")
    if args.sheet is not None:
        write_png(args.sheet, contact_sheet(clips[:SHEET_ROWS]))


if __name__ == "__main__":
    main()
