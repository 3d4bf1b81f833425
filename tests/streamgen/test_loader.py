"""A checkpoint fits exactly or is refused, with a message one can act on."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn

from streamgen.errors import ConfigError
from streamgen.models.loader import (
    CheckpointError,
    load_safetensors_strict,
    require_varied_output,
)


class Toy(nn.Module):
    """Four blocks, a normalisation with buffers and a computed table."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width + 1) for _ in range(4))
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("freqs", torch.arange(3.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks[0](x)
        return out


def weights(width: int = 4) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: t.clone() for name, t in Toy(width).state_dict().items()}


def saved(tmp_path: Path, tensors: dict[str, Tensor], name: str = "toy.safetensors") -> Path:
    path = tmp_path / name
    save_file(tensors, str(path))
    return path


def refusal(path: Path, module: nn.Module | None = None) -> str:
    """Return the message of the refusal, after checking that the module kept its weights."""
    module = module or Toy()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_safetensors_strict(module, path)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    message = str(caught.value)
    assert str(path) in message
    return message


def test_fitting_file_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    """Every tensor arrives, buffers too."""
    tensors = {name: t + 1 for name, t in weights().items()}
    module = Toy()
    load_safetensors_strict(module, saved(tmp_path, tensors))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name


@pytest.mark.parametrize("start", [b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"])
def test_a_file_that_begins_as_pickles_do_is_loaded(tmp_path: Path, start: bytes) -> None:
    """A header of 640 bytes, for one, has a length that looks like the start of a pickle."""
    tensors = {name: t.clone() for name, t in nn.Linear(2, 3).state_dict().items()}
    header = len(save(tensors, {"note": ""})) - sum(t.nbytes for t in tensors.values()) - 8
    note = "x" * (int.from_bytes(start, "little") - header)
    path = tmp_path / "toy.safetensors"
    path.write_bytes(save(tensors, {"note": note}))
    assert path.read_bytes().startswith(start + b"\0")
    module = nn.Linear(2, 3)
    load_safetensors_strict(module, path)
    assert torch.equal(module.weight, tensors["weight"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_floating_types_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    """A checkpoint in half or double precision loads into float32 and keeps its values."""
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in weights().items()}
    module = Toy()
    load_safetensors_strict(module, saved(tmp_path, tensors))
    weight = module.state_dict()["blocks.0.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, tensors["blocks.0.weight"].float())


def test_names_are_mapped_and_errors_speak_the_files_names(tmp_path: Path) -> None:
    """`file_keys` renames on loading; what is missing is named as the file would name it."""
    names = {name: f"layers.{name}" for name in weights()}
    tensors = {names[name]: t for name, t in weights().items()}
    load_safetensors_strict(Toy(), saved(tmp_path, tensors), file_keys=names)
    del tensors["layers.blocks.3.bias"]
    with pytest.raises(CheckpointError, match=r"1 missing, first layers\.blocks\.3\.bias"):
        load_safetensors_strict(Toy(), saved(tmp_path, tensors), file_keys=names)


def test_q42_a_prefixed_names_are_refused_and_the_prefix_named(tmp_path: Path) -> None:
    """All keys prefixed: everything is missing and everything is extra."""
    path = saved(tmp_path, {f"foo.{name}": t for name, t in weights().items()})
    message = refusal(path)
    # freqs and num_batches_tracked are excused on both sides
    assert "12 missing, first blocks.0.weight, blocks.0.bias, blocks.1.weight, ..." in message
    assert "12 extra, first foo.blocks.0.bias" in message
    assert "the file's names carry the prefix 'foo.'" in message


def test_q42_b_missing_block_is_refused(tmp_path: Path) -> None:
    """The count and the first names of the missing block."""
    tensors = {n: t for n, t in weights().items() if not n.startswith("blocks.2.")}
    message = refusal(saved(tmp_path, tensors))
    assert "does not fit Toy: 2 missing, first blocks.2.weight, blocks.2.bias" in message
    assert "extra" not in message


def test_q42_c_extra_tensor_is_refused(tmp_path: Path) -> None:
    """One tensor too many may be a sign of another model."""
    message = refusal(saved(tmp_path, weights() | {"img_emb.weight": torch.zeros(2)}))
    assert "1 extra, first img_emb.weight" in message


def test_q42_d_transposed_tensor_is_refused(tmp_path: Path) -> None:
    """Both shapes are in the message."""
    tensors = weights()
    tensors["blocks.1.weight"] = tensors["blocks.1.weight"].T.contiguous()
    message = refusal(saved(tmp_path, tensors))
    assert "1 of another shape, first blocks.1.weight [4, 5] instead of [5, 4]" in message


@pytest.mark.parametrize("name", ["freqs", "norm.num_batches_tracked"])
def test_q42_e_harmless_buffers_may_be_missing_in_silence(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Buffers on the allow-list keep the module's own values and no word is said."""
    tensors = weights()
    del tensors[name]
    load_safetensors_strict(Toy(), saved(tmp_path, tensors))
    assert capsys.readouterr() == ("", "")


def test_q42_e_other_buffers_may_not(tmp_path: Path) -> None:
    """Running statistics are buffers too, and the model is wrong without them."""
    tensors = weights()
    del tensors["norm.running_mean"]
    assert "1 missing, first norm.running_mean" in refusal(saved(tmp_path, tensors))


def test_q42_e_a_parameter_of_a_harmless_name_is_not_excused(tmp_path: Path) -> None:
    """The allow-list is for what the model computes itself, not for weights."""
    module = Toy()
    del module.freqs
    module.freqs = nn.Parameter(torch.ones(3))
    tensors = weights()
    del tensors["freqs"]
    assert "1 missing, first freqs" in refusal(saved(tmp_path, tensors), module)


def test_q42_f_another_model_size_is_refused(tmp_path: Path) -> None:
    """Right names, wrong widths: every mis-shaped tensor is counted, three are named."""
    message = refusal(saved(tmp_path, weights(width=6)))
    assert "12 of another shape, first blocks.0.weight [7, 6] instead of [5, 4]" in message
    assert message.count("instead of") == 3


def test_q42_g_lfs_pointer_is_named_for_what_it_is(tmp_path: Path) -> None:
    """The message says which command fetches the weights."""
    path = tmp_path / "toy.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    assert "Git LFS pointer" in refusal(path)
    assert "git lfs pull" in refusal(path)


def test_q42_h_empty_file_is_refused(tmp_path: Path) -> None:
    """Zero bytes, as an interrupted copy leaves."""
    path = tmp_path / "toy.safetensors"
    path.touch()
    assert "is empty (0 bytes)" in refusal(path)


@pytest.mark.parametrize("kept", [4, 40, -10])
def test_q42_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    """Cut inside the length, the header or the data: said with the size that is there."""
    path = saved(tmp_path, weights())
    path.write_bytes(path.read_bytes()[:kept])
    message = refusal(path)
    assert f"truncated or no safetensors file ({path.stat().st_size} bytes)" in message


def test_q42_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    """The system's own reason is passed on."""
    assert "No such file or directory" in refusal(tmp_path / "absent.safetensors")
    assert "directory" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("blocks.0.weight", torch.zeros(5, 4, dtype=torch.int8), "int8 instead of float32"),
        ("norm.num_batches_tracked", torch.tensor(1.0), "float32 instead of int64"),
        ("norm.num_batches_tracked", torch.tensor(1, dtype=torch.int32), "int32 instead of int64"),
    ],
)
def test_q42_other_types_are_refused(tmp_path: Path, name: str, value: Tensor, said: str) -> None:
    """Integers where weights belong are a quantised file, not these weights."""
    message = refusal(saved(tmp_path, weights() | {name: value}))
    assert f"1 of another type, first {name} {said}" in message


@pytest.mark.parametrize(
    ("bias", "said"),
    [(float("nan"), "15 of 15 outputs of the self check are not finite"), (2.0, "is 2")],
)
def test_q42_self_check_flags_bad_output(tmp_path: Path, bias: float, said: str) -> None:
    """A file that fits but computes NaN, or the same value everywhere, is no model."""
    tensors = weights()
    tensors["blocks.0.weight"].zero_()
    tensors["blocks.0.bias"].fill_(bias)
    module = Toy()
    path = saved(tmp_path, tensors)
    load_safetensors_strict(module, path)
    with pytest.raises(CheckpointError, match=said):
        require_varied_output(module(torch.randn(3, 4)), path)


def test_q42_self_check_passes_a_working_model(tmp_path: Path) -> None:
    """Finite output that varies is what a model gives."""
    module = Toy()
    path = saved(tmp_path, weights())
    load_safetensors_strict(module, path)
    require_varied_output(module(torch.randn(3, 4)), path)


def test_checkpoint_error_is_a_configuration_error() -> None:
    """Whoever handles wrong options handles a wrong checkpoint."""
    assert issubclass(CheckpointError, ConfigError)


class Bomb:
    """Leave a marker when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.bin", "model.safetensors"])
@pytest.mark.parametrize("form", ["torch", "legacy", "pickle", "text pickle"])
def test_q47_pickles_are_refused_and_never_run(tmp_path: Path, name: str, form: str) -> None:
    """Whatever its name, a pickle's code does not run; there is no second, unsafe try."""
    marker, path = tmp_path / "marker", tmp_path / name
    bomb = {"blocks.0.weight": Bomb(marker)}
    if form in ("torch", "legacy"):
        torch.save(bomb, path, _use_new_zipfile_serialization=form == "torch")
    else:
        path.write_bytes(pickle.dumps(bomb, protocol=0 if form == "text pickle" else 4))
    message = refusal(path)
    if path.suffix != ".safetensors" or form != "text pickle":
        assert "is a pickle, and reading a pickle can run code" in message
        assert "convert it to safetensors" in message
    assert not marker.exists()
