"""Several corpora in one run: their shares, stages, and a resume in the middle of them."""

import pytest
from support import tiny_config

from dragoman.cli.stages import prepare, train
from dragoman.config import load_config
from dragoman.config.load import to_toml
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.runs import RunFolder, read_json
from dragoman.training.facts import stages_of

STAGES = """
[[data.corpora]]
name = "small"
pairs = "{folder}/small.tsv"
weight = 2.0

[[data.corpora]]
name = "large"
pairs = "{folder}/large.tsv"

[[data.stages]]
from_step = 4
weights = {{ small = 0.0 }}
"""


@pytest.fixture
def mixed(prepared, tmp_path):
    """A run file with the sentences of the embedded corpus in two files of 100 and 400 pairs."""
    pairs = prepared.text("train")
    for name, chosen in (("small", pairs[:100]), ("large", pairs[100:500]), ("valid", prepared.text("valid"))):
        lines = "".join(f"{source}\t{target}\n" for source, target in chosen)
        (tmp_path / f"{name}.tsv").write_text(lines, encoding="utf-8")
    plain = tiny_config(
        tmp_path / "data", tmp_path / "run", "data.corpus=files", f"data.valid_source={tmp_path}/valid.tsv"
    )
    text = to_toml(plain)
    head, tail = text.split("[clean]")
    run_file = tmp_path / "run.toml"
    run_file.write_text(head + STAGES.format(folder=tmp_path) + "\n[clean]" + tail, encoding="utf-8")
    prepare(load_config(run_file))
    return run_file


def test_an_empty_corpus_among_several_is_refused_by_name(mixed, tmp_path):
    (tmp_path / "small.tsv").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"small\.tsv: holds no pair; .* leave the corpus out"):
        prepare(load_config(mixed, [f"data.folder={tmp_path}/other"]))
    assert not list(tmp_path.glob("other*"))


def test_shares_and_stages_follow_from_the_configuration(mixed, tmp_path):
    config = load_config(mixed)
    data = prepare(config)
    first, second = stages_of(data, config)
    assert [(corpus.end, corpus.times) for corpus in first.mixture] == [(100, 2.0), (500, 1.0)]
    assert [(corpus.end, corpus.times) for corpus in second.mixture] == [(100, 0.0), (500, 1.0)]
    assert (first.from_step, second.from_step) == (0, 4)
    flat = stages_of(data, load_config(mixed, ["data.temperature=100.0"]))[0].mixture
    assert flat[0].times * 100 == pytest.approx(flat[1].times * 400, rel=0.02)
    data.manifest["train"]["corpora"]["large"]["pairs"] = 0  # as if cleaning had left nothing of it
    with pytest.raises(DataError, match="from step 4 on only corpora have a weight of which no pair is left"):
        stages_of(data, config)
    again = tmp_path / "again.toml"
    again.write_text(to_toml(config), encoding="utf-8")
    assert load_config(again) == config


def in_other_order(run_file):
    text = run_file.read_text(encoding="utf-8")
    head, small, rest = text.split("[[data.corpora]]\n")
    large, tail = rest.split("[[data.stages]]")
    return "[[data.corpora]]\n".join([head, large, small + "[[data.stages]]" + tail])


def test_weights_go_by_name_and_never_to_the_pairs_of_another_corpus(mixed, tmp_path):
    """Ids lie in the order in which corpora were prepared."""
    data, config = prepare(load_config(mixed)), load_config(mixed)
    other = tmp_path / "other.toml"
    other.write_text(in_other_order(mixed), encoding="utf-8")
    swapped = load_config(other)
    assert [corpus.name for corpus in swapped.data.corpora] == ["large", "small"]
    without = config.data.model_copy(update={"corpora": config.data.corpora[1:], "stages": ()})
    for wrong in (swapped, config.model_copy(update={"data": without})):
        with pytest.raises(
            DataError, match=r"prepared from small, large, the run file names large.* or put data\.corpora back"
        ):
            stages_of(data, wrong)


@pytest.mark.parametrize("weight", ["1e-9", "1e300"])
def test_weights_that_leave_an_epoch_without_pairs_are_refused_in_words(mixed, weight):
    overrides = [f"data.corpora.{name}.weight={weight}" for name in ("small", "large")]
    with pytest.raises(DataError, match=r"from step 0 on the weights .* make epochs of at most .* pairs"):
        stages_of(prepare(load_config(mixed)), load_config(mixed, overrides))
    times = [
        corpus.times
        for corpus in stages_of(prepare(load_config(mixed)), load_config(mixed, ["data.temperature=0.001"]))[0].mixture
    ]
    assert times == pytest.approx([0.0, 1.5])


def test_a_run_goes_on_in_the_middle_of_its_stages(mixed, tmp_path):
    def run(name, *parts):
        for steps in parts:
            overrides = [f"run.folder={tmp_path / name}", f"train.max_steps={steps}"]
            train(load_config(mixed, overrides), resume=steps != parts[0])
        return (RunFolder(tmp_path / name).checkpoint(8) / "model.safetensors").read_bytes()

    straight = run("straight", 8)
    assert run("before", 3, 8) == straight
    assert run("at", 4, 8) == straight
    assert run("after", 6, 8) == straight
    saved = read_json(RunFolder(tmp_path / "straight").checkpoint(8) / "training.json")
    assert saved["position"][4] == 1, "the second stage"
    with pytest.raises(RunError, match=r"data\.corpora, their weights"):
        train(load_config(mixed, [f"run.folder={tmp_path / 'at'}", "data.corpora.large.weight=3.0"]), resume=True)


def test_stages_that_make_no_sense_are_refused(mixed):
    for line, words in (
        ("weights = { other = 1.0 }", "no corpus is called 'other'"),
        ("weights = { small = 0.0, large = 0.0 }", "all weights are 0"),
    ):
        text = mixed.read_text(encoding="utf-8").replace("weights = { small = 0.0 }", line)
        wrong = mixed.with_name("wrong.toml")
        wrong.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            load_config(wrong)
