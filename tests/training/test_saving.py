"""Checkpoints are written while training goes on: what is written is the state of its step, and a failure loses nothing."""

import errno
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import tiny_config, wait_until

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.config.schema import Parallel
from dragoman.errors import RunError, TrainingError
from dragoman.model.folder import write_tensors
from dragoman.parallel import ranks
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.strategy import Strategy
from dragoman.training import checkpoint, optim, saving, trainer
from dragoman.training.data_check import DataCheck
from dragoman.training.logbook import Logbook
from dragoman.training.owner import Claim
from dragoman.training.saving import Saver
from dragoman.training.state import TrainState
from dragoman.training.trainer import Trainer
from dragoman.training.watchdog import END, Watchdog

EVERY = ("checkpoint.every=2", "checkpoint.keep_last=9", "train.max_steps=6")


def files(run):
    found = runs.RunFolder(run)
    names = ("model.safetensors", "optimizer.safetensors")
    return [(folder / name).read_bytes() for folder in runs.checkpoint_folders(found) for name in names]


class Island(Strategy):
    drifts = True


def after(updates):
    """An island that has come to step 5 with so many updates: the others it skipped."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(updates):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return TrainState(model, optimizer, torch.amp.GradScaler(enabled=False), step=5)


def test_an_island_goes_on_with_its_own_number_of_updates(tmp_path):
    """Adam's correction follows from it: with that of the main rank the resumed run would be another one."""
    main, other = after(5), after(3)
    strategy = Island(Parallel(), Mesh(1, 1, 0, torch.device("cpu")))
    write_tensors(tmp_path / "model.safetensors", main.model.state_dict())
    write_tensors(tmp_path / checkpoint.OPTIMIZER, optim.moments(main.optimizer, main.model))
    runs.write_json(tmp_path / checkpoint.TRAINING, main.numbers() | {"updates": optim.updates(main.optimizer)})
    assert checkpoint.write_own(tmp_path, other, strategy) == tmp_path / "own-00001.safetensors"
    resumed = after(0)
    checkpoint.restore(tmp_path, resumed, strategy)
    for state in (other, resumed):
        state.model(torch.ones(3)).sum().backward()
        state.optimizer.step()
    assert resumed.model.weight.equal(other.model.weight)


def test_a_slow_disk_changes_nothing(prepared, tmp_path, monkeypatch):
    train(tiny_config(prepared.folder, tmp_path / "quick", *EVERY))
    written = checkpoint.write

    def slowly(*arguments):
        time.sleep(0.5)  # several steps are done meanwhile
        return written(*arguments)

    monkeypatch.setattr(checkpoint, "write", slowly)
    train(tiny_config(prepared.folder, tmp_path / "slow", *EVERY))
    assert files(tmp_path / "slow") == files(tmp_path / "quick")
    assert len(files(tmp_path / "slow")) == 6


def test_a_disk_that_is_far_too_slow_costs_checkpoints_not_the_run(prepared, tmp_path, monkeypatch):
    """Ranks would give up on one that waits for its disk; the last checkpoint is waited for all the same."""
    written, hung, run = checkpoint.write, [], runs.RunFolder(tmp_path / "run")
    monkeypatch.setattr(Watchdog, "give_up", lambda dog, silent: hung.append(dog.where))

    def failures():
        return [row for row in runs.read_rows(run.events) if row["event"] == "checkpoint_failed"]

    def slowly(*arguments):
        wait_until(failures)  # of the first one, until the second has failed
        time.sleep(4.0)
        return written(*arguments)

    monkeypatch.setattr(checkpoint, "write", slowly)
    config = tiny_config(prepared.folder, tmp_path / "run", *EVERY, "train.timeout_seconds=2")
    assert train(config) == "max_steps"
    assert [runs.step_of(folder) for folder in runs.checkpoint_folders(run)] == [2, 6]
    (failure,) = failures()
    assert (failure["step"], "raise checkpoint.every" in failure["error"]) == (4, True)
    assert not {"checkpoint", END} & set(hung)


def test_a_validation_may_take_longer_than_a_step(prepared, tmp_path, monkeypatch):
    """However many rows of metrics came before it: these are no validations of no length."""
    usual, hung = Trainer.validate, []
    monkeypatch.setattr(Watchdog, "give_up", lambda dog, silent: hung.append(dog.where))

    def slowly(trainer):
        time.sleep(4.0)
        return usual(trainer)

    monkeypatch.setattr(Trainer, "validate", slowly)
    steps = ("train.max_steps=5", "train.log_every=1", "validation.every=5", "train.timeout_seconds=2")
    assert train(tiny_config(prepared.folder, tmp_path / "run", *steps)) == "max_steps"
    assert "validation" not in hung


