"""A session as a file: what `SessionRecord` holds, to go on from in this server or another.

The file is a safetensors file with one tensor, `latents`, float32 `[frames, C, h, w]`, those of all
kept chunks in order, and one entry of metadata, `session`: JSON with the format's version, the
model's name and all the rest. It may come from anybody, so nothing in it is believed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from streamgen.config import EngineConfig
from streamgen.errors import InvalidRequest, StreamgenError
from streamgen.messages import Control, SetPrompt
from streamgen.models.presets import Preset
from streamgen.record import ChunkRecord, LogEntry, SessionRecord
from streamgen.record_check import check_record
from streamgen.strict_json import decode, encode, loads
from streamgen.text import TextMix

FORMAT: Final = 2  # 1 had a digest of the latents alone
MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
_LENGTH: Final = struct.Struct("<Q")


def to_bytes(record: SessionRecord, model: str) -> bytes:
    """Write a session of the model of this name."""
    record = _plain(record)
    session = encode(record, leave_out=("chunks",))
    chunks = [
        encode(chunk, leave_out=("latents",)) | {"num_latents": len(chunk.latents)}
        for chunk in record.chunks
    ]
    arrays = [chunk.latents for chunk in record.chunks]
    latents = np.concatenate(arrays) if arrays else np.empty((0, 0, 0, 0), np.float32)
    document = {
        "format": FORMAT,
        "model": model,
        "session": session,
        "chunks": chunks,
    }
    document["sha256"] = _digest(document, latents)
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    tensors = {"latents": np.ascontiguousarray(latents)}
    blob: bytes = save(tensors, metadata={"session": text})
    return blob


def from_bytes(blob: bytes, preset: Preset, engine: EngineConfig) -> SessionRecord:
    """Read a session that this preset under these options, which are resolved, can go on with.

    Raises InvalidRequest, and nothing else, for any other bytes, naming what is wrong with them.
    """
    try:
        text, latents = _read_safetensors(blob)
        document = _json(text, "the session")
        digest = _digest(document, latents)  # of all that it says, before it is read
        record = _read_document(document, latents, preset.name)
        check_record(record, preset, engine)
        if document["sha256"] != digest:
            raise ValueError("it is not what was saved: the file is damaged")
    except (ValueError, StreamgenError) as error:
        raise InvalidRequest(
            f"the snapshot cannot be used: {error}; give a file that this model's server wrote",
            param="snapshot",
        ) from error
    return record


def _digest(document: Mapping[str, Any], latents: npt.NDArray[np.float32]) -> str:
    """Return the SHA-256 of the latents and of all else that the document says."""
    said = {key: value for key, value in document.items() if key != "sha256"}
    digest = hashlib.sha256(np.ascontiguousarray(latents).tobytes())
    digest.update(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()


def plain_control(control: Control) -> Control:
    """Return a control whose prompt is plain JSON, as a request has it."""
    if isinstance(control, SetPrompt) and isinstance(control.prompt, TextMix):
        return dataclasses.replace(control, prompt=[list(part) for part in control.prompt.parts])
    return control


def plain_log(log: Iterable[LogEntry]) -> tuple[LogEntry, ...]:
    """Return a log whose controls are plain."""
    return tuple(
        entry
        if entry.control is None
        else LogEntry(entry.chunk_index, plain_control(entry.control))
        for entry in log
    )


def _plain(record: SessionRecord) -> SessionRecord:
    return dataclasses.replace(
        record,
        pending=tuple(map(plain_control, record.pending)),
        log=plain_log(record.log),
        chunks=tuple(
            dataclasses.replace(chunk, controls=tuple(map(plain_control, chunk.controls)))
            for chunk in record.chunks
        ),
    )


def _read_safetensors(blob: bytes) -> tuple[str, npt.NDArray[np.float32]]:
    """Return the session's JSON and the latents; ValueError for anything more, less or else.

    Read by hand: the library gives no metadata of bytes, and copies before it checks.
    """
    if len(blob) < _LENGTH.size:
        raise ValueError(f"{len(blob)} bytes are too few for a file")
    (header_bytes,) = _LENGTH.unpack_from(blob)
    start = _LENGTH.size + header_bytes
    if header_bytes > MAX_HEADER_BYTES or start > len(blob):
        raise ValueError(f"its header of {header_bytes} bytes is not there, or is too long")
    header = _json(blob[_LENGTH.size : start], "its header")
    entry, metadata = header.get("latents"), header.get("__metadata__")
    if header.keys() != {"latents", "__metadata__"} or not isinstance(metadata, dict):
        raise ValueError("its header must hold latents and __metadata__, and nothing else")
    if metadata.keys() != {"session"} or not isinstance(metadata["session"], str):
        raise ValueError("its metadata must hold session, and nothing else")
    shape = _shape(entry, len(blob) - start)
    latents = np.frombuffer(blob, "<f4", offset=start).reshape(shape).astype(np.float32)
    if not np.isfinite(latents).all():
        raise ValueError("its latents are not all finite")
    latents.flags.writeable = False
    return metadata["session"], latents


def _shape(entry: object, num_bytes: int) -> tuple[int, ...]:
    """Return the shape of the one tensor, which fills the file to its end."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("its latents must have dtype, shape and data_offsets")
    shape: Any = entry["shape"]
    if entry["dtype"] != "F32":
        raise ValueError(f"its latents are {str(entry['dtype'])[:20]!a}, not F32")
    if not isinstance(shape, list) or len(shape) != 4:
        raise ValueError("its latents must have four dimensions")
    if not all(type(side) is int and 0 <= side < 2**31 for side in shape):
        raise ValueError("the sides of its latents must be whole numbers")
    if entry["data_offsets"] != [0, num_bytes] or math.prod(shape) * 4 != num_bytes:
        raise ValueError(f"its latents of shape {shape} do not fill its {num_bytes} bytes of data")
    return tuple(shape)


def _json(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        value = loads(text)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def _read_document(
    document: Mapping[str, Any], latents: npt.NDArray[np.float32], model: str
) -> SessionRecord:
    if document.get("format") != FORMAT:
        raise ValueError(f"its format is {document.get('format')!a:.20}, not {FORMAT}")
    if document.keys() != {"format", "model", "session", "chunks", "sha256"}:
        raise ValueError("it must hold format, model, session, chunks and sha256, and nothing else")
    if document["model"] != model:
        raise ValueError(f"it is of the model {document['model']!a:.60}, this server has {model}")
    if not isinstance(document["chunks"], list):
        raise ValueError("chunks is not a list")
    chunks, taken = [], 0
    for index, fields in enumerate(document["chunks"]):
        path = f"chunks[{index}]"
        number = fields.pop("num_latents", None) if isinstance(fields, dict) else None
        if type(number) is not int or not 0 < number <= len(latents) - taken:
            raise ValueError(f"{path}.num_latents is {number!a:.20}, of {len(latents)} in all")
        own = latents[taken : taken + number]
        chunks.append(decode(ChunkRecord, fields, path, latents=own))
        taken += number
    if taken != len(latents):
        raise ValueError(f"its chunks have {taken} latent frames, its latents {len(latents)}")
    return decode(SessionRecord, document["session"], "session", chunks=tuple(chunks))
