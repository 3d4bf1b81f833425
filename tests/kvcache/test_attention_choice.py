"""Which attention backend is taken: by what the machine can do, and by its results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kvcache import (
    AttentionFacts,
    AttentionPlan,
    BackendError,
    KVGeometry,
    KVPool,
    PageLimits,
    RowPages,
    build,
    choose,
)
from kvcache.attention.choice import import_problem, refusal

CPU = torch.device("cpu")
GEOMETRY = KVGeometry(2, 3, 64, 12, 6, torch.bfloat16)
NO_FLASHINFER = {"flashinfer": "ModuleNotFoundError: No module named 'flashinfer'"}


def facts(**changes: object) -> AttentionFacts:
    """Return those of an H100 with everything installed."""
    values: dict[str, object] = {
        "device": "cuda", "capability": (9, 0), "dtype": torch.bfloat16, "head_dim": 128,
        "broken": {},
    }  # fmt: skip
    return AttentionFacts(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["varlen", "flashinfer", "flash_attn", "sdpa"])
def test_a_capable_card_takes_any(name: str) -> None:
    assert refusal(name, facts()) is None


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("varlen", {"device": "cpu", "capability": None}, "it needs a CUDA device"),
        ("varlen", {"capability": (7, 5)}, "compute capability 8.0, and this card has 7.5"),
        ("flashinfer", {"dtype": torch.float32}, "16 bits, and the cache is in torch.float32"),
        ("flashinfer", {"head_dim": 96}, "64, 128 or 256 values, and the model's 96"),
        ("flash_attn", {"head_dim": 320}, "at most 256 values"),
        ("flash_attn", {"head_dim": 60}, "a multiple of 8; the model's 60"),
        ("flashinfer", {"broken": NO_FLASHINFER}, "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_cannot_work_is_told_why(name: str, changes: dict[str, object], why: str) -> None:
    said = refusal(name, facts(**changes))
    assert said is not None
    assert why in said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_has_the_reference(dtype: torch.dtype) -> None:
    assert choose("auto", GEOMETRY, CPU).name == "sdpa"
    assert choose("sdpa", GEOMETRY, CPU).name == "sdpa"
    with pytest.raises(BackendError, match="'flash_attn' was asked for, but it needs a CUDA"):
        choose("flash_attn", GEOMETRY, CPU)
    with pytest.raises(BackendError, match="no attention backend is called 'flash'"):
        choose("flash", GEOMETRY, CPU)


# A machine that says it has a card: here kernels for CUDA raise, and fakes of them compute.


def flash_attn(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    module = ModuleType("flash_attn")
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "flash_attn", module)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads)[0].transpose(0, 1)


def honest(
    q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor, max_q: int, max_k: int
) -> Tensor:
    """Do what flash_attn_varlen_func says for one sequence."""
    first, last = k_ends.tolist()
    assert (q_ends.tolist(), max_q, max_k) == ([0, len(q)], len(q), len(k))
    return attend(q, k[first:last], v[first:last])


def chosen(wanted: str) -> tuple[str, str]:
    broken = facts(head_dim=GEOMETRY.head_dim, broken=NO_FLASHINFER)
    choice = choose(wanted, GEOMETRY, CPU, facts=broken)
    return choice.name, choice.reason


def test_q54_the_first_that_works_is_taken_and_the_others_are_accounted_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flash_attn(monkeypatch, flash_attn_varlen_func=honest)
    name, reason = chosen("auto")
    assert name == "flash_attn"
    assert "not varlen: it raises" in reason
    assert "not flashinfer: flashinfer cannot be imported: ModuleNotFoundError" in reason
    assert chosen("flash_attn") == ("flash_attn", "it is the first choice")


FAKES = {
    "noise": lambda q, *rest: torch.rand_like(q),
    "zeros": lambda q, *rest: torch.zeros_like(q),
    "nan": lambda q, *rest: torch.full_like(q, torch.nan),
    # One key of thousands is missed, or one that does not count is read.
    "short": lambda q, k, v, a, b, *rest: honest(q, k, v, a, b - torch.tensor([0, 1]), *rest),
    "long": lambda q, k, v, a, b, *rest: attend(q, k, v),
    "scale": lambda q, k, v, a, b, *rest: honest(q / 2, k, v, a, b, *rest),
    "heads": lambda q, k, v, a, b, *rest: honest(q, k, v.flip(1), a, b, *rest),
    "shape": lambda q, *rest: q[:1, :1, :1, None],
}


@pytest.mark.parametrize("fake", FAKES)
def test_q54_a_wrong_kernel_is_refused_or_passed_over(
    fake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flash_attn(monkeypatch, flash_attn_varlen_func=FAKES[fake])
    name, reason = chosen("auto")
    assert name == "sdpa"
    assert "not flash_attn: it " in reason
    with pytest.raises(BackendError, match="'flash_attn' was asked for, but it "):
        chosen("flash_attn")


def test_q54_a_package_without_the_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flash_attn(monkeypatch)
    assert chosen("auto")[0] == "sdpa"
    with pytest.raises(BackendError, match="it raises ImportError"):
        chosen("flash_attn")


class ReadsTooMuch:
    """A backend that reads a page that a row does not see."""

    def __init__(self, pool: KVPool, limits: PageLimits) -> None:
        self.backend = build("sdpa", pool, limits)

    def plan(self, rows: Sequence[RowPages], tokens_per_row: int) -> AttentionPlan:
        first = RowPages(rows[0].write_pages, (*rows[0].visible_pages, 5))
        return self.backend.plan([first, *rows[1:]], tokens_per_row)


class WritesElsewhere(ReadsTooMuch):
    """A backend that exchanges the pages it writes."""

    def plan(self, rows: Sequence[RowPages], tokens_per_row: int) -> AttentionPlan:
        first = RowPages(rows[0].write_pages[::-1], rows[0].visible_pages)
        return self.backend.plan([first, *rows[1:]], tokens_per_row)


@pytest.mark.parametrize(
    ("kind", "why"),
    [(ReadsTooMuch, "off the reference"), (WritesElsewhere, "not on the pages they belong to")],
)
def test_q54_wrong_pages_are_seen(kind: type[ReadsTooMuch], why: str) -> None:
    with pytest.raises(BackendError, match=f"no attention backend works here: .*{why}"):
        choose("auto", GEOMETRY, CPU, facts=facts(), make=lambda name, *rest: kind(*rest))


def test_a_lost_device_is_not_a_backends_fault() -> None:
    def lost(*arguments: object) -> ReadsTooMuch:
        raise torch.AcceleratorError("gone")

    with pytest.raises(torch.AcceleratorError):
        choose("auto", GEOMETRY, CPU, facts=facts(), make=lost)


@pytest.mark.parametrize("fault", ["ImportError('no kernel')", "RuntimeError('wrong ABI')"])
def test_q54_whatever_an_import_raises_is_a_reason(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn.py").write_text(f"raise {fault}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    said = import_problem("flash_attn")
    assert said is not None
    assert fault.replace("('", ": ").rstrip("')") in said
    assert import_problem("torch.nn.attention.varlen") is None
