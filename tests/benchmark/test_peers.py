"""The peers are measured on the same sentences, and they are not lamed: padding changes nothing, and Marian learns."""

import argparse
import gc
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import padded
import pytest
import torch
from support import tiny_config

from dragoman.data.subwords import BOS, PAD

BENCH = Path(__file__).parents[2] / "bench"
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the Marian peer needs the extra 'bench' (transformers)"
)


def script(name, *arguments):
    command = [sys.executable, str(BENCH / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("multiple", [1, 8])
def test_padded_batches_hold_every_sentence_once(prepared, multiple):
    data = prepared.encoded("train")
    found = padded.groups(data, 512, np.random.default_rng(1), multiple)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(data)))
    batches = [padded.padded(data, group, multiple) for group in found]
    assert sum(batch.target_tokens for batch in batches) == data.target.lengths.sum()
    assert sum(int((batch.source != PAD).sum()) for batch in batches) == data.source.lengths.sum()
    for group, batch in zip(found, batches, strict=True):
        assert int((batch.target_out != PAD).sum()) == batch.target_tokens
        assert all(tensor.shape[1] % multiple == 0 for tensor in batch.tensors())
        assert max(batch.source.numel(), batch.target_out.numel()) <= 512
        sentence = data.target.sentence(group[0]).tolist()
        assert batch.target_out[0, : len(sentence)].tolist() == sentence
        assert batch.target_in[0, : len(sentence)].tolist() == [BOS, *sentence[:-1]]
        assert (batch.target_in[0, len(sentence) :] == PAD).all()


def test_peers_are_not_lamed_by_empty_slots(prepared):
    """Widths as they come, all batches full but the last, and pairs of one width beside others of the same lengths."""
    data = prepared.encoded("train")
    found = padded.groups(data, 512, np.random.default_rng(1))
    batches = [padded.padded(data, group) for group in found]
    for group, batch in zip(found, batches, strict=True):
        assert (batch.source.shape[1], batch.target_out.shape[1]) == (
            data.source.lengths[group].max(), data.target.lengths[group].max(),
        )  # fmt: skip
    widths = [max(batch.source.shape[1], batch.target_out.shape[1]) for batch in batches]
    assert all((len(group) + 1) * width > 512 - len(group) for group, width in zip(found[:-1], widths, strict=False))
    slots = sum(batch.target_out.numel() for batch in batches)
    assert data.target.lengths.sum() / slots > 0.95


def test_padded_peers_on_a_gpu_are_tried_with_and_without_rounding():
    from peers import Size, by_tokens, results, sizes_of

    options = argparse.Namespace(tokens=[16, 32], own_tokens=[64], multiples=None)
    assert sizes_of("marian", torch.device("cuda"), options) == [(16, 1), (16, 8), (32, 1), (32, 8)]
    assert sizes_of("marian", torch.device("cpu"), options) == [(16, 1), (32, 1)]
    assert sizes_of("dragoman-fp8", torch.device("cuda"), options) == [(64, 0)]
    options.multiples = [8]
    assert sizes_of("marian", torch.device("cuda"), options) == [(16, 8), (32, 8)]
    speeds = {Size(16, 1): 5.0, Size(16, 8): 4.0, Size(32, 1): 6.0, Size(32, 8): 7.0}
    assert by_tokens(speeds) == {16: (Size(16, 1), 5.0), 32: (Size(32, 8), 7.0)}
    found = results({"marian": speeds}, {"marian": (Size(32, 8), 7.0)})
    assert found["best"]["marian"] == {"tokens": 32, "multiple": 8, "target_tokens_per_s": 7.0}
    assert len(found["target_tokens_per_s"]["marian"]) == 4


def modules(config, vocab_size):
    yield padded.Plain(config, vocab_size)
    if find_spec("transformers"):
        from marian import MarianLoss, build

        yield MarianLoss(build(config, vocab_size), config.train.label_smoothing)


