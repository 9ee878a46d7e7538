"""The monitor: gives what the machine has, writes rows, and never raises into training."""

import time

from dragoman.monitor import gpu, host, sampler
from dragoman.monitor.sampler import sampling
from dragoman.monitor.sinks import Metrics
from dragoman.monitor.trace import Phases
from dragoman.runs import read_rows


def test_this_host_is_described_without_addresses():
    facts = host.describe()
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert all(set(interface) == {"name", "speed_mbit"} for interface in facts["interfaces"])


def test_samples_arrive_while_the_block_runs(tmp_path):
    with sampling(tmp_path, 0.05, enabled=True):
        time.sleep(0.5)
    (file,) = tmp_path.iterdir()
    rows = read_rows(file)
    assert len(rows) >= 2
    assert rows[0]["memory_used_bytes"] > 0
    assert isinstance(rows[0]["gpus"], list)
    count = len(rows)
    time.sleep(0.2)
    assert len(read_rows(file)) == count, "sampling ends with the block"


def test_a_broken_sensor_does_not_reach_training(tmp_path, monkeypatch):
    def broken():
        raise RuntimeError("sensor on fire")

    monkeypatch.setattr(sampler.host, "sample", broken)
    with sampling(tmp_path, 0.01, enabled=True):
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_gpu_has_none(monkeypatch):
    def refuse():
        raise gpu.pynvml.NVMLError(1)

    monkeypatch.setattr(gpu.pynvml, "nvmlInit", refuse)
    assert gpu.handles() == []
    assert gpu.sample([]) == []


def test_metrics_reach_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    for step in (1, 2):
        metrics.write({"kind": "train", "step": step, "loss": 3.0 / step, "note": "text is no number"})
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 3.0), (2, 1.5)]
    assert events.Tags()["scalars"] == ["train/loss"]
    assert [row["loss"] for row in read_rows(tmp_path / "metrics.jsonl")] == [3.0, 1.5]


def test_phases_add_up():
    phases = Phases()
    for _ in range(2):
        with phases.span("data"):
            time.sleep(0.01)
    assert phases.seconds["data"] >= 0.02
    assert phases.seconds["never"] == 0.0
