"""A session as a file: what comes back, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from kvcache import WindowConfig
from streamgen.errors import InvalidRequest
from streamgen.messages import Control, Rewind, SetPrompt, Update
from streamgen.record import ChunkRecord, LogEntry, SessionRecord
from streamgen.score import ScriptEntry
from streamgen.session_config import SessionConfig
from streamgen.snapshot import from_bytes, to_bytes
from streamgen.text import Text, TextBlend, TextMix
from tests.streamgen.tiny import TINY, tiny_config

ENGINE = tiny_config(size="48x32", fps=16, steps=2, window=9, sink=0)
BALL, STAR = TextMix.of("a red ball"), TextMix((("a star", 0.25), ("a box 👨‍👩‍👧", 0.75)))
CONTROLS: tuple[Control, ...] = (
    SetPrompt([{"text": "a star", "weight": 1.0}, "a box"], "blend", 3, "slerp", "a"),
    Update(seed=9, steps=3, fps=8, reset="cache", paused=True, event_id="b"),
    Rewind(1, "c"),
)


def chunk(index: int, text: Text = BALL, controls: tuple[Control, ...] = ()) -> ChunkRecord:
    generator = np.random.default_rng(index)
    plan = TINY.chunks
    return ChunkRecord(
        index=index,
        epoch=0,
        draw=index,
        first_latent=plan.first_frame(index),
        latents=generator.standard_normal((3, 4, 4, 6), np.float32),
        text=text,
        kv_text=BALL,
        revision=min(index, 1),
        seed=7,
        steps=2,
        first_frame_index=plan.first_pixel_frame(index),
        num_frames=plan.first_pixel_frame(index + 1) - plan.first_pixel_frame(index),
        pts_s=plan.first_pixel_frame(index) / 16,
        fps=16,
        controls=controls,
    )


def record(num_chunks: int = 3, **changes: Any) -> SessionRecord:
    chunks = tuple(chunk(i, TextBlend(BALL, STAR, 0.5, "slerp")) for i in range(num_chunks))
    pixels = TINY.chunks.first_pixel_frame(num_chunks)
    config = SessionConfig(
        prompt=BALL,
        seed=7,
        width=48,
        height=32,
        fps=16,
        steps=2,
        window=WindowConfig(9, 3),
        num_frames=None,
    )
    made = SessionRecord(
        config=config,
        chunks=chunks,
        text=STAR,
        revision=4,
        seed=7,
        steps=2,
        fps=16,
        epoch=0,
        num_chunks=num_chunks,
        num_model_chunks=num_chunks,
        num_generated=pixels,
        pts_s=pixels / 16,
        pending=CONTROLS,
        paused=True,
        script=(ScriptEntry(SetPrompt("a heart"), at_chunk=9), ScriptEntry(None, at_s=2.5)),
        log=(LogEntry(1, CONTROLS[0]), LogEntry(2, None)),
    )
    return dataclasses.replace(made, **changes)


def read(blob: bytes) -> SessionRecord:
    return from_bytes(blob, TINY, ENGINE)


def plain(value: SessionRecord | ChunkRecord) -> dict[str, object]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


@pytest.mark.parametrize("num_chunks", [0, 1, 3])
def test_a_session_comes_back_as_it_was(num_chunks: int) -> None:
    before = record(num_chunks)
    after = read(to_bytes(before, "tiny"))
    assert plain(after) | {"chunks": ()} == plain(before) | {"chunks": ()}
    for old, new in zip(before.chunks, after.chunks, strict=True):
        assert plain(new) | {"latents": None} == plain(old) | {"latents": None}
        np.testing.assert_array_equal(new.latents, old.latents)
        assert not new.latents.flags.writeable


def test_the_file_is_safetensors() -> None:
    tensors = load(to_bytes(record(), "tiny"))
    assert {name: t.shape for name, t in tensors.items()} == {"latents": (9, 4, 4, 6)}


def test_a_snapshot_of_another_model_or_size_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="of the model 'pocket', this server has tiny"
    ) as other:
        read(to_bytes(record(), "pocket"))
    assert other.value.param == "snapshot"
    config = dataclasses.replace(record().config, width=64)
    with pytest.raises(InvalidRequest, match="size is 64x32, this server makes 48x32"):
        read(to_bytes(record(config=config), "tiny"))
    config = dataclasses.replace(record().config, window=WindowConfig(12))
    with pytest.raises(InvalidRequest, match="window of 12 latent frames is above 9"):
        read(to_bytes(record(config=config), "tiny"))


def first(**changes: Any) -> dict[str, Any]:
    """Return changes to a record of which the first chunk has other values."""
    return {"chunks": (dataclasses.replace(chunk(0), **changes), chunk(1), chunk(2))}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seed": -1}, r"seed -1 must be a whole number in 0\.\.4294967295"),
        ({"fps": 61}, "fps 61 is above 60"),
        ({"steps": 9}, r"steps 9 is outside 1\.\.4"),
        ({"text": TextMix(())}, "the prompt must be text"),
        ({"text": TextMix((("a", 0.5), ("b", 0.4)))}, "the sum 0.9, not 1"),
        ({"text": TextMix((("a\0", 1.0),))}, "NUL"),
        ({"num_chunks": -1}, "session.num_chunks is -1"),
        ({"num_generated": 32}, "number 2, is not before the session's next chunk"),
        ({"pts_s": 1e11}, "session.pts_s is 1"),
        ({"pending": (Rewind(-1, "a"),)}, "to_chunk is -1"),
        ({"pending": (SetPrompt("", None),)}, "the prompt is empty"),
        ({"pending": (SetPrompt("a", "wipe"),)}, "transition 'wipe' is none of"),
        ({"pending": (Update(reset="x"),)}, "reset 'x' is not cache or all"),
        ({"pending": (Update(seed=1, event_id=" "),)}, "event_id ' ' is not text"),
        ({"script": (ScriptEntry(None),)}, "needs at_chunk or at_s"),
        ({"log": (LogEntry(-1, None),)}, "chunk_index is -1"),
        (first(latents=np.zeros((3, 4, 4, 6), np.float32), draw=1), "not the model's chunk 1"),
        (first(num_frames=99), r"chunks\[0\].num_frames is 99, not 1 to 9"),
        (first(index=1), "number 1, cannot follow number 1"),
        (first(epoch=1), "is not before the session's next chunk"),
        (first(text=TextBlend(BALL, STAR, 2.0, "lerp")), "a blend of prompts at 2.0"),
        (first(seed=2**32), "seed 4294967296"),
    ],
)
def test_values_that_no_session_can_have_are_refused_by_name(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        read(to_bytes(record(**changes), "tiny"))


def test_a_video_that_is_complete_is_refused() -> None:
    config = dataclasses.replace(record().config, num_frames=33)
    with pytest.raises(InvalidRequest, match="all its 33 frames are made"):
        read(to_bytes(record(config=config), "tiny"))


def test_values_that_are_not_finite_are_refused() -> None:
    spoiled = chunk(0)
    spoiled.latents[1, 2, 3, 4] = np.nan
    with pytest.raises(InvalidRequest, match="latents are not all finite"):
        read(to_bytes(record(chunks=(spoiled, chunk(1), chunk(2))), "tiny"))


def forged(change: Any, latents: Any = None, **metadata: str) -> bytes:
    """Return a snapshot whose document was changed by hand."""
    blob = to_bytes(record(), "tiny")
    header = json.loads(blob[8 : 8 + struct.unpack("<Q", blob[:8])[0]])
    document = json.loads(header["__metadata__"]["session"])
    change(document)
    array = load(blob)["latents"] if latents is None else latents
    return save({"latents": array}, metadata={"session": json.dumps(document)} | metadata)


def put(*path: Any) -> Any:
    """Return a change that puts the last of `path` where the others lead."""
    *way, key, value = path

    def change(document: Any) -> None:
        for step in way:
            document = document[step]
        document[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (put("format", 3), "format is 3, not 2"),
        (put("extra", 2), "and nothing else"),
        (put("model", "\ud800"), r"model '\\ud800'"),
        (put("chunks", {}), "chunks is not a list"),
        (put("chunks", []), "its chunks have 0 latent frames, its latents 9"),
        (put("chunks", 0, "num_latents", 10), r"chunks\[0\].num_latents is 10, of 9"),
        (put("chunks", 0, "num_latents", True), "num_latents is True"),
        (put("chunks", 0, 7), r"chunks\[0\].num_latents is None"),
        (put("chunks", 0, "seed", "7"), r"chunks\[0\].seed is '7', not a whole number"),
        (put("chunks", 0, "seed", 10**30), "not a whole number up to"),
        (put("chunks", 0, "text", "type", "int"), "text.type is 'int', which is not expected"),
        (put("chunks", 0, "text", "start", "parts", [["a"]]), r"parts\[0\] has 1 entries, not 2"),
        (put("session", "new", 1), "a field 'new', which this version does not know"),
        (lambda document: document["session"].pop("seed"), "session has no field 'seed'"),
        (put("session", "paused", 1), "session.paused is 1, not true or false"),
        (put("session", "pts_s", 1e999), "Infinity is not JSON"),
        (put("session", "config", "window", "window_frames", 0), "window_frames 0"),
        (put("session", "pending", 0, "type", "SessionConfig"), "which is not expected there"),
        (put("session", "pending", 0, "prompt", {"a": {}}), "the prompt must be text"),
        (put("session", "pending", 0, "prompt", [["a", None]]), "the weight None"),
        (put("session", "pending", 0, "prompt", [["a", 1e308]]), "the weight 1e[+]308"),
    ],
)
def test_a_document_with_anything_else_in_it_is_refused_by_path(
    change: Any, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        read(forged(change))


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [
        (b"", "0 bytes are too few"),
        (b"\xff" * 9, "header of 18446744073709551615 bytes"),
        (struct.pack("<Q", 2) + b"{}", "must hold latents and __metadata__"),
        (struct.pack("<Q", 2) + b"[]", "its header is not an object"),
        (struct.pack("<Q", 1) + b"\xff", "its header is not JSON"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "its header is not JSON: it is nested"),
        (struct.pack("<Q", 13) + b'{"a":1,"a":1}', "a key comes twice"),
        (struct.pack("<Q", 6000) + b"9" * 6000, "its header is not JSON"),
        (forged(put("format", 2), np.zeros((9, 4, 4, 6), np.float16)), "'F16', not F32"),
        (forged(put("format", 2), np.zeros((9, 96), np.float32)), "four dimensions"),
        (forged(put("format", 2), np.zeros((9, 4, 6, 4), np.float32)), "shape .4, 6, 4., not"),
        (forged(put("format", 2), more="x"), "must hold session, and nothing else"),
        (to_bytes(record(), "tiny") + b"\0", "do not fill its 3457 bytes"),
        (to_bytes(record(), "tiny")[:-1], "do not fill its 3455 bytes"),
    ],
)
def test_bytes_that_are_no_such_file_are_refused(blob: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        read(blob)
    caught.value.message.encode()  # the refusal itself can be sent


def test_a_file_in_which_anything_was_changed_is_refused() -> None:
    """A bit of each byte, in the JSON as in the latents; or it says the same in other letters."""
    blob, random = to_bytes(record(), "tiny"), np.random.default_rng(0)
    for place in range(len(blob)):
        spoiled = bytearray(blob)
        spoiled[place] ^= 1 << int(random.integers(8))
        with contextlib.suppress(InvalidRequest):
            assert to_bytes(read(bytes(spoiled)), "tiny") == blob, place


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_is_spoiled_only_a_bad_request_comes_of_it(data: st.DataObject) -> None:
    blob = bytearray(to_bytes(record(), "tiny"))
    header_end = 8 + struct.unpack("<Q", blob[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, header_end - 1))
        blob[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        read(bytes(blob))
    except InvalidRequest as error:
        error.message.encode()
