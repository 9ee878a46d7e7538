"""The monitor: gives what the machine has, writes rows, and never raises into training."""

import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from support import tiny_config, wait_until

from dragoman.cli.stages import train
from dragoman.config.schema import Monitor
from dragoman.errors import MissingExtra
from dragoman.monitor import host, sampler
from dragoman.monitor import sinks as sinks_module
from dragoman.monitor.sampler import sampling
from dragoman.monitor.sinks import Aside, Metrics, MLflow, TensorBoard, WandB, sinks
from dragoman.runs import RunFolder, read_rows
from dragoman.training import trainer
from dragoman.training.owner import FencedError


def test_this_host_is_described_without_addresses():
    facts = host.describe()
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert all(set(interface) == {"name", "speed_mbit"} for interface in facts["interfaces"])


def test_the_speed_of_a_fast_card_is_told_and_what_is_no_speed_is_not(monkeypatch):
    speeds = {"eth0": 100_000, "eth1": 65_535, "eth2": 0}
    states = {name: SimpleNamespace(isup=True, speed=speed) for name, speed in speeds.items()}
    monkeypatch.setattr(host.psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(host, "ports", dict)
    assert [link["speed_mbit"] for link in host.describe()["interfaces"]] == [100_000, None, None]


def test_samples_arrive_while_the_block_runs(tmp_path):
    with sampling(file := tmp_path / "host.jsonl", 0.05, enabled=True):
        wait_until(lambda: len(read_rows(file)) >= 2)
    assert list(tmp_path.iterdir()) == [file]
    rows = read_rows(file)
    assert rows[0]["memory_used_bytes"] > 0
    assert isinstance(rows[0]["gpus"], list)
    count = len(rows)
    time.sleep(0.2)
    assert len(read_rows(file)) == count, "sampling ends with the block"


def test_a_broken_sensor_does_not_reach_training(tmp_path, monkeypatch):
    calls = []

    def broken():
        calls.append(1)
        raise RuntimeError("sensor on fire")

    monkeypatch.setattr(sampler.host, "sample", broken)
    with sampling(tmp_path / "host.jsonl", 0.01, enabled=True):
        wait_until(lambda: len(calls) >= 2)
    assert list(tmp_path.iterdir()) == []


def test_one_failing_sample_is_left_out_and_the_next_one_is_taken(tmp_path, monkeypatch):
    real, calls = sampler.host.sample, []

    def sometimes():
        calls.append(1)
        if len(calls) % 2:
            raise OSError("no space left on device")
        return real()

    monkeypatch.setattr(sampler.host, "sample", sometimes)
    with sampling(file := tmp_path / "host.jsonl", 0.02, enabled=True):
        wait_until(lambda: read_rows(file))
    assert list(tmp_path.iterdir()) == [file]
    assert 1 <= len(read_rows(file)) <= len(calls) // 2


def port(folder, sent, received, rate="200 Gb/sec (4X HDR)"):
    place = folder / "mlx5_0" / "ports" / "1"
    (place / "counters").mkdir(parents=True)
    (place / "rate").write_text(rate + "\n")
    (place / "counters" / "port_xmit_data").write_text(f"{sent}\n")
    (place / "counters" / "port_rcv_data").write_text(f"{received}\n")


def test_infiniband_ports_count_words_of_four_bytes_and_know_their_speed(tmp_path, monkeypatch):
    port(tmp_path, 1000, 250)
    monkeypatch.setattr(host, "INFINIBAND", tmp_path)
    assert host.sample()["nics"]["mlx5_0/1"] == {"sent_bytes": 4000, "received_bytes": 1000}
    assert {"name": "mlx5_0/1", "speed_mbit": 200_000} in host.describe()["interfaces"]
    without = host.traffic()
    (tmp_path / "mlx5_0/ports/1/counters/port_xmit_data").write_text("2000\n")
    assert host.traffic()[0] - without[0] >= 4000


def test_traffic_inside_the_host_is_not_counted_and_the_rest_once(tmp_path, monkeypatch):
    """A bond of eth1 and eth2, a VLAN on eth0, a bridge over eth0, IPoIB on a port that is counted, and one on none."""
    for name in (
        "eth0",
        "eth1",
        "eth2",
        "bond0/lower_eth1",
        "bond0/lower_eth2",
        "eth0.7/lower_eth0",
        "bridge0/lower_eth0",
    ):
        (tmp_path / name).mkdir(parents=True)
    for name, kind in (("ib0", 32), ("eth3", 1)):
        (tmp_path / name / "device" / "infiniband" / "mlx5_0").mkdir(parents=True)
        (tmp_path / name / "type").write_text(f"{kind}\n")
    monkeypatch.setattr(host, "INTERFACES", tmp_path)
    names = ("lo", "docker0", "veth12ab", "br-77", "eth0", "eth1", "eth2", "bond0", "eth0.7", "bridge0", "ib0", "eth3")
    assert [name for name in names if host.counts(name)] == ["eth0", "eth1", "eth2", "eth3"]


def test_files_that_are_not_there_are_no_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "SNMP", tmp_path / "snmp")
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    row = host.sample()
    assert row["tcp_retransmitted"] is None
    assert row["cpu_throttled_us"] is None
    (tmp_path / "snmp").write_text("Tcp: InSegs RetransSegs\nTcp: 10 7\n")
    assert host.sample()["tcp_retransmitted"] == 7


