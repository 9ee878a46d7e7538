"""The toy task of the reference, learnt through the real command line: reversing rows of symbols."""

import json

from support import dragoman

from dragoman import runs

RUN_FILE = """
preset = "tiny"
[run]
folder = "{folder}/run"
[data]
folder = "{folder}/data"
corpus = "reversal"
train_pairs = 10000
valid_pairs = 100
test_pairs = 100
[subwords]
kind = "word"
[train]
device = "cpu"
precision = "fp32"
max_steps = 800
batch_tokens = 2048
[schedule]
policy = "cosine"
learning_rate = 0.003
warmup_steps = 100
[validation]
every = 400
bleu_sentences = 50
[checkpoint]
every = 400
"""


def test_reversal_is_learnt(tmp_path):
    run_file = tmp_path / "run.toml"
    run_file.write_text(RUN_FILE.format(folder=tmp_path), encoding="utf-8")
    dragoman("prepare", str(run_file))
    dragoman("train", str(run_file), "--nproc", "1", env={**__import__("os").environ, "OMP_NUM_THREADS": "1"})
    dragoman("evaluate", str(tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "scores.json").read_text(encoding="utf-8"))[-1]
    assert result["scores"]["bleu"]["score"] > 90
    assert runs.read_rows(tmp_path / "run" / "events.jsonl")[-1]["reason"] == "max_steps"