def test_padding_does_not_change_the_loss_of_a_peer(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run")
    data = prepared.encoded("valid")
    order = np.argsort(data.target.lengths)
    group = order[[0, -1]]  # the shortest beside the longest
    for module in modules(config, len(prepared.vocabulary)):
        module.eval()
        with torch.no_grad():
            together = module(*padded.padded(data, group).tensors())
            alone = [(module(*batch.tensors()), batch.target_tokens) for batch in
                     (padded.padded(data, group[[index]]) for index in (0, 1))]  # fmt: skip
        mean = sum(loss * count for loss, count in alone) / sum(count for _, count in alone)
        torch.testing.assert_close(together, mean, rtol=1e-4, atol=1e-5)


def test_the_plain_peer_drops_what_is_configured_and_nothing_else(prepared, tmp_path):
    overrides = ["model.dropout=0.3", "model.attention_dropout=0.0", "model.relu_dropout=0.0"]
    module = padded.Plain(tiny_config(prepared.folder, tmp_path / "run", *overrides), 400)
    attention = [each.dropout for each in module.modules() if isinstance(each, torch.nn.MultiheadAttention)]
    others = {name: each.p for name, each in module.named_modules() if isinstance(each, torch.nn.Dropout)}
    assert set(attention) == {0.0}
    assert {p for name, p in others.items() if name.endswith(".dropout")} == {0.0}
    assert {p for name, p in others.items() if not name.endswith(".dropout")} == {0.3}


@needs_transformers
def test_marian_is_of_the_configured_size(prepared, tmp_path):
    """Ours has no biases in attention, and two final norms more; all else is the same."""
    from marian import build

    from dragoman.model import size

    config = tiny_config(prepared.folder, tmp_path / "run")
    shape = config.model
    model = build(config, 400)
    learnt = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    biases = (4 * shape.encoder_layers + 8 * shape.decoder_layers) * shape.d_model
    assert learnt == size.parameters(shape, 400) + biases - 4 * shape.d_model


@needs_transformers
def test_marian_learns_a_few_sentences_by_heart(prepared, tmp_path):
    """So that loss, begin and end marks, and search fit together."""
    from marian import Training, translated

    overrides = [
        "schedule.policy=fixed",
        "schedule.learning_rate=0.002",
        "schedule.warmup_steps=0",
        "model.dropout=0.0",
    ]
    config = tiny_config(prepared.folder, tmp_path / "run", *overrides, "model.d_model=64", "model.encoder_layers=1")
    training = Training(config, prepared, argparse.Namespace(compile="off", minutes=0.01))
    batch = padded.padded(prepared.encoded("valid"), np.arange(6))
    for _ in range(150):
        training.update(batch)
    texts = prepared.text("valid")[:6]
    for beam in (1, 4):
        translations = translated(training, prepared.vocabulary, [source for source, _ in texts], beam, 8)
        assert translations == [target for _, target in texts]


def is_set_aside(thing):
    return not any(each is thing for each in gc.get_objects())


def test_peers_do_not_pay_for_garbage_that_dragoman_does_not_pay_for(prepared, tmp_path):
    from peers import Size, padded_speed, tidy_up

    lives = [1]
    config = tiny_config(prepared.folder, tmp_path / "run")
    options = argparse.Namespace(batches=1, seconds=1.0)
    padded_speed(padded.Plain(config, len(prepared.vocabulary)), config, prepared, Size(256, 1), options)
    assert is_set_aside(lives)
    tidy_up()
    assert not is_set_aside(lives)


@needs_transformers
def test_marian_sets_aside_what_it_compiled(prepared, tmp_path):
    from marian import COMPILING, Training, endless

    lives, config = [1], tiny_config(prepared.folder, tmp_path / "run")
    training = Training(config, prepared, argparse.Namespace(compile="off", minutes=1.0))
    stream = endless(prepared.encoded("train"), 256, 1, multiple=1, pin=False)
    try:
        for _ in range(COMPILING):
            assert not is_set_aside(lives)
            training.train_until(0.0, stream)
        assert is_set_aside(lives)
    finally:
        gc.unfreeze()


@needs_transformers
def test_peers_run(tmp_path):
    found = script(
        "peers.py", "--preset", "tiny", "train.device=cpu", "model.d_model=32", "subwords.vocab_size=400",
        f"data.folder={tmp_path}", "--tokens", "256", "512", "--batches", "2", "--seconds", "5",
        "--peers", "dragoman", "marian", "nn.Transformer",
    )  # fmt: skip
    assert found["best"].keys() == {"dragoman", "marian", "nn.Transformer"}
    assert found["ratio"].keys() == {"marian", "nn.Transformer"}
    assert all(len(sizes) == 2 for sizes in found["target_tokens_per_s"].values())
    best = {
        name: max(size["target_tokens_per_s"] for size in sizes) for name, sizes in found["target_tokens_per_s"].items()
    }
    assert found["ratio"]["marian"] == pytest.approx(best["dragoman"] / best["marian"], abs=1e-3)


@needs_transformers
def test_marian_script_tells_scores_against_time(prepared, tmp_path):
    for name, side in (("en", 0), ("de", 1)):
        text = "".join(f"{pair[side]}\n" for pair in prepared.text("valid")[:4])
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = script(
        "marian.py", "tiny", "train.device=cpu", "model.d_model=32", "--data", str(prepared.folder), "--minutes", "0.01",
        "--evaluate-every", "0.3", "--tokens", "256", "--compile", "off", "--valid", f"dev={tmp_path / 'en'},{tmp_path / 'de'}",
    )  # fmt: skip
    assert found["history"][-1]["train_seconds"] >= 0.6
    assert found["history"][-1]["bleu"].keys() == {"dev"}
    assert found["final"]["dev"]["beam"] == 4
    assert found["target_tokens"] == found["history"][-1]["target_tokens"] > 0


@pytest.mark.parametrize(
    ("code", "said"), [("print(1, 2, sep='\\n')", "2"), ("", ""), ("exit(3)", "ended with code 3: ")]
)
def test_the_last_line_of_a_command_is_told(code, said, tmp_path):
    from gpu import last_line

    assert last_line([sys.executable, "-c", code], 60, tmp_path / "log.txt") == said


def test_the_cpu_bench_runs():
    found = script("cpu.py", "--pairs", "2000", "--tokens", "256", "--steps", "1", "--rounds", "1")
    speeds = [found["target_tokens_per_s"][name] for name in ("dragoman", "nn.Transformer")]
    assert found["ratio"] == pytest.approx(speeds[0] / speeds[1], rel=0.01, abs=6e-4)  # all are rounded