def test_metrics_reach_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path / "metrics.jsonl", [TensorBoard(tmp_path / "tensorboard", "own")])
    for step in (1, 2):
        metrics.write({"kind": "train", "step": step, "loss": 3.0 / step, "note": "text is no number"})
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 3.0), (2, 1.5)]
    assert events.Tags()["scalars"] == ["train/loss"]
    assert [row["loss"] for row in read_rows(tmp_path / "metrics.jsonl")] == [3.0, 1.5]


def test_tensorboard_speaks_the_language_of_the_reference_when_asked(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path / "metrics.jsonl", [TensorBoard(tmp_path / "tensorboard", "openseq2seq")])
    metrics.write({"kind": "train", "step": 5, "loss": 3.0, "grad_norm": 0.5, "step_seconds": 0.25, "row_fill": 0.9})
    metrics.write({"kind": "valid", "step": 5, "loss": 2.5, "bleu": 25.0})
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    norm = {"Loss_Optimization/global_gradient_norm": 0.5, "global_step/sec": 4.0}
    assert found == {"train_loss": 3.0, "eval_loss": 2.5, "Eval_BLEU_Score": 0.25, "dragoman": 1.0, **norm}


class Service:
    """Stands for wandb and mlflow: remembers what it was sent."""

    id = "abc"

    def __init__(self):
        self.sent, self.step = [], 0
        self.info = SimpleNamespace(run_id=self.id)

    def init(self, **how):
        self.sent.append(how)
        return self

    def define_metric(self, names, step_metric):
        self.axis = {names: step_metric}

    def log(self, numbers, step=None):
        """Rows of a step that is over are dropped, as wandb does."""
        self.step = self.step + 1 if step is None else step
        if self.step == max(self.step, *(sent[0] for sent in self.sent if isinstance(sent, tuple)), 0):
            self.sent.append((self.step, numbers))

    def finish(self, exit_code):
        self.sent.append("failed" if exit_code else "end")

    # --- mlflow ---

    entities = SimpleNamespace(Metric=lambda key, value, timestamp, step: (key, value, step))

    def MlflowClient(self):
        return self

    def set_experiment(self, name):
        return SimpleNamespace(experiment_id=name)

    def create_run(self, experiment, run_name):
        self.sent.append({"id": None, "name": run_name})
        return self

    def update_run(self, run, status):
        self.sent.append({"id": run, "status": status})

    def log_batch(self, run, metrics):
        assert run == self.id
        self.sent.append((metrics[0][2], {key: value for key, value, _ in metrics}))

    def set_terminated(self, run, status):
        assert run == self.id
        self.finish({"FINISHED": 0, "FAILED": 1}[status])


def test_other_services_get_the_same_numbers(tmp_path, monkeypatch):
    for module, make in (("wandb", WandB), ("mlflow", MLflow)):
        service = Service()
        monkeypatch.setitem(sys.modules, module, service)
        known = tmp_path / f"{module}.id"
        metrics = Metrics(tmp_path / "metrics.jsonl", [make("translation", "run-7", known)])
        metrics.write({"kind": "train", "step": 5, "loss": 3.0, "note": "text"})
        metrics.close()
        assert service.sent[-1] == "end"
        (numbers,) = [sent[1] for sent in service.sent if isinstance(sent, tuple)]
        assert [value for key, value in numbers.items() if key != "step"] == [3.0]
        make("translation", "run-7", known)
        first, again = [sent.get("id") for sent in service.sent if isinstance(sent, dict)]
        assert (first, again) == (None, "abc"), "a resumed run is the same one there too"


