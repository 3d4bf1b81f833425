"""What engines measured, one after another, in the metrics of one server."""

from __future__ import annotations

import pytest

from streamgen.engine_teller import BUSY_WINDOW_S, NUM_CHUNKS, NUM_SAMPLES, EngineTeller
from streamgen.measures import DeviceState, Measures
from transport.metrics import PREFIX, STAGES, Metrics

IDLE = DeviceState(0.0, 0.0, 0, ())


class Scene:
    """A teller with a clock of its own."""

    def __init__(self) -> None:
        self.metrics = Metrics("m")
        self.now = 100.0
        self.teller = EngineTeller(self.metrics, lambda: self.now)

    def tell(self, device: DeviceState = IDLE, **fields: object) -> None:
        self.teller.take(Measures(device, **fields))  # type: ignore[arg-type]

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(PREFIX + name, {"model_name": "m", **labels})


def test_steps_add_up() -> None:
    scene = Scene()
    for _ in range(2):
        scene.tell(
            stage_s=tuple((stage, 0.25) for stage in STAGES), batch_rows=(1, 2, 8), num_oom=1,
            num_new_shapes=2, prompt_hits=5, prompt_misses=1,
        )  # fmt: skip
    for stage in STAGES:
        assert scene.value("chunk_duration_seconds_sum", stage=stage) == 0.5
    assert scene.value("batch_size_sum") == 22
    assert scene.value("batch_size_bucket", le="2.0") == 4
    assert scene.value("oom_total") == 2
    assert scene.value("recompiles_total") == 4
    assert (scene.value("prompt_cache_hits_total"), scene.value("prompt_cache_misses_total")) == (
        10, 2,
    )  # fmt: skip


def test_how_the_device_stands() -> None:
    scene = Scene()
    scene.tell(DeviceState(0.6, 0.1, 3, (("weights", 100), ("decoder", 7))))
    scene.tell(DeviceState(0.4, 0.05, 0, (("weights", 100), ("decoder", 0))))
    assert scene.value("utilization_predicted") == 0.4
    assert scene.value("cost_scatter") == 0.05
    assert scene.value("kv_pages_unowned") == 0
    assert scene.value("memory_bytes", kind="decoder") == 0
    assert scene.value("memory_bytes", kind="device") is None


def test_measured_utilisation_is_of_the_last_seconds() -> None:
    scene = Scene()
    assert scene.value("utilization_measured") == 0
    for _ in range(40):
        scene.now += 0.5
        scene.tell(busy_s=0.2)
    assert scene.value("utilization_measured") == pytest.approx(0.4, abs=0.03)
    scene.now += BUSY_WINDOW_S / 2
    assert scene.value("utilization_measured") == pytest.approx(0.2, abs=0.03)
    scene.now += BUSY_WINDOW_S
    assert scene.value("utilization_measured") == 0


def test_attainment_is_known_once_a_chunk_had_a_deadline() -> None:
    scene = Scene()
    scene.tell()
    assert scene.value("deadline_attainment_ratio") is None
    scene.tell(slack_s=(0.5, 0.0, -0.1, 2.0))
    assert scene.value("deadline_attainment_ratio") == 0.75
    assert scene.value("deadline_slack_seconds_bucket", le="-0.1") == 1
    assert scene.value("deadline_slack_seconds_count") == 4
    scene.tell(slack_s=(1.0,) * NUM_CHUNKS)
    assert scene.value("deadline_attainment_ratio") == 1


def test_quality_is_the_mean_of_the_latest_samples() -> None:
    scene = Scene()
    scene.tell(quality_db=(40.0, 50.0))
    assert scene.value("sampled_quality_psnr_db") == 45
    scene.tell(quality_db=(30.0,) * NUM_SAMPLES)
    assert scene.value("sampled_quality_psnr_db") == 30
