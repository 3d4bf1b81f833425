"""Generate clips for unseen prompts and read them; what the evaluation's table is made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from streamgen import Engine
from streamgen.pocket.captions import caption
from streamgen.pocket.detectors import Reading, read
from streamgen.pocket.grammar import Split
from streamgen.pocket.train.data import is_held_out
from streamgen.pocket.world import ATTRIBUTES, Scene, random_scene

Bytes = npt.NDArray[np.uint8]

SCENERY: Final = ("place", "time", "weather", "colour")
CLIP_CHUNKS: Final = 5  # the first one is not judged
SWITCH_AT: Final = 3
CHUNKS_UNTIL_JUDGED: Final = {"cut": 2, "recache": 1, "reset": 1}  # after the switch
CHUNKS_JUDGED: Final = 3
REWIND_AFTER: Final = 7  # chunks
REWIND_TO: Final = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, the scene it describes, the seed it ran under, and what the pixels show."""

    prompt: str
    scene: Scene
    seed: int
    seen: Reading


def generate(
    engine: Engine,
    prompt: str,
    seed: int,
    num_chunks: int,
    switches: Mapping[int, str] | None = None,
    transition: str = "cut",
) -> Iterator[Bytes]:
    """Yield the frames of each chunk, uint8 [n, H, W, 3]; `switches` are prompts by first chunk."""
    with engine.open(prompt, seed=seed) as session:
        for chunk in session:
            frames = np.array(chunk.frames)
            if switches and chunk.index + 1 in switches:
                session.set_prompt(switches[chunk.index + 1], transition=transition)
            yield frames
            if chunk.index + 1 == num_chunks:
                return


def unseen_scene(rng: np.random.Generator) -> Scene:
    """Draw a combination of attributes that training left out."""
    while not is_held_out(scene := random_scene(rng)):
        pass
    return scene


def draw_seed(rng: np.random.Generator) -> int:
    """Draw a seed of the engine's range."""
    return int(rng.integers(2**32))


def run_prompts(engine: Engine, count: int, split: Split) -> tuple[list[Case], list[Bytes]]:
    """Generate a clip for each of `count` unseen prompts; return also the clips.

    Clips have the first chunk, which cases do not judge.
    """
    rng = np.random.default_rng((11, split == "heldout"))
    cases, clips = [], []
    for i in range(count):
        scene = unseen_scene(rng)
        prompt, _ = caption(scene, rng, split=split)
        seed = draw_seed(rng)
        first, *later = generate(engine, prompt, seed, CLIP_CHUNKS)
        cases.append(Case(prompt, scene, seed, read(np.concatenate(later))))
        clips.append(np.concatenate([first, *later]))
        progress(f"{split} prompts", i + 1, count)
    return cases, clips


def run_switches(engine: Engine, count: int, transition: str) -> list[Case]:
    """Change the prompt in the middle; read what is shown from a chunk or two later on."""
    judged = SWITCH_AT + CHUNKS_UNTIL_JUDGED[transition]
    rng = np.random.default_rng(12)
    cases = []
    for i in range(count):
        (first, _), scene = caption(unseen_scene(rng), rng), unseen_scene(rng)
        prompt, _ = caption(scene, rng)
        seed = draw_seed(rng)
        switches, length = {SWITCH_AT: prompt}, judged + CHUNKS_JUDGED
        chunks = list(generate(engine, first, seed, length, switches, transition))
        cases.append(Case(prompt, scene, seed, read(np.concatenate(chunks[judged:]))))
        progress(f"switches by {transition}", i + 1, count)
    return cases


def run_rewinds(engine: Engine, count: int) -> tuple[list[Case], list[float]]:
    """Go back some chunks and on from there; read what is shown then.

    Returns also how close the first chunk after is to what it was the first time (PSNR in dB). Its
    noise is the same; what it sees of the past was made again from the latents.
    """
    rng = np.random.default_rng(17)
    cases, closeness = [], []
    for i in range(count):
        scene = unseen_scene(rng)
        prompt, _ = caption(scene, rng)
        seed = draw_seed(rng)
        with engine.open(prompt, seed=seed) as session:
            before = [np.array(next(session).frames) for _ in range(REWIND_AFTER)]
            session.rewind(REWIND_TO)
            after = [np.array(next(session).frames) for _ in range(CHUNKS_JUDGED)]
        closeness.append(psnr_db(before[REWIND_TO + 1], after[0]))
        cases.append(Case(prompt, scene, seed, read(np.concatenate(after))))
        progress("rewinds", i + 1, count)
    return cases, closeness


def psnr_db(one: Bytes, other: Bytes) -> float:
    """Return the peak signal-to-noise ratio of two clips in dB, at most that of one level off."""
    error = np.mean((one.astype(np.float32) - other.astype(np.float32)) ** 2)
    return float(10 * np.log10(255**2 / max(float(error), 1.0)))


def accuracy(cases: Sequence[Case]) -> dict[str, float]:
    """Return the share of right readings: per attribute, count of bodies, scenery, and all."""
    table = np.array(
        [
            [*(c.seen.values[name] == getattr(c.scene, name) for name in ATTRIBUTES),
             c.seen.count == 1]
            for c in cases
        ]
    )  # fmt: skip
    shares = dict(zip((*ATTRIBUTES, "count"), table.mean(axis=0).tolist(), strict=True))
    scenery = [list(ATTRIBUTES).index(name) for name in SCENERY]
    shares["scenery together"] = float(table[:, scenery].all(axis=1).mean())
    return {**shares, "all together": float(table.all(axis=1).mean())}


def degrade(clip: Bytes, rng: np.random.Generator) -> Bytes:
    """Return a clip blurred (sigma 1 pixel) and noisy (sigma 6 of 255), as a model's might be."""
    kernel = np.exp(-0.5 * np.arange(-3, 4, dtype=np.float32) ** 2)
    kernel /= kernel.sum()
    image = np.pad(clip.astype(np.float32), ((0, 0), (3, 3), (3, 3), (0, 0)), mode="edge")
    height, width = clip.shape[1:3]
    image = sum(k * image[:, i : i + height] for i, k in enumerate(kernel))
    image = sum(k * image[:, :, i : i + width] for i, k in enumerate(kernel))
    noisy = image + 6 * rng.standard_normal(image.shape, np.float32)
    return np.asarray(np.clip(noisy + 0.5, 0, 255), np.uint8)


def progress(what: str, done: int, total: int) -> None:
    """Print how far a part of the evaluation is, every tenth step, to the error stream."""
    if done == total or done % 10 == 0:
        print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)
