"""`streamgen parity` passes the reference's fixtures, and nothing that differs from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from streamgen.parity import run
from tests.reference_fixtures import (
    StreamShape,
    altered,
    golden,
    reported,
    stream_fixture,
    write_fixture,
)


@pytest.fixture(scope="module")
def small_stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fixture that takes no time."""
    directory = tmp_path_factory.mktemp("stream") / "small"
    return stream_fixture(directory, StreamShape(layers=1, runs={"local4": (4, 1)}, chunks=3))


KINDS = (
    "causvid_tiny",
    "diffusers_map",
    "longlive2_window",
    "schedule",
    "sf_tiny",
    "sf_local",
    "longlive_local",
    "longlive_switch",
    "taehv_tiny",
    "wanvae_tiny",
)


@pytest.mark.parametrize("kind", KINDS)
def test_published_reference_is_matched(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every output of the fixture is checked and lies within its tolerance."""
    directory = golden(kind)
    assert run([directory]) == 0
    lines, last, err = reported(capsys)
    assert err == ""
    assert last == f"{len(lines)} passed, 0 failed"
    for name, error, tolerance, verdict in lines:
        assert name.startswith(f"{kind}/")
        assert float(error) <= float(tolerance)
        assert verdict == "ok"
    checked = {name.partition("/")[2] for name, *_ in lines}
    inputs = {
        "noise",
        "start_latents",
        "prompt_embeds",
        "hidden_states",
        "encoder_hidden_states",
        "timestep",
        "latents",
        "video",
        "full.latents",
        "full.video",
    }
    inputs |= {"sample.x0", "sample.noise", "sample.flow", "prompt0", "prompt1", "prompt2"}
    stored = {n for n in load_file(directory / "tensors.safetensors") if "renoise" not in n}
    assert stored - inputs <= checked


def test_several_directories_make_one_report(
    small_stream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines carry the directory's name; one total ends the report."""
    assert run([golden("schedule"), small_stream]) == 0
    lines, last, _ = reported(capsys)
    assert {name.partition("/")[0] for name, *_ in lines} == {"schedule", "small"}
    assert last == f"{len(lines)} passed, 0 failed"


@pytest.mark.parametrize("value", [1e-3, float("nan"), float("inf")])
def test_wrong_output_fails(
    value: float, small_stream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One value off by more than the tolerance is seen; NaN never passes."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["local4.output"][0, 8, 3, 1, 2] += value

    assert run([altered(small_stream, tmp_path / "wrong", tensors=change)]) == 1
    lines, last, _ = reported(capsys)
    failed = [words[0] for words in lines if words[3] == "FAIL"]
    assert failed == ["wrong/local4.output", "wrong/local4.output.fused"]
    assert last.endswith(" passed, 2 failed")


def test_wrong_cache_contents_and_calls_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames in another order, or one call seeing another number of frames, is an error."""

    def change(tensors: dict[str, Tensor]) -> None:
        name = "local9_sink3.kv.last.layer0.k"
        tensors[name] = tensors[name].roll(24, dims=1)

    runs = json.loads((golden("sf_local") / "fixture.json").read_text())["runs"]
    runs["local6_sink0"]["calls"][12][5] = 9
    directory = altered(golden("sf_local"), tmp_path / "wrong", tensors=change, runs=runs)
    assert run([directory]) == 1
    failed = {words[0]: words[1] for words in reported(capsys)[0] if words[3] == "FAIL"}
    assert failed.keys() == {
        "wrong/local6_sink0.calls",
        "wrong/local9_sink3.kv.last.layer0.k",
        "wrong/local9_sink3.kv.last.layer0.k.fused",
    }
    assert failed["wrong/local6_sink0.calls"] == "1"


@pytest.mark.parametrize(
    ("setting", "failing"),
    [
        ("keep_sink_on_switch", {"output", "recache.flow", "recache_passes"}),
        ("relative_rotary", {"output", "recache.flow", "recache.kv.last_layer.k"}),
        ("switch_frame_indices", {"calls", "output", "recache.flow", "recache_passes"}),
    ],
)
def test_another_policy_at_a_switch_fails(
    setting: str, failing: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What becomes of the sink, where it lies and when the prompt changes all show."""
    description = json.loads((golden("longlive_switch") / "fixture.json").read_text())
    scenario = description["scenarios"]["switch12_gsink"]
    others = {"keep_sink_on_switch": False, "relative_rotary": True, "switch_frame_indices": [15]}
    scenario[setting] = others[setting]
    scenarios = {"switch12_gsink": scenario}
    assert run([altered(golden("longlive_switch"), tmp_path / "wrong", scenarios=scenarios)]) == 1
    failed = {words[0].partition(".")[2] for words in reported(capsys)[0] if words[3] == "FAIL"}
    assert failing <= {name.removesuffix(".fused") for name in failed}


def test_another_shape_fails_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A frame too few in the expected output is an error, not a smaller comparison."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["frames"] = tensors["frames"][:, 1:]

    assert run([altered(golden("taehv_tiny"), tmp_path / "short", tensors=change)]) == 1
    out = capsys.readouterr().out
    assert "short/frames nan 5e-05 FAIL  shape [1, 17, 3, 32, 48], expected [1, 16, 3" in out


def test_tensor_without_a_rule_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing stored is passed over in silence."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["mystery"] = torch.zeros(1)

    assert run([altered(golden("schedule"), tmp_path / "more", tensors=change)]) == 0
    assert "more/mystery - - skipped" in capsys.readouterr().out


def test_unsupported_kind_fails_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fixture of another kind is a failure with a sentence, and others go on."""
    directory = tmp_path / "later"
    directory.mkdir()
    (directory / "fixture.json").write_text(json.dumps({"fixture": "odd"}))
    assert run([directory, golden("schedule")]) == 1
    out, err = capsys.readouterr()
    assert "later/fixture nan 0 FAIL  kind 'odd' is not supported" in out
    assert out.splitlines()[-1].endswith(" passed, 1 failed")
    assert err == ""


def broken(tmp_path: Path, how: str) -> tuple[Path, str]:
    """Return an unusable directory and what its message must say."""
    directory, source = tmp_path / "broken", golden("sf_local")
    if how == "missing":
        return directory, "no such directory"
    if how == "no weights":
        description = json.loads((source / "fixture.json").read_text())
        tensors = load_file(source / "tensors.safetensors")
        return write_fixture(directory, description, tensors), "weights.safetensors cannot be read"
    if how == "other model":
        model = json.loads((source / "fixture.json").read_text())["model"]
        model["hyperparameters"]["num_layers"] = 4
        return altered(source, directory, model=model), "does not fit CausalDiT: 27 missing"
    if how == "no renoise":
        path = altered(source, directory, tensors=lambda tensors: tensors.pop("renoise"))
        return path, "tensors.safetensors has no 'renoise'"
    if how == "window too short":
        runs = {"local5": {"local_attn_size": 5, "sink_size": 3}}

        def rename(tensors: dict[str, Tensor]) -> None:
            tensors["local5.output"] = tensors["noise"].clone()

        path = altered(source, directory, runs=runs, tensors=rename)
        return path, "sink_frames 3 + chunk_frames 3 = 6 > window_frames 5"
    if how == "no key":
        schedule = {"shift": 5.0, "train_steps": 1000}
        path = altered(source, directory, schedule=schedule)
        return path, "fixture.json has no schedule.requested_steps"
    altered(source, directory)
    if how == "pointer":
        (directory / "tensors.safetensors").write_text("version https://git-lfs.github.com/spec")
        return directory, "Git LFS pointer"
    if how == "not JSON":
        (directory / "fixture.json").write_text("{")
        return directory, "fixture.json is not JSON"
    assert how == "no description", how
    (directory / "fixture.json").unlink()
    return directory, "fixture.json cannot be read: No such file or directory"


@pytest.mark.parametrize(
    "how",
    [
        "missing",
        "no description",
        "not JSON",
        "no key",
        "no renoise",
        "no weights",
        "other model",
        "pointer",
        "window too short",
    ],
)
def test_unusable_directory_is_named_with_the_reason(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line that names the directory and what is wrong; others are replayed."""
    directory, said = broken(tmp_path, how)
    assert run([directory, golden("schedule")]) == 2
    lines, last, err = reported(capsys)
    assert err.startswith(f"streamgen parity: {directory}: ")
    assert said in err
    assert err.count("\n") == 1
    assert last == f"{sum(words[3] == 'ok' for words in lines)} passed, 0 failed"
