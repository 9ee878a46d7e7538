"""`dragoman bench` as a user meets it: a table, one JSON line, one line for a mistake."""

import json
import subprocess
import sys

import pytest
from support import as_overrides, dragoman, tiny_config

SHARED = {"bench", "steps", "target_tokens", "target_tokens_per_s", "steps_per_s", "row_fill", "device_name", "data"}
SPEED = {"source_tokens_per_s", "step_seconds", "mfu", "peak_tflops", "peak_process_bytes", "precision", "compile"}
KEYS = {
    "train": SHARED
    | SPEED
    | {"data_wait_share", "first_step_seconds", "idle_seconds", "exposed_seconds", "data_seconds"},
    "step": SHARED | SPEED | {"forward_seconds", "backward_seconds", "optimizer_seconds", "other_seconds"},
    "loader": SHARED | {"prefetched_target_tokens_per_s", "pinned", "restart_seconds", "large_restart_seconds"},
}


@pytest.mark.parametrize("command", KEYS)
def test_a_table_and_one_json_line(command, prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run")
    path = tmp_path / "figures" / "found.json"
    result = dragoman("bench", command, "tiny", *as_overrides(config), "--steps", "2", "--json", str(path))
    *table, last = result.stdout.splitlines()
    found = json.loads(last)
    assert found["bench"] == command
    assert KEYS[command] <= found.keys()
    assert json.loads(path.read_text(encoding="utf-8")) == found
    assert any("tokens/s" in line for line in table)
    assert str(prepared.folder) in found["data"]


def test_several_ranks_tell_it_once(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    command = [*launcher, "-m", "dragoman", "bench", "train", "tiny", *as_overrides(config), "--steps", "2"]
    result = subprocess.run([*command, "--warmup", "1"], capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [each["ranks"] for each in found] == [2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "tiny", "train.max_stepz=3"], "did you mean train.max_steps?"),
        (["step", "nowhere.toml"], "no such file, nor a preset"),
        (["loader", "tiny", "train.device=cuda"], "torch sees no GPU here"),
    ],
)
def test_mistakes_are_one_line(arguments, words, tmp_path):
    result = dragoman("bench", *arguments, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("dragoman: ")
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from dragoman.cli.main import app\n"
        "try:\n    app(['bench', 'train', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'rich.table'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--peak-tflops" in result.stdout


def test_a_benchmark_that_is_stopped_says_so(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.log_every=1")
    words = [sys.executable, "-m", "dragoman", "bench", "train", "tiny", *as_overrides(config), "--steps", "100000"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as bench:
        next(line for line in bench.stderr if line.startswith("training"))
        bench.terminate()
        said = bench.stderr.read()
        assert bench.wait(300) == 143
    assert "dragoman: terminated before all steps were measured; nothing is kept" in said
    assert "Traceback" not in said