@pytest.mark.parametrize("error", [None, RuntimeError("a cable was pulled"), FencedError("begun elsewhere")])
def test_servers_learn_how_a_run_ended(prepared, tmp_path, monkeypatch, error):
    """And get its last rows. A run that another process has taken over goes on there too."""
    monkeypatch.setitem(sys.modules, "mlflow", service := Service())

    def fail(*_):
        raise error

    if error:
        monkeypatch.setattr(trainer.Trainer, "do_what_is_due", fail)
    keys = ("train.max_steps=2", "train.log_every=1", "checkpoint.every=2", "monitor.mlflow=translation")
    config = tiny_config(prepared.folder, tmp_path / "run", *keys)
    with pytest.raises(type(error), match=str(error)) if error else nullcontext():
        train(config)
    if not isinstance(error, FencedError):
        assert service.sent[-1] == ("failed" if error else "end")
        assert next(sent[0] for sent in service.sent if isinstance(sent, tuple)) == 1
    else:
        assert not {"failed", "end"} & {sent for sent in service.sent if isinstance(sent, str)}


def test_a_server_that_cannot_be_told_hides_no_error(prepared, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("a cable was pulled")

    def refuse(*_):
        raise ConnectionError("no route to host")

    monkeypatch.setitem(sys.modules, "mlflow", service := Service())
    monkeypatch.setattr(service, "set_terminated", refuse, raising=False)
    monkeypatch.setattr(trainer.Trainer, "do_what_is_due", fail)
    keys = ("train.max_steps=2", "train.log_every=1", "monitor.mlflow=translation")
    with pytest.raises(RuntimeError, match="a cable was pulled"):
        train(tiny_config(prepared.folder, tmp_path / "run", *keys))
    assert "no route to host" in caplog.text


class Slow:
    """A server that answers when it is let."""

    def __init__(self):
        self.answers, self.got, self.ended = threading.Event(), [], False

    def write(self, kind, step, numbers):
        self.answers.wait()
        self.got.append(step)

    def close(self, *, failed):
        self.ended = True


def test_a_server_that_does_not_answer_holds_nothing_up(monkeypatch, caplog):
    monkeypatch.setattr(sinks_module, "MOST_WAITING", 3)
    monkeypatch.setattr(sinks_module, "LAST_SECONDS", 0.01)
    aside = Aside(slow := Slow())
    aside.write("train", 0, {"loss": 3.0})
    wait_until(aside.rows.empty)  # it is on its way
    for step in range(1, 20):
        aside.write("train", step, {"loss": 3.0})
    aside.close()
    assert caplog.text.count("is 3 rows behind") == 1
    assert caplog.text.count("has not taken the last rows") == 1
    slow.answers.set()
    wait_until(lambda: len(slow.got) >= 4)
    assert slow.got == [0, 1, 2, 3], "what was taken came in order"


def test_a_server_that_answers_gets_every_row_before_the_end(caplog):
    aside = Aside(slow := Slow())
    for step in range(20):
        aside.write("train", step, {"loss": 3.0})
    slow.answers.set()
    aside.close()
    assert slow.got == list(range(20))
    assert slow.ended
    assert not caplog.text


def test_a_server_that_breaks_in_its_thread_is_told_once_and_left(caplog):
    def refuse(*_):
        raise ConnectionError("no route to host")

    aside = Aside(SimpleNamespace(write=refuse, close=refuse))
    aside.write("train", 1, {"loss": 3.0})
    wait_until(lambda: not aside.thread.is_alive())
    aside.write("train", 2, {"loss": 3.0})
    aside.close()
    assert caplog.text.count("no route to host") == 1


def test_rows_after_a_return_to_a_checkpoint_reach_weights_and_biases(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", service := Service())
    sink = WandB("translation", "run-7", tmp_path / "id")
    for step in (50, 100, 60):
        sink.write("train", step, {"loss": 3.0})
    assert [sent[1][service.axis["*"]] for sent in service.sent if isinstance(sent, tuple)] == [50, 100, 60]


def test_a_server_that_is_down_at_the_start_is_told_once_and_left(tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise ConnectionError("no route to host")

    down = SimpleNamespace(init=refuse, MlflowClient=object, set_experiment=refuse)
    for module in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, module, down)
    found = sinks(RunFolder(tmp_path), Monitor(wandb="translation", mlflow="translation"))
    assert [type(sink).__name__ for sink in found] == ["TensorBoard"]
    assert caplog.text.count("no route to host") == 2
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra):
        sinks(RunFolder(tmp_path), Monitor(wandb="translation"))


def test_a_missing_package_is_named_and_a_broken_service_is_left_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"\.\[wandb\]"):
        WandB("project", "name", tmp_path / "id")

    class Broken:
        def write(self, kind, step, numbers):
            raise ConnectionError("no route to host")

        close = None

    metrics = Metrics(tmp_path / "metrics.jsonl", [Broken()])
    for step in (1, 2):
        metrics.write({"kind": "train", "step": step, "loss": 3.0})
    metrics.close()
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 2
    assert caplog.text.count("no route to host") == 1
