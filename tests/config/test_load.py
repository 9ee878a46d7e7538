"""Configuration: every mistake is found, all at once, before anything starts."""

import pytest

from dragoman.config import load_config, presets, to_toml
from dragoman.config.schema import SECTIONS
from dragoman.errors import ConfigError
from dragoman.model.size import parameters


def test_all_problems_at_once_with_path_value_and_remedy(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'preset = "tiny"\n[train]\nmax_stepz = 3\nlog_every = "often"\n[model]\nheads = 3\n[modle]\nx = 1\n',
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as error:
        load_config(file, ["data.max_tokens=900", "nonsense"])
    text = str(error.value)
    assert len(error.value.problems) == 6
    assert "train.max_stepz = 3 is not an option; did you mean train.max_steps?" in text
    assert 'train.log_every = "often"' in text
    assert "model.heads = 3 does not divide model.d_model = 128" in text
    assert "modle" in text
    assert "data.max_tokens = 900" in text
    assert "train.tile_width = 64" in text
    assert "'nonsense' is not of the form section.key=value" in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.max_steps=0", "greater than 0"),
        ("train.max_steps=1.5", "valid integer"),
        ("train.max_steps=true", "valid integer"),
        ("train.precision=fp7", "'auto', 'fp32', 'tf32', 'bf16', 'fp16' or 'fp8'"),
        ("train.betas=[0.9]", "train.betas"),
        ("model.dropout=1.0", "less than 1"),
        ("train.batch_tokens=1000", "not a multiple of train.tile_width = 64"),
        ("schedule.warmup_steps=0", "no meaning"),
        ("schedule.policy=piecewise", "equal length"),
    ],
)
def test_wrong_values_are_named(override, words):
    with pytest.raises(ConfigError, match=override.split("=")[0]) as error:
        load_config("tiny", [override])
    assert words in str(error.value)


def test_long_pairs_need_a_wide_row_and_a_batch_that_holds_one():
    long = ["data.max_tokens=200", "train.batch_tokens=256", "train.tokens_per_gpu=256"]
    for wide_width, words in ((0, "fits neither"), (200, "fits neither"), (512, "does not hold one row")):
        with pytest.raises(ConfigError, match=words):
            load_config("tiny", [*long, f"train.wide_tile_width={wide_width}"])
    assert load_config("tiny", [*long, "train.wide_tile_width=201"]).train.wide_tile_width == 201


def test_order_of_precedence(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('preset = "tiny"\n[train]\nmax_steps = 7\nlog_every = 3\n', encoding="utf-8")
    config = load_config(file, ["train.log_every=5"])
    assert (config.train.max_steps, config.train.log_every) == (7, 5)
    assert config.model.d_model == load_config("tiny").model.d_model
    assert config.train.timeout_seconds == load_config().train.timeout_seconds


@pytest.mark.parametrize("name", [None, *presets()])
@pytest.mark.parametrize("explained", [True, False])
def test_printed_configuration_loads_back_the_same(name, explained, tmp_path):
    config = load_config(name)
    file = tmp_path / "run.toml"
    file.write_text(to_toml(config, explained=explained), encoding="utf-8")
    assert load_config(file) == config


def test_every_key_is_explained():
    unexplained = [
        f"{name}.{key}"
        for name, kind in SECTIONS.items()
        for key, field in kind.model_fields.items()
        if not field.description
    ]
    assert unexplained == []


@pytest.mark.parametrize(("preset", "expected"), [("transformer-base", 60_880_896), ("transformer-big", 209_842_176)])
def test_presets_have_the_sizes_of_the_reference(preset, expected):
    config = load_config(preset)
    assert parameters(config.model, config.subwords.vocab_size) == expected


def test_not_a_file_not_toml(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_config("nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_bytes(b"[train\n\xff")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load_config(broken)


def test_only_preparing_asks_for_corpus_files():
    assert load_config("tiny").data.corpus == "files"
    with pytest.raises(ConfigError, match=r"data\.train_source is empty"):
        load_config("tiny", for_prepare=True)
