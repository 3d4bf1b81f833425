"""`streamgen download` fetches what a model needs, once, and says in a line why it cannot."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from streamgen import cli, download
from streamgen.command_parser import WRONG_USAGE
from streamgen.models import presets
from streamgen.models.presets import build
from tests.streamgen.hub import Hub, point_at, serving
from tests.streamgen.published import PRESET, PUBLISHED, write_original

FILES = (PUBLISHED.transformer, PUBLISHED.vae, PUBLISHED.text, PUBLISHED.tokenizer)


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "PRESETS", {PRESET.name: PRESET, "pocket": presets.POCKET})


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], bytes]:
    folder = write_original(tmp_path_factory.mktemp("original"))
    return {(f.repository, f.name): (folder / f.name).read_bytes() for f in FILES}


@pytest.fixture
def hub(
    contents: dict[tuple[str, str], bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Hub]:
    hub = Hub(contents)
    with serving(hub, monkeypatch, str(tmp_path / "cache")):
        yield hub


def fetch(*argv: str) -> int:
    return cli.main(["download", PRESET.name, *argv])


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Require status 3 and one line, and return it."""
    assert fetch(*argv) == cli.MACHINE_CANNOT
    said = capsys.readouterr().err.splitlines()
    ends = [line for line in said if line.startswith("streamgen download: ")]
    assert len(ends) == 1
    assert said[-1] == ends[0]
    return ends[0]


def test_files_are_fetched_once_and_then_load(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch() == cli.DONE
    said = capsys.readouterr().out
    assert "a licence" in said
    assert PUBLISHED.tiny_vae in said
    assert sorted(name for name, _ in hub.sent) == sorted(f.name for f in FILES)
    assert fetch() == cli.DONE
    assert len(hub.sent) == len(FILES)
    build(PRESET)


def test_offline_the_cache_is_asked_alone(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert "without a network it cannot be fetched" in refused(capsys, "--offline")
    assert hub.revisions == []
    assert fetch() == cli.DONE
    asked = len(hub.revisions)
    assert fetch("--offline") == cli.DONE
    assert len(hub.revisions) == asked


def test_the_environments_offline_mode_is_kept(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(capsys)
    assert hub.revisions == []


def test_a_download_that_broke_off_goes_on(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's client tries again by itself, from the byte where it stopped."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 256)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.cut_at = 1000
    assert fetch() == cli.DONE
    name = PUBLISHED.transformer.name
    starts = [start for sent, start in hub.sent if sent == name]
    assert len(starts) == 2
    assert starts[0] == 0
    assert 0 < starts[1] <= 1000
    build(PRESET)


def test_a_revision_is_of_the_transformer(hub: Hub) -> None:
    assert fetch("--revision", "v2") == cli.DONE
    assert hub.revisions.count("main") >= 3
    assert "v2" in hub.revisions


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("RepoNotFound", "the Hub has no repository someone/tiny"),
        ("GatedRepo", "someone/tiny is gated: accept its terms at https://huggingface.co/someone"),
        ("RevisionNotFound", "someone/tiny has no revision 'v9'"),
        ("EntryNotFound", "checkpoints/tiny.pt of someone/tiny is not there (revision v9)"),
    ],
)
def test_the_hubs_refusals_are_said(
    code: str, said: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.errors["someone/tiny"] = code
    assert said in refused(capsys, "--revision", "v9")


def test_no_network_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody listens at port 9."""
    point_at("http://127.0.0.1:9", monkeypatch, str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    said = refused(capsys)
    assert "checkpoints/tiny.pt of someone/tiny cannot be downloaded" in said


@pytest.mark.parametrize("address", ["", "huggingface.co", "http://[::1", "http://host:port"])
@pytest.mark.parametrize("argv", [["download", "self-forcing"], ["models"]])
def test_an_address_of_the_hub_that_is_none_is_said(
    argv: list[str], address: str, tmp_path: Path
) -> None:
    """In a process of its own: huggingface_hub reads the variable when it is imported."""
    environ = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "streamgen.cli", *argv],
        env=environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == WRONG_USAGE, done.stderr
    assert f"streamgen {argv[0]}: HF_ENDPOINT {address!r} is no address" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_value_that_the_hub_refuses_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_proxy(repository: str, name: str, revision: str | None) -> str:
        raise ValueError("Unknown scheme for proxy URL")

    monkeypatch.setattr(download, "_fetch", lambda offline: no_proxy)
    assert "cannot be downloaded: Unknown scheme for proxy URL" in refused(capsys)


def test_a_full_disk_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(repository: str, name: str, revision: str | None) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "_fetch", lambda offline: full)
    assert "does not fit on the disk of the Hub's cache" in refused(capsys)


def test_names_that_are_no_published_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["download", "pocket"]) == cli.DONE
    assert "nothing to download" in capsys.readouterr().out
    assert cli.main(["download", "none"]) == cli.WRONG_USAGE
    assert cli.main(["download", "krea-realtime-14b"]) == cli.WRONG_USAGE
    assert "not supported: before each chunk" in capsys.readouterr().err
