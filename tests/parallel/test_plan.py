"""The arithmetic of a plan: figures that are known from elsewhere, what follows from them, and the command."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import cluster as bench
import pytest
import torch
from support import as_overrides, tiny_config
from typer.testing import CliRunner

from dragoman import runs
from dragoman.cli import forecast
from dragoman.cli.forecast import unlike
from dragoman.cli.main import app
from dragoman.cli.stages import train
from dragoman.config import load_config
from dragoman.errors import DragomanError, RunError
from dragoman.model.transformer import Transformer
from dragoman.parallel import doctor, plan, wire
from dragoman.parallel.mesh import Mesh
from dragoman.training import facts, start

BASE = 60_880_896  # parameters of transformer-base
REFERENCE = plan.Setting(BASE, 32_768 * 512, 2, 2, 0.3, plan.parse_rate("1gbit"))


def test_the_reference_run_moved_365_megabytes_a_step_and_waited():
    ddp = plan.forecast(REFERENCE, "ddp")
    assert ddp.sent_bytes == pytest.approx(365.3e6, rel=1e-3)
    assert ddp.step_seconds == pytest.approx(3.337, rel=0.05)  # measured on hosts out of namespaces
    assert ddp.efficiency < 0.1
    two_level = plan.forecast(REFERENCE, "two_level")
    assert two_level.sent_bytes == pytest.approx(243.5e6, rel=1e-3)
    assert plan.forecast(REFERENCE, "fsdp").sent_bytes > ddp.sent_bytes


def test_sizes_on_the_wire_are_those_of_the_wire():
    assert plan.BYTES == wire.NUMBER_BYTES


@pytest.mark.parametrize("each", plan.ALL)
def test_a_faster_network_never_makes_a_step_longer(each):
    rates = [plan.parse_rate(rate) for rate in ("10mbit", "100mbit", "1gbit", "10gbit", "1tbit")]
    steps = [plan.forecast(replace(REFERENCE, bytes_per_s=rate), *each).step_seconds for rate in rates]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(REFERENCE.compute_seconds, rel=0.02)
    alone = plan.forecast(replace(REFERENCE, hosts=1), *each)
    assert alone.sent_bytes == 0
    assert alone.efficiency == 1


def test_packing_that_is_slower_than_the_link_is_what_a_step_waits_for():
    slow = replace(REFERENCE, work=plan.Work({"int8": 1e-7}, {"int8": 3e-7}))
    seconds = BASE * 1e-7
    found = plan.forecast(slow, "ddp", "int8")
    first = found.sent_bytes / slow.bytes_per_s / plan.buckets(slow)  # of the buckets: nothing travels beside it
    assert found.exchange_seconds == pytest.approx(seconds + first, rel=0.01)
    assert plan.forecast(slow, "ddp") == plan.forecast(REFERENCE, "ddp"), "fp32 is not packed"
    agreeing = plan.forecast(slow, "local", "int8")
    travel = agreeing.sent_bytes / slow.bytes_per_s
    assert agreeing.exposed_seconds == pytest.approx(travel + 3 * seconds / slow.inner_steps)


def test_processes_of_a_host_without_gpus_exchange_among_themselves_first():
    """At every step, whatever happens between hosts; but for strategies that make no difference between ranks."""
    slow = replace(REFERENCE, work=plan.Work(inside=2e-8), bytes_per_s=plan.parse_rate("1tbit"), gloo=True)
    for strategy in ("two_level", "local", "streaming"):
        alone = plan.forecast(replace(slow, ranks_per_host=1), strategy, "fp32")
        inside = plan.inside_seconds(slow, strategy)
        assert inside >= BASE * 2e-8
        most = alone.step_seconds + inside
        assert (
            alone.step_seconds + inside - plan.window(slow)
            <= plan.forecast(slow, strategy, "fp32").step_seconds
            <= most
        )
        assert plan.inside_seconds(replace(slow, gloo=False), strategy) == 0, "GPUs of a host hardly notice"
    for strategy in ("ddp", "fsdp", "hybrid"):
        assert plan.inside_seconds(slow, strategy) == 0


def test_pieces_over_gloo_take_their_travel_or_their_work_whichever_is_more():
    """And computing waits for them."""
    slow = replace(REFERENCE, work=plan.Work(pieces=1e-9), gloo=True)
    for rate, each in (("1tbit", 1e-9), ("1gbit", plan.gloo_turns(4) / plan.parse_rate("1gbit"))):
        found = plan.forecast(replace(slow, bytes_per_s=plan.parse_rate(rate)), "fsdp")
        assert found.exposed_seconds == pytest.approx(found.sent_bytes * each)


@pytest.mark.parametrize(("rate", "shorter"), [("1gbit", "work"), ("1tbit", "travel")])
def test_hybrid_over_gloo_takes_its_travel_and_the_work_that_was_tried_out(rate, shorter):
    """Some of the shorter one goes on beside the other."""
    tried = plan.Work(inside=1e-8, leaders={"fp32": 2e-8}, hybrid=1e-8)
    found = plan.forecast(replace(REFERENCE, work=tried, gloo=True, bytes_per_s=plan.parse_rate(rate)), "hybrid")
    took = {"travel": found.sent_bytes / plan.parse_rate(rate), "work": BASE * 1e-8}
    assert min(took, key=took.get) == shorter
    assert found.exposed_seconds == pytest.approx(sum(took.values()) - plan.BY_TURNS * took[shorter])


def test_ranks_of_a_host_leave_the_work_between_hosts_to_their_first():
    """two_level is held against what was tried out with leaders alone, not with all ranks."""
    both = plan.Work({"int8": 4e-8}, inside=1e-8, leaders={"int8": 2e-8})
    slow = replace(REFERENCE, work=both, bytes_per_s=plan.parse_rate("1tbit"), gloo=True)
    found = plan.forecast(slow, "two_level", "int8")
    assert found.exchange_seconds == pytest.approx(BASE * (2e-8 + 1e-8), rel=0.01)
    assert plan.forecast(slow, "ddp", "int8").exchange_seconds == pytest.approx(BASE * 4e-8, rel=0.01)


def test_only_the_last_micro_batch_hides_an_exchange():
    fast = replace(REFERENCE, bytes_per_s=plan.parse_rate("20gbit"))
    for strategy in ("ddp", "two_level"):
        one, four = (plan.forecast(replace(fast, micro_batches=count), strategy) for count in (1, 4))
        assert one.exposed_seconds == one.exchange_seconds / plan.buckets(fast), "all but the last bucket is hidden"
        assert four.exposed_seconds == pytest.approx(four.exchange_seconds - plan.window(fast) / 4)
        assert four.exposed_seconds > 2 * one.exposed_seconds


@pytest.mark.parametrize(
    ("rate", "latency", "chosen"),
    [
        ("100gbit", 0.0, "ddp"),
        ("10gbit", 0.0, "two_level"),
        ("8gbit", 0.0, "ddp, bf16"),
        ("1gbit", 0.0, "streaming, bf16"),
        ("20mbit", 0.0, "streaming, int8"),
    ],
)
def test_the_plainest_that_is_fast_enough_is_recommended(rate, latency, chosen):
    setting = replace(REFERENCE, bytes_per_s=plan.parse_rate(rate), latency_seconds=latency)
    assert plan.recommended(plan.forecasts(setting)).name == chosen


@pytest.mark.parametrize("rate", ["3gbit", "9gbit", "25gbit"])
def test_what_travels_beside_no_computing_is_waited_for(rate):
    """An embedding of a quarter of the model: gathered first, scattered last, and the last gradient of all."""
    setting = replace(REFERENCE, ranks_per_host=1, bytes_per_s=plan.parse_rate(rate), ready_last=32_768 * 512)
    travel = 4 * setting.ready_last / setting.bytes_per_s
    sharded, ddp = plan.forecast(setting, "fsdp"), plan.forecast(setting, "ddp")
    assert sharded.exposed_seconds >= travel  # half of it twice, between two
    assert ddp.exposed_seconds >= travel * 0.999
    assert plan.forecast(replace(setting, ready_last=0), "ddp").exposed_seconds <= ddp.exposed_seconds
    assert plan.forecast(replace(setting, hosts=1), "fsdp").exposed_seconds == 0


def test_every_block_of_fsdp_waits_for_a_far_network():
    """Twice to be gathered and once to be scattered, for every other rank; with the others it is a round for each bucket."""
    near, far = (
        plan.forecast(replace(REFERENCE, blocks=12, compute_seconds=0.0, latency_seconds=seconds), "fsdp")
        for seconds in (0.0, 0.02)
    )
    assert far.exchange_seconds - near.exchange_seconds == pytest.approx(3 * 12 * 3 * 0.02)


def test_pieces_are_for_memory_and_never_recommended_for_speed():
    for rate in ("100mbit", "1gbit", "3gbit", "9gbit", "25gbit", "100gbit"):
        for compute in (0.02, 0.3, 3.0):
            setting = replace(REFERENCE, gathered_once=0, bytes_per_s=plan.parse_rate(rate), compute_seconds=compute)
            assert plan.recommended(plan.forecasts(setting)).strategy not in ("fsdp", "hybrid")


def test_islands_that_are_no_hosts_are_not_planned():
    words = ["plan", "tiny", NOT_PREPARED, "--hosts", "2", "--gpus", "2", "--compute-seconds", "1"]
    result = CliRunner().invoke(app, [*words, "parallel.ranks_per_island=1"])
    assert "parallel.ranks_per_island = 1: islands are planned as hosts, of 2 ranks here" in str(result.exception)
    assert CliRunner().invoke(app, [*words, "parallel.ranks_per_island=2"]).exit_code == 0


@pytest.mark.parametrize("text", ["fast", "1", "1 GB/s", "", "0gbit", "0.0 Mbit/s", "1.2.3gbit"])
def test_a_bandwidth_that_is_none_is_refused(text):
    with pytest.raises(DragomanError, match="write it as 1gbit"):
        plan.parse_rate(text)


def test_how_long_a_cpu_computes_is_not_guessed():
    result = CliRunner().invoke(app, ["plan", "tiny", NOT_PREPARED, "train.device=cpu"])
    assert "add --run, a run of this model on it, or --compute-seconds" in str(result.exception)


def test_on_one_host_nothing_is_tried_out_for_nothing(monkeypatch):
    monkeypatch.setattr(forecast, "work", lambda *given: pytest.fail("nothing of it would be planned"))
    result = CliRunner().invoke(
        app, ["plan", "tiny", NOT_PREPARED, "train.device=cpu", "--hosts", "1", "--gpus", "4", "--compute-seconds", "1"]
    )
    assert "what ranks of one host exchange is not planned" in result.stdout


def test_the_command_takes_the_time_of_computing_from_a_run(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run")
    train(config)
    own = as_overrides(config)

    def planned(*words):
        result = CliRunner().invoke(app, ["plan", "tiny", *own, "--bandwidth", "100mbit", "--run", *words])
        return result.exception or json.loads(result.stdout.splitlines()[-1])

    found = [planned(str(tmp_path / "run"), "--gpus", gpus) for gpus in ("1", "2")]
    seconds = [each["setting"]["compute_seconds"] for each in found]
    assert 0 < seconds[0] < 10
    tried = [each["setting"]["work"] for each in found]
    for kind in ("buckets", "agreements"):
        assert tried[0][kind].keys() == plan.BYTES.keys(), "tried out on this machine, for every wire"
        assert all(seconds > 0 for seconds in tried[0][kind].values())
    assert tried[0]["leaders"] == {}, "nobody else is on the host"
    assert tried[1]["leaders"].keys() == plan.BYTES.keys(), (
        "two processes of a host exchange something among themselves"
    )
    assert seconds[1] == pytest.approx(seconds[0] / 2)
    assert isinstance(planned(str(tmp_path / "nothing")), DragomanError)
    other = planned(str(tmp_path / "run"), "model.d_ff=128", "model.dropout=0.3")
    assert "it trained another model (model.d_ff = 64 there and 128 here); take another run" in str(other)
    environment = tmp_path / "run" / "environment.json"
    known = runs.read_json(environment)
    runs.write_json(environment, known | {"tokens_per_gpu": 128})  # as "auto" would have found out
    assert [
        planned(str(tmp_path / "run"), "--gpus", gpus, "train.tokens_per_gpu=auto")["setting"]["micro_batches"]
        for gpus in ("1", "2")
    ] == [4, 2]
    assert planned(str(tmp_path / "run"))["setting"]["micro_batches"] == 1, "as the run file says"
    for lost, told in (
        (environment.unlink, "environment.json is missing"),
        (lambda: environment.write_text('{"world', encoding="utf-8"), "environment.json cannot be read"),
        (lambda: environment.write_text("{}", encoding="utf-8"), "environment.json is empty or torn"),
    ):
        lost()
        found = planned(str(tmp_path / "run"))
        assert isinstance(found, RunError)
        assert told in str(found)


def expenses(*words, monkeypatch):
    """A step of 6,400 slots, of which 6,272 hold a token: 62.72 million tokens are 10,000 steps."""
    monkeypatch.setattr(forecast, "work", lambda device, ranks, close: plan.Work())
    given = ["train.batch_tokens=6400", "train.tokens_per_gpu=1600", NOT_PREPARED, "--tokens", "62.72e6"]
    result = CliRunner().invoke(app, ["plan", "tiny", *given, *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1]), result.stdout


def test_hours_and_cost_follow_from_tokens_and_price(monkeypatch):
    alone = ["--hosts", "1", "--gpus", "4", "--compute-seconds", "0.36"]
    found, table = expenses(*alone, "--price", "2.5", monkeypatch=monkeypatch)
    assert (found["tokens"], found["price"]) == (62.72e6, 2.5)
    ddp = found["forecasts"][0]
    assert ddp["step_seconds"] == pytest.approx(0.36), "one host waits for no network"
    assert (ddp["hours"], ddp["cost"]) == (pytest.approx(1.0), pytest.approx(10.0))
    row = next(line for line in table.splitlines() if line.split()[:1] == ["ddp"])
    assert row.split()[-3:] == ["1.0", "h", "10"]
    found, _ = expenses(*alone, "--price", "0", monkeypatch=monkeypatch)
    assert all("hours" in each and "cost" not in each for each in found["forecasts"])


def test_waiting_for_the_network_costs_hours_and_money(monkeypatch):
    words = ["--hosts", "2", "--gpus", "3", "--compute-seconds", "0.001", "--bandwidth", "10mbit", "--price", "2"]
    found, _ = expenses(*words, monkeypatch=monkeypatch)
    for each in found["forecasts"]:
        assert each["hours"] == pytest.approx(10_000 * each["step_seconds"] / 3600)
        assert each["cost"] == pytest.approx(each["hours"] * 12), "six GPUs of 2 an hour"
    costs = [each["cost"] for each in found["forecasts"]]
    assert costs[0] > 2 * min(costs), "ddp waits more than others"


@pytest.mark.parametrize(("strategy", "hosts", "tells"), [("fsdp", 1, True), ("fsdp", 2, False), ("local", 2, True)])
def test_a_run_whose_waiting_is_not_known_does_not_tell_the_time_of_computing(strategy, hosts, tells):
    config = load_config("tiny", [f"parallel.strategy={strategy}", "train.tokens_per_gpu=1024", NOT_PREPARED])
    assert (unlike(config, config, environment(config, hosts=[{}] * hosts)) == "") is tells


NOT_PREPARED = "data.folder=nothing-is-here"


def environment(config, **others):
    model = {"vocab_size": config.subwords.vocab_size}
    return {"model": model, "device": "cuda", "precision": "bf16", "hosts": [{}]} | others


@pytest.mark.parametrize(
    ("overrides", "others", "told"),
    [
        ([], {}, ""),
        (["train.precision=bf16"], {}, ""),
        (["train.precision=fp32"], {}, "it computed in bf16, and train.precision is 'fp32' here"),
        (["train.device=cpu"], {}, "it computed on cuda, and train.device = 'cpu' plans for cpu"),
        ([], {"device": "cpu"}, "it computed on cpu, and train.device = 'auto' plans for cuda"),
        (["train.device=cpu"], {"device": "cpu"}, ""),
        ([], {"model": {"vocab_size": 123}}, "it trained another model (a vocabulary of 123 pieces there and "),
    ],
)
def test_a_run_on_another_device_or_in_other_numbers_does_not_tell_it_either(overrides, others, told):
    config = load_config("tiny", [NOT_PREPARED, *overrides])
    found = unlike(config, config, environment(config, **others))
    assert found.startswith(told)
    assert bool(found) == bool(told)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "local"])
def test_plan_doctor_and_trainer_count_what_learns(monkeypatch, strategy):
    config = load_config(
        "tiny",
        [
            NOT_PREPARED,
            "train.device=cpu",
            "train.tokens_per_gpu=1024",
            'train.freeze=["encoder.*"]',
            f"parallel.strategy={strategy}",
        ],
    )
    monkeypatch.setattr(forecast, "work", lambda device, ranks, close: plan.Work())
    setting = forecast.setting_of(config, 2, 1, 1.0, "1gbit", 0.0)
    model = Transformer(config.model, config.subwords.vocab_size)
    start.freeze(model, config.train.freeze)
    hosts, share = [{"ranks": [0]}, {"ranks": [1]}], facts.share_of(config, Mesh(0, 2, 0, torch.device("cpu")))
    found = facts.exchange(config, hosts, share, model, gloo=True)
    assert found["sent_bytes"] == round(plan.sent_bytes(setting, strategy, "fp32"))
    assert setting.frozen == sum(tensor.numel() for tensor in model.encoder.parameters())
    gathered_too = replace(setting, parameters=setting.parameters + setting.frozen, frozen=0)
    assert plan.sent_bytes(setting, strategy, "fp32") < plan.sent_bytes(gathered_too, strategy, "fp32")
    told = []
    monkeypatch.setattr(doctor, "examine", lambda *given: told.extend(given[2:]) or iter(()))
    assert CliRunner().invoke(app, ["doctor", "tiny", *as_overrides(config)]).exit_code == 0
    assert told[1] == 4 * setting.parameters
    assert told[0] == 4 * (3 * setting.parameters + setting.frozen) + 16


def test_the_bench_holds_against_its_measurements_what_plan_says(monkeypatch):
    """Nothing of a forecast comes from the strategy that it is compared with."""
    work = plan.Work({"int8": 1e-7}, {"int8": 2e-7}, inside=1e-8)
    asked = []
    monkeypatch.setattr(
        bench, "Lab", lambda hosts, folder, latency_ms: nullcontext(SimpleNamespace(limit=lambda rate: None))
    )
    found = {"step_seconds": 0.2, "sent_bytes": 1e6, "steps": 5}
    ranks = SimpleNamespace(
        measure=lambda cell, seconds: found, work=lambda close: asked.append(close) or work, end=lambda: None
    )
    monkeypatch.setattr(bench, "Ranks", lambda *_: ranks)
    cells = [bench.Cell("ddp"), bench.Cell("ddp", "int8"), bench.Cell("streaming", "int8")]
    rows = bench.speeds(2, 1, cells, ["", "1gbit"], Namespace(parameters=20_000_000, seconds=0.0, latency_ms=0.0))
    setting = plan.Setting(20_000_000, 0, 2, 1, 0.2, plan.parse_rate("1gbit"), work=work, gloo=True)
    planned = [plan.forecast(setting, cell.strategy, cell.wire).step_seconds for cell in cells]
    assert [row["predicted_ms"] for row in rows[3:]] == [round(1e3 * seconds, 1) for seconds in planned]
    assert asked == [1], "tried out once, before any cell and any limit"
