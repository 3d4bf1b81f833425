"""Train pocket's text encoder on generated captions, then measure it on held-out ones.

    python -m streamgen.pocket.train.text --out runs/text [--steps 4000] [--resume] [--ship]

Takes some minutes on one CPU thread. Every step draws its captions from its own number, so that a
resumed run continues as if it had never stopped. `--ship` copies the result into the package.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from streamgen.pocket.captions import caption, random_drop
from streamgen.pocket.grammar import Split
from streamgen.pocket.outside import misspell, outside, random_word
from streamgen.pocket.text_encoder import (
    PADDING,
    WEIGHTS,
    ConceptEncoder,
    featurize,
    label_indices,
)
from streamgen.pocket.train.precision import mixed_precision
from streamgen.pocket.world import ATTRIBUTES, random_scene

Labels = dict[str, str | None]
NOTHING: Labels = dict.fromkeys(ATTRIBUTES)
GROUP = 4  # steps whose captions are drawn and sorted together
LONG_EVERY = 25  # groups; one of long prompts
LONG_WORDS = 216


@dataclass(frozen=True)
class Options:
    """What a run is: steps, captions a step, peak learning rate."""

    steps: int = 4000
    batch: int = 64
    learning_rate: float = 2e-3
    seed: int = 0


def example(rng: np.random.Generator, long: bool) -> tuple[str, Labels]:
    """Draw one training caption with slips and strange words, or a prompt that says nothing."""
    if rng.random() < 0.1:
        text, labels = outside(rng), NOTHING
    else:
        text, labels = caption(random_scene(rng), rng, drop=random_drop(rng))
    if rng.random() < 0.3:
        text = misspell(text, rng, float(rng.uniform(0.1, 0.6)))
    if long:
        words = [random_word(rng) for _ in range(int(rng.integers(10, LONG_WORDS)))]
        at = int(rng.integers(len(words)))
        text = " ".join((*words[:at], text, *words[at:]))
    elif rng.random() < 0.2:
        words = text.split(" ")
        for _ in range(int(rng.integers(1, 5))):
            words.insert(int(rng.integers(len(words) + 1)), random_word(rng))
        text = " ".join(words)
    return text, labels


def draw_group(group: int, options: Options) -> list[tuple[Tensor, Tensor]]:
    """Return features and label slots of the steps of one group, captions of like length together.

    A part of the letter groups is missing: words that are recognised by a part of themselves are
    recognised in unseen forms as well.
    """
    rng = np.random.default_rng((options.seed, group))
    long = group % LONG_EVERY == 0
    size = options.batch // 8 if long else options.batch
    drawn = [example(rng, long) for _ in range(GROUP * size)]
    drawn.sort(key=lambda pair: len(pair[0]))
    batches = []
    for i in rng.permutation(GROUP).tolist():
        part = drawn[i * size : (i + 1) * size]
        features = featurize([text for text, _ in part]).numpy()
        rate = rng.choice([0.0, 0.15, 0.3], size=(size, 1, 1))
        features[rng.random(features.shape) < rate] = PADDING
        labels = label_indices([labels for _, labels in part])
        batches.append((torch.from_numpy(features), labels))
    return batches


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over attributes; a little doubt keeps probabilities honest."""
    total = torch.zeros((), device=logits.device)
    for i, values in enumerate(ATTRIBUTES.values()):
        slots = logits[:, i, : len(values) + 1].float()
        total = total + F.cross_entropy(slots, targets[:, i], label_smoothing=0.01)
    return total / len(ATTRIBUTES)


def train(out: Path, options: Options, device: str, resume: bool) -> ConceptEncoder:
    """Train and return the encoder; writes `checkpoint.pt` and `text_encoder.safetensors`."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    encoder = ConceptEncoder().to(device)
    optimizer = torch.optim.AdamW(
        encoder.parameters(), options.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    first, checkpoint = 0, out / "checkpoint.pt"
    if resume and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        encoder.load_state_dict(state["encoder"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    started, losses = time.monotonic(), []
    for step in range(first, options.steps):
        warm, left = min(1.0, (step + 1) / 200), 1 - step / options.steps
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * warm * 0.5 * (1 - math.cos(math.pi * left))
        if step % GROUP == 0 or step == first:
            batches = draw_group(step // GROUP, options)
        features, targets = batches[step % GROUP]
        with mixed_precision(device):
            logits = encoder(features.to(device))
        loss = loss_of(logits, targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        if (step + 1) % 100 == 0:
            mean = sum(losses[-100:]) / len(losses[-100:])
            spent = time.monotonic() - started
            print(f"step {step + 1}/{options.steps} loss {mean:.4f} {spent:.0f} s", flush=True)
        if (step + 1) % 250 == 0:
            state = {"encoder": encoder.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, checkpoint)
    encoder.save(out / WEIGHTS.name)
    return encoder


def measure(encoder: ConceptEncoder, split: Split, count: int, typos: bool) -> dict[str, float]:
    """Return the share of right labels on fresh captions: per attribute, and all at once."""
    rng = np.random.default_rng((987_654, typos))
    right = np.zeros((count, len(ATTRIBUTES)), bool)
    for i in range(count):
        text, labels = caption(random_scene(rng), rng, split=split, drop=random_drop(rng))
        understood = encoder.attributes(misspell(text, rng) if typos else text)
        right[i] = [understood[name][0] == labels[name] for name in ATTRIBUTES]
    shares = dict(zip(ATTRIBUTES, right.mean(axis=0).tolist(), strict=True))
    return {**shares, "all": float(right.all(axis=1).mean())}


def report(encoder: ConceptEncoder, count: int = 2000) -> dict[str, dict[str, float]]:
    """Measure a trained encoder on both splits, with typos, and on prompts from outside."""
    encoder.eval()
    rng = np.random.default_rng(987_655)
    silent = np.array(
        [[v is None for v, _ in encoder.attributes(outside(rng)).values()] for _ in range(count)]
    )
    return {
        "train": measure(encoder, "train", count, typos=False),
        "heldout": measure(encoder, "heldout", count, typos=False),
        "heldout with typos": measure(encoder, "heldout", count, typos=True),
        "outside unspecified": {
            **dict(zip(ATTRIBUTES, silent.mean(axis=0).tolist(), strict=True)),
            "all": float(silent.all(axis=1).mean()),
        },
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--batch", type=int, default=Options.batch)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--resume", action="store_true", help="continue from OUT/checkpoint.pt")
    parser.add_argument("--ship", action="store_true", help="copy the weights into the package")
    args = parser.parse_args()
    train(args.out, Options(steps=args.steps, batch=args.batch), args.device, args.resume)
    encoder = ConceptEncoder.load(args.out / WEIGHTS.name)
    table = report(encoder)
    for name, shares in table.items():
        print(f"{name:20}", " ".join(f"{key} {share:.3f}" for key, share in shares.items()))
    (args.out / "report.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    if args.ship:
        encoder.save(WEIGHTS)


if __name__ == "__main__":
    main()
