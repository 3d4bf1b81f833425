"""`serve` and `generate` with a published model: they start, or end with a line beforehand."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from streamgen import Engine, cli, engine_client
from streamgen.engine_client import EngineClient
from streamgen.errors import InvalidPrompt
from streamgen.models import presets
from streamgen.models.weights import WeightOptions
from tests.streamgen.checkpoints import Bomb, Weights, pickled, renamed, saved
from tests.streamgen.published import PRESET, dit_weights, write_original
from tests.streamgen.tiny import tiny_config

ROLES = {
    "transformer": "checkpoints/tiny.pt",
    "VAE": "base_vae.pth",
    "text encoder": "text.pth",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_original(tmp_path_factory.mktemp("original"))


@pytest.fixture
def files(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model's files, to be changed, and the model in the table."""
    monkeypatch.setattr(presets, "PRESETS", {PRESET.name: PRESET})
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return Path(shutil.copytree(original, tmp_path / "files"))


def held(path: Path) -> Weights:
    content = torch.load(path)
    weights: Weights = content.get("generator_ema", content)
    return weights


def write(path: Path, weights: Weights) -> None:
    is_transformer = path.name == "tiny.pt"
    pickled(path, {"generator_ema": weights} if is_transformer else weights)


@pytest.fixture
def refused(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that requires both commands to end with a line, and returns it."""

    def start(*arguments: object, **options: object) -> None:
        raise AssertionError("the engine was started")

    def require(*argv: str, status: int = cli.MACHINE_CANNOT) -> str:
        flags = ["--model", PRESET.name, "--weights", str(files), *argv]
        with monkeypatch.context() as patched:
            patched.setattr(engine_client.EngineSupervisor, "start", start)
            assert cli.main(["serve", "--port", "0", *flags]) == status
        served = capsys.readouterr()
        assert served.out == "", "it said that it listens"
        said = [line for line in served.err.splitlines() if "streamgen serve:" in line]
        output = files / "out.mp4"
        assert cli.main(["generate", "a fox", "-o", str(output), *flags]) == status
        made = capsys.readouterr()
        assert not output.exists()
        assert "Traceback" not in made.err + served.err
        assert made.err.splitlines()[-1].partition(": ")[2] == said[0].partition(": ")[2]
        return said[0]

    return require


def test_a_video_is_made_from_published_files(files: Path) -> None:
    output = files / "out.mp4"
    flags = ["--model", PRESET.name, "--weights", str(files), "--threads", "1"]
    assert cli.main(["generate", "a red fox", "-o", str(output), "--seconds", "0.6", *flags]) == 0
    assert output.stat().st_size > 0
    tiny = files / "tiny.mp4"
    flags += ["--decoder", "tiny", "--container", "generator_ema"]
    assert cli.main(["generate", "a red fox", "-o", str(tiny), "--seconds", "0.6", *flags]) == 0


def test_a_lora_of_the_command_line_changes_the_video(files: Path) -> None:
    down, up = torch.randn(2, 48), torch.randn(48, 2)
    name = "diffusion_model.blocks.0.self_attn.v.lora_{}.weight"
    style = saved(files / "style.safetensors", {name.format("A"): down, name.format("B"): up})

    def latents(*loras: str) -> torch.Tensor:
        config = tiny_config(model=PRESET.name, weights=str(files), lora=list(loras))
        with Engine(config, preset=PRESET) as engine:
            chunk = next(iter(engine.open("a red fox", seed=1, num_frames=1)))
        return torch.tensor(chunk.latents)

    plain = latents()
    assert torch.equal(plain, latents(f"{style}:0"))
    assert not torch.allclose(plain, latents(str(style)), atol=1e-3)
    half = latents(f"{style}:0.5", f"{style}:0.5")
    assert torch.allclose(half, latents(str(style)), atol=1e-4)


@pytest.mark.parametrize("role", ROLES)
def test_q42_a_mismatch_ends_before_listening_with_count_and_first_names(
    role: str, files: Path, refused: Callable[..., str]
) -> None:
    """(a) foreign prefix, (b) a layer missing, (c) one extra, (d) one shape turned round."""
    path = files / ROLES[role]
    right = held(path)
    names = sorted(right)
    matrix = next(n for n in names if right[n].dim() > 1 and len(set(right[n].shape[:2])) == 2)
    write(path, renamed(right, lambda name: f"foo.{name}"))
    said = refused()
    assert f"{len(right)} missing, first " in said
    assert f"{len(right)} extra, first foo." in said
    write(path, {n: t for n, t in right.items() if n not in names[:2]})
    assert "2 missing, first " in refused()
    write(path, {**right, "blocks.9.odd": torch.ones(1)})
    assert "1 extra, first blocks.9.odd" in refused()
    write(path, {**right, matrix: right[matrix].transpose(0, 1).contiguous()})
    assert "1 of another shape, first " in refused()


@pytest.mark.parametrize("role", ROLES)
def test_q42_files_that_are_none_end_before_listening(
    role: str, files: Path, refused: Callable[..., str]
) -> None:
    """(g) a pointer to the weights, (h) no bytes at all, and half of a file."""
    path = files / ROLES[role]
    whole = path.read_bytes()
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "Git LFS pointer" in refused()
    path.write_bytes(b"")
    assert "is empty (0 bytes)" in refused()
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged, or holds more than tensors" in refused()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"", "is empty (0 bytes)"),
        (b'{"model": {}}', "tokenizer.json is no tokenizer"),
    ],
)
def test_q42_a_tokenizer_that_is_none_ends_before_listening(
    content: bytes, said: str, files: Path, refused: Callable[..., str]
) -> None:
    (files / "words/tokenizer.json").write_bytes(content)
    assert said in refused()


def test_q42_weights_of_another_size_end_before_listening(
    files: Path, refused: Callable[..., str]
) -> None:
    """(f) right names from another model."""
    path = files / ROLES["transformer"]
    larger = {n.replace("blocks.1.", "blocks.2."): t for n, t in held(path).items()}
    write(path, {**held(path), **larger})
    said = refused()
    assert "extra, first " in said
    assert "3 layers, 4 channels, tiny-published is one of" in said


def test_q42_harmless_buffers_are_no_matter(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    """(e) extra ones are on a list, and silent."""
    path = files / ROLES["transformer"]
    write(path, {**held(path), "model.freqs": torch.ones(3)})
    with caplog.at_level(logging.WARNING):
        presets.build(PRESET, options=WeightOptions(files))
    assert "freqs" not in caplog.text


def test_q43_a_part_that_is_not_there_ends_before_listening(
    files: Path, refused: Callable[..., str]
) -> None:
    said = refused("--container", "generator_best")
    assert "has no container 'generator_best': it holds generator (" in said
    pickled(files / ROLES["transformer"], {"generator": dit_weights()})
    assert "name the container to load" in refused()


@pytest.mark.parametrize("role", [*ROLES, "LoRA"])
@pytest.mark.parametrize("renamed_to", [None, ".safetensors"])
def test_q47_code_in_a_file_never_runs(
    role: str, renamed_to: str | None, files: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    path = files / ROLES.get(role, "style.pt")
    argv = []
    if role == "LoRA":
        argv = ["--lora", str(path if renamed_to is None else path.with_suffix(renamed_to))]
    pickled(path, {"generator_ema": {"a": Bomb(marker)}, "b": Bomb(marker)})
    if renamed_to is not None:
        path.rename(path.with_suffix(renamed_to))
    said = refused(*argv)
    assert "code" in said
    assert "weights_only" not in said
    assert not marker.exists()


def test_what_is_not_here_is_named_before_listening(
    files: Path, refused: Callable[..., str]
) -> None:
    (files / "base_vae.pth").unlink()
    assert "streamgen download tiny-published" in refused()


def test_options_that_contradict_are_refused(files: Path, refused: Callable[..., str]) -> None:
    said = refused("--device", "cpu", "--text-device", "cuda", status=cli.WRONG_USAGE)
    assert "the engine runs on cpu; leave --text-device out" in said
    assert "outside 2..2" in refused("--steps", "3", status=cli.WRONG_USAGE)


def test_a_text_that_is_too_long_is_refused_wherever_it_comes_from(files: Path) -> None:
    """Told with the numbers, and nothing is cut off; the session goes on."""
    long = " ".join(["fox"] * 20)
    config = tiny_config(model=PRESET.name, weights=str(files))
    message = "has 21 tokens and this model reads 12"
    with Engine(config, preset=PRESET) as engine:
        with pytest.raises(InvalidPrompt, match=message):
            engine.open(long)
        with pytest.raises(InvalidPrompt, match=message):
            engine.open("a fox", score=[{"at_s": 1.0, "prompt": long}])
        session = engine.open("a fox", num_frames=9)
        with pytest.raises(InvalidPrompt, match=message):
            session.set_prompt([("a ball", 1.0), (long, 1.0)])
        assert sum(len(chunk.frames) for chunk in session) == 9


def test_generate_refuses_a_text_that_is_too_long(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", PRESET.name, "--weights", str(files), "--threads", "1"]
    long = " ".join(["fox"] * 20)
    output = files / "out.mp4"
    assert cli.main(["generate", long, "-o", str(output), *flags]) == cli.WRONG_USAGE
    assert "has 21 tokens" in capsys.readouterr().err
    assert not output.exists()


def test_the_bundled_models_start_looks_for_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it wait for a package that published models need."""

    def look(*arguments: object) -> None:
        raise AssertionError("the Hub's cache was asked")

    monkeypatch.setattr("streamgen.models.weights.cached_file", look)
    assert EngineClient(tiny_config(model="pocket")).preset is presets.POCKET
