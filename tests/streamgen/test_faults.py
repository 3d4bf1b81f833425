"""Faults on purpose: how they are written, and when they strike."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from streamgen.config import engine_config
from streamgen.errors import ConfigError
from streamgen.faults import NO_FAULTS, POINTS, FaultError, Faults


def strikes(faults: Faults, point: str, passings: int) -> list[int]:
    """Return the passings, from 1, at which an error is raised."""
    struck = []
    for passing in range(1, passings + 1):
        try:
            faults.hit(point)
        except RuntimeError:
            struck.append(passing)
    return struck


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("vae.decode", [1]),
        ("vae.decode@3", [3]),
        ("vae.decode:oom@3x2", [3, 4]),
        ("vae.decode@2, vae.decode:oom@5", [2, 5]),
        ("pass.denoise@2", []),
        ("", []),
    ],
)
def test_a_rule_strikes_at_the_passings_it_names(rules: str, expected: list[int]) -> None:
    assert strikes(Faults.parse(rules), "vae.decode", 6) == expected


def test_each_kind_raises_what_really_happens() -> None:
    faults = Faults.parse("text.encode,pass.denoise:oom,cache.write:fatal")
    with pytest.raises(FaultError, match=r"text\.encode:error at passing 1"):
        faults.hit("text.encode")
    with pytest.raises(torch.OutOfMemoryError):
        faults.hit("pass.denoise")
    with pytest.raises(torch.AcceleratorError):
        faults.hit("cache.write")


def test_a_site_learns_when_it_has_to_spoil_its_values() -> None:
    faults = Faults.parse("pass.nan@2")
    assert [faults.hit("pass.nan") for _ in range(3)] == [False, True, False]


def test_a_stall_lasts_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    Faults.parse("worker.stall:0.2").hit("worker.stall")
    assert slept == [0.2]


def test_without_rules_no_point_fails() -> None:
    assert not any(NO_FAULTS.hit(point) for point in POINTS)


def test_passings_of_several_threads_are_counted_once_each() -> None:
    faults, struck = Faults.parse("vae.decode@200x3"), []
    threads = [
        threading.Thread(target=lambda: struck.extend(strikes(faults, "vae.decode", 100)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(struck) == 3


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ("vae.decod", "no fault point is called 'vae.decod'; there are text.encode"),
        ("vae.decode:nan", "vae.decode cannot fail by 'nan'; expected error or oom or fatal"),
        ("worker.kill:9", "worker.kill cannot fail by '9'; expected kill"),
        ("worker.stall:long", "expected a number of seconds"),
        ("vae.decode@0", "is no fault; expected POINT"),
        ("vae.decode@3,?", "'\\?' is no fault"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_what_is_legal(
    rules: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=f"flag --faults: .*{complaint}"):
        engine_config(flags={"faults": rules})


def test_an_engine_has_no_faults_unless_told() -> None:
    assert engine_config().faults is None
    assert engine_config(environ={"STREAMGEN_FAULTS": "none"}).faults is None
    assert engine_config(flags={"faults": "worker.stall:30@10"}).faults == "worker.stall:30@10"


def test_the_watchdog_waits_a_minute_unless_told() -> None:
    assert engine_config().stall_timeout == 60
    assert engine_config(flags={"stall_timeout": "none"}).stall_timeout is None
    with pytest.raises(ConfigError, match="positive number of seconds"):
        engine_config(flags={"stall_timeout": "0"})
