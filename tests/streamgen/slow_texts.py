"""A studio whose texts are encoded beside the passes, when a test says so."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import wait

from torch import Tensor

from streamgen.encoding import Encoding
from streamgen.models.presets import Preset
from streamgen.session import Session
from tests.streamgen.studio import Studio
from tests.streamgen.test_engine_replay import assert_replayed, replayed
from tests.streamgen.tiny import TINY, HashEncoder

TIMEOUT_S = 20.0


class GatedEncoder(HashEncoder):
    """Encode beside the passes when told to, one text each time; those of `failing` fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.on_the_loop: list[str] = []  # which stops every session
        self.failing: dict[str, Exception] = {}
        self.gate = threading.Semaphore(0)

    def encode(self, prompts: list[str]) -> Tensor:
        (prompt,) = prompts
        if not threading.current_thread().name.startswith("encoder"):
            self.on_the_loop.append(prompt)
            return super().encode(prompts)
        self.begun.append(prompt)
        assert self.gate.acquire(timeout=TIMEOUT_S), f"nobody let {prompt!r} through"
        if prompt in self.failing:
            raise self.failing[prompt]
        return super().encode(prompts)


class SlowStudio(Studio):
    """A studio whose texts are encoded beside the passes, when a test says so."""

    def __init__(self, preset: Preset = TINY, **options: object) -> None:
        self.encoder = GatedEncoder()
        preset = dataclasses.replace(preset, text_encoder=lambda dummy: self.encoder)
        super().__init__(preset, encode_beside=True, deterministic=True, **options)

    def __exit__(self, *error: object) -> None:
        self.encoder.gate.release(100)
        super().__exit__(*error)

    @property
    def encoding(self) -> Encoding:
        encoding = self.engine.passes.encoding
        assert encoding is not None
        return encoding

    def encode(self, *texts: str) -> None:
        """Let these texts be encoded, in this order, and no other."""
        for text in texts:
            self.engine.passes.prepare(self.clock(), self.engine.output)
            under_way = self.encoding._under_way
            assert under_way is not None, f"nothing is encoded, and not {text!r}"
            assert under_way[0] == text
            self.encoder.gate.release()
            assert not wait([under_way[1]], TIMEOUT_S).not_done

    def begin(self, prompt: str = "a red ball", num_chunks: int = 3, seed: int = 42) -> Session:
        """Return a session that made so many chunks and stands between two."""
        session = self.open(prompt, seed)
        self.encode(prompt)
        self.make(session, num_chunks)
        self.rest(session)
        return session

    def rest(self, session: Session, num_chunks: int = 0) -> None:
        """Step to the moment between two chunks; all that are made are out."""
        super().rest(session, num_chunks)
        self.engine.emit_decoded(wait_for=self.engine.num_decoding)

    def texts(self, session: Session) -> list[str]:
        return [str(chunk.record.text) for chunk in self.made(session)]


def assert_replays(studio: SlowStudio, session: Session) -> None:
    """Require that a session's log makes its chunks again, with every text at once."""
    made = studio.made(session)
    assert_replayed(made, replayed(studio.engine.record(session.id), len(made)))