def test_probes_on_a_full_disk_end_no_run(prepared, tmp_path, monkeypatch):
    usual = runs.write_text

    def full(path, text):
        if path.parent.name == "translations":
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(path, text)

    monkeypatch.setattr(runs, "write_text", full)
    steps = ("train.max_steps=2", "validation.every=1", "validation.probes=2", "validation.bleu_sentences=4")
    assert train(tiny_config(prepared.folder, tmp_path / "run", *steps)) == "max_steps"


def failing(monkeypatch, steps):
    written = checkpoint.write

    def full_at(run, taken, *arguments):
        if taken.step in steps:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(run, taken, *arguments)

    monkeypatch.setattr(checkpoint, "write", full_at)


def test_a_full_disk_is_told_and_training_goes_on(prepared, tmp_path, monkeypatch):
    failing(monkeypatch, {4})
    said = []
    config = tiny_config(prepared.folder, tmp_path / "run", *EVERY)
    assert train(config, progress=lambda *words: said.append(words)) == "max_steps"
    run = runs.RunFolder(tmp_path / "run")
    assert [runs.step_of(folder) for folder in runs.checkpoint_folders(run)] == [2, 6]
    (failure,) = [row for row in runs.read_rows(run.events) if row["event"] == "checkpoint_failed"]
    assert failure["step"] == 4
    assert "No space left" in failure["error"]
    assert any("step 4 could not be written" in words[3] for words in said)


def test_when_the_last_one_fails_the_run_says_so_and_keeps_the_others(prepared, tmp_path, monkeypatch):
    failing(monkeypatch, {6})
    with pytest.raises(RunError, match="last checkpoint could not be written"):
        train(tiny_config(prepared.folder, tmp_path / "run", *EVERY))
    run = runs.RunFolder(tmp_path / "run")
    assert [runs.step_of(folder) for folder in runs.checkpoint_folders(run)] == [2, 4]
    assert not list(run.checkpoints.glob("*.partial"))


