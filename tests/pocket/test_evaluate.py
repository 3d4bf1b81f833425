import contextlib
import json
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from streamgen.pocket import evaluate, measures
from streamgen.pocket.captions import caption
from streamgen.pocket.sheet import contact_sheet, write_png
from streamgen.pocket.train.data import is_held_out
from streamgen.pocket.world import render

TINY = evaluate.Sizes(prompts=3, switches=2, rewinds=2, seeds=2, long_runs=1, minutes=0.1, truth=3)


class PerfectEngine:
    """Renders the scene that a prompt was written for; knows prompts from the spied grammar."""

    def __init__(self) -> None:
        self.scenes = {}
        self.prompts = []

    def spy(self, scene, rng, **options):
        text, labels = caption(scene, rng, **options)
        self.scenes[text] = scene
        return text, labels

    @contextlib.contextmanager
    def open(self, prompt, *, seed):
        self.prompts.append(prompt)
        yield Session(self, prompt)


class Session:
    def __init__(self, engine, prompt):
        self.engine, self.timeline = engine, [(0, engine.scenes[prompt])]
        self.index = self.place = 0  # the chunk's number, and where in the scene it is

    def __iter__(self):
        return self

    def __next__(self):
        frames = render(self.timeline, 12, 12 * self.place)
        self.index += 1
        self.place += 1
        return SimpleNamespace(index=self.index - 1, frames=frames)

    def set_prompt(self, text, transition):
        assert transition in ("cut", "recache", "reset")
        self.timeline.append((12 * self.place, self.engine.scenes[text]))

    def rewind(self, to_chunk):
        self.place = to_chunk + 1


@pytest.fixture
def engine(monkeypatch):
    engine = PerfectEngine()
    monkeypatch.setattr(measures, "caption", engine.spy)
    monkeypatch.setattr(evaluate, "caption", engine.spy)
    return engine


def test_a_perfect_model_meets_every_mark_but_seeds(engine):
    rows, cases, clips = evaluate.evaluate(engine, TINY)
    failed = [row for row in rows if row.met is False and row.section != "distinct seeds"]
    assert not failed
    # It draws the same whatever the seed, and the table says so.
    assert [row.value for row in rows if row.section == "distinct seeds"] == [0, 0, 0]
    assert len(cases) == len(clips) == TINY.prompts
    closeness = [row.value for row in rows if "mean PSNR" in row.name]
    assert closeness == pytest.approx([48.13], abs=0.01)
    assert all(is_held_out(case.scene) for case in cases)
    text = evaluate.table_text(rows)
    assert text.count("NO") == 3
    assert json.loads(json.dumps(evaluate.as_json(rows, cases, TINY)))["rows"]


def test_a_wrong_model_is_found_out(engine):
    cases, _ = measures.run_prompts(engine, 4, "train")
    mixed = [
        measures.Case(a.prompt, b.scene, a.seed, a.seen)
        for a, b in zip(cases, cases[1:] + cases[:1], strict=True)
    ]
    assert measures.accuracy(cases)["all together"] == 1
    assert measures.accuracy(mixed)["all together"] == 0


def test_generate_stops_and_switches(engine):
    rng = np.random.default_rng(0)
    first, second = (engine.spy(measures.unseen_scene(rng), rng)[0] for _ in range(2))
    chunks = list(measures.generate(engine, first, 7, 3, {2: second}))
    assert len(chunks) == 3
    assert np.array_equal(chunks[1], render(engine.scenes[first], 12, 12))
    assert not np.array_equal(chunks[2], render(engine.scenes[first], 12, 24))


def test_contact_sheet_png(tmp_path):
    clips = [np.random.default_rng(i).integers(0, 256, (9, 16, 16, 3), np.uint8) for i in range(2)]
    sheet = contact_sheet(clips, columns=3)
    assert sheet.shape == (36, 54, 3)
    assert np.array_equal(sheet[:16, 36:52], clips[0][8])
    write_png(tmp_path / "sheet.png", sheet)
    data = (tmp_path / "sheet.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    at = data.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompressobj().decompress(data[at:]), np.uint8).reshape(36, -1)
    pixels = lines[:, 1:].reshape(36, 54, 3).astype(np.uint32).cumsum(axis=1).astype(np.uint8)
    assert np.array_equal(pixels, sheet)