def test_only_what_is_really_being_written_is_waited_for(prepared, tmp_path, monkeypatch):
    """The launcher lets ranks finish it though another one has failed: up to five minutes."""
    monkeypatch.setenv(ranks.LAUNCHED, "1")
    monkeypatch.setenv(ranks.ERROR_FILE, str(tmp_path / "error.json"))
    note, waited, manifest = (
        ranks.saving_note(tmp_path / "error.json"),
        DataCheck.wait_for_all_hosts,
        runs.write_manifest,
    )
    while_waiting, while_writing = [], []

    def wait(check):
        while_waiting.append(note.exists())
        waited(check)

    def write(*arguments):
        while_writing.append(note.exists())
        return manifest(*arguments)

    monkeypatch.setattr(DataCheck, "wait_for_all_hosts", wait)
    monkeypatch.setattr(runs, "write_manifest", write)
    train(tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=1"))
    assert (while_waiting, while_writing) == ([False], [True])
    assert not note.exists()


def test_a_run_that_fails_waits_for_nobody():
    """Neither for the rest of the data to be read, nor for pieces of ranks that are gone."""
    reading, check = threading.Event(), DataCheck(None, alone=False)
    check.thread = threading.Thread(target=reading.wait, daemon=True)
    check.thread.start()
    said, writer = [], checkpoint.Writer()
    writer.start(check.wait_for_all_hosts, said.append)
    check.give_up()
    assert writer.finish(20.0)
    reading.set()
    assert "before all hosts" in str(said[0])
    with pytest.raises(RunError, match=r"ended before moments-00001\.safetensors"):
        checkpoint.wait_for([Path("moments-00001.safetensors")], lambda: True)


def saver(folder, said):
    config = tiny_config(folder / "data", folder / "run")
    mesh, state = Mesh(0, 2, 0, torch.device("cpu")), SimpleNamespace(step=4)
    logbook = SimpleNamespace(
        event=lambda name, step, **facts: said.append((name, facts)), tell=lambda *words: None, host_of={1: "b"}
    )
    return Saver(config, runs.RunFolder(folder / "run"), mesh, state, None, None, folder, {}, None, None, logbook)


def test_what_one_rank_cannot_write_of_its_own_fails_the_checkpoint(tmp_path, monkeypatch):
    """Without it a resumed run would silently be another one."""
    said = []
    own = tmp_path / "own"
    own.mkdir()
    made = saver(tmp_path, said)
    monkeypatch.setattr(checkpoint, "write_own", lambda *_: own / "own-00000.safetensors")
    monkeypatch.setattr(saving, "gather", lambda mesh, mine: [mine, (None, "No space left on device")])
    assert made.own_files(own) is None
    assert said == [("checkpoint_failed", {"error": "rank 1: No space left on device"})]
    assert not own.exists()
    with pytest.raises(RunError, match="last checkpoint could not be written: rank 1"):
        made.writer.finish_well()


def test_what_lies_on_a_disk_that_the_main_rank_does_not_see_is_not_left_there(tmp_path, monkeypatch):
    """It would stay for ever: only the main rank tidies up, where it writes."""
    made, path = saver(tmp_path, []), tmp_path / "own" / "own-00001.safetensors"
    monkeypatch.setattr(checkpoint, "write_own", lambda *_: path)
    monkeypatch.setattr(saving, "gather", lambda mesh, mine: [(None, ""), mine])
    for sees in (True, False):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        monkeypatch.setattr(saving, "from_main", lambda mesh, mine, sees=sees: [path] if sees else [])
        assert made.own_files(path.parent) == ([path] if sees else [])
        assert path.exists() == sees


def test_a_cut_off_rank_of_another_generation_writes_elsewhere(tmp_path):
    run = runs.RunFolder(tmp_path)
    first, second = (checkpoint.own_folder(run, 4, Claim(2, word)) for word in ("ab12", "cd34"))
    assert first != second
    first.mkdir(parents=True)
    checkpoint.tidy(run, 4)
    assert not first.exists()


def test_going_back_does_not_wait_for_what_waits_for_it(tmp_path, monkeypatch):
    """A checkpoint that is being written waits for all hosts' data, of which nobody tells while ranks go back."""
    monkeypatch.setattr(trainer, "gather", lambda mesh, value: [value, value])
    monkeypatch.setattr(trainer, "from_main", lambda mesh, value: value)
    rolling = Trainer.__new__(Trainer)
    rolling.folder, rolling.mesh = runs.RunFolder(tmp_path), Mesh(0, 2, 0, torch.device("cpu"))
    rolling.state = SimpleNamespace(step=4)
    rolling.logbook = Logbook(rolling.folder, rolling.mesh, rolling.state, 8, runs.silent)
    rolling.judge = SimpleNamespace(before=lambda step: None, may_roll_back=lambda step: False)
    rolling.watchdog, rolling.data_check = Watchdog(tmp_path / "stacks", 2.0), DataCheck(None, alone=False)
    rolling.saver = SimpleNamespace(writer=checkpoint.Writer())
    rolling.saver.writer.start(rolling.data_check.wait_for_all_hosts, print)
    ended = []

    def go_back():
        with pytest.raises(TrainingError, match="diverged"):
            rolling.roll_back("no good step")
        ended.append(True)

    thread = threading.Thread(target=go_back, daemon=True)
    thread.start()
    thread.join(20.0)
    rolling.data_check.give_up()
    assert ended


def test_a_rank_whose_own_state_is_in_no_checkpoint_is_named_once(tmp_path, monkeypatch):
    """Under torchrun nobody has looked whether run.folder is shared."""
    made, told = saver(tmp_path, []), []
    made.logbook.tell = lambda stage, words: told.append(words)
    monkeypatch.setattr(checkpoint, "write_own", lambda *_: tmp_path / "own" / "own-00000.safetensors")
    elsewhere = tmp_path / "own" / "own-00001.safetensors"
    monkeypatch.setattr(saving, "gather", lambda mesh, mine: [mine, (elsewhere, "")])
    monkeypatch.setattr(saving, "from_main", lambda mesh, mine: [tmp_path / "own" / "own-00000.safetensors"])
    for _ in range(2):
        assert made.own_files(tmp_path / "own") == [tmp_path / "own" / "own-00000.safetensors"]
    [line] = told
    assert line.startswith("what rank 1 on host b has for itself cannot be seen from here")


@pytest.mark.parametrize(("metric", "good", "better"), [("loss", 3.0, 2.0), ("bleu", 2.0, 3.0)])
def test_a_score_that_is_no_number_is_never_the_best(metric, good, better):
    for none in (math.nan, math.inf, -math.inf):
        assert not checkpoint.better(none, None, metric)
        assert not checkpoint.better(none, good, metric)
        assert checkpoint.better(good, none, metric), "as a run of an earlier version may have kept it"
    assert checkpoint.better(good, None, metric)
    assert checkpoint.better(better, good, metric)
    assert not checkpoint.better(good, better, metric)


def test_copies_to_be_written_are_their_own():
    """What a step changes afterwards, or the next checkpoint copies, is in none of them."""
    memory, tensor = checkpoint.HostMemory(), torch.ones(4)
    [first] = memory.copies("whole", {"a": tensor})
    tensor += 1
    [second] = memory.copies("whole", {"a": tensor})
    assert (first["a"].tolist(), second["a"].tolist()) == ([1.0] * 4, [2.0] * 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_memory_is_made_once():
    """Also where a CUDA graph was recorded in between, which empties torch's own store of it."""
    memory, tensor = checkpoint.HostMemory(), torch.ones(1024, device="cuda")
    places = []
    for _ in range(2):
        [copied] = memory.copies("whole", {"a": tensor})
        places.append(copied["a"].data_ptr())
        assert copied["a"].is_pinned()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tensor + 1
    assert places[0] == places[1]
    [other] = memory.copies("piece", {"a": tensor})
    assert other["a"].data_ptr() != places[0]
