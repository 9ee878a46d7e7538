"""Configuration: every mistake is found, all at once, before anything starts."""

import pytest

from dragoman.config import load_config, presets, to_toml
from dragoman.config.load import toml_value
from dragoman.config.schema import SECTIONS, Corpus
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
        for key, field in (kind.model_fields | Corpus.model_fields).items()
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


TWO_CORPORA = """preset = "tiny"
[data]
temperature = 5
[[data.corpora]]
name = "news"
source = "news.en"
target = "news.de"
[[data.corpora]]
name = "web.2"
pairs = "web.tmx.zst"
weight = 0.5
"""


def two_corpora(folder, *overrides, text=TWO_CORPORA):
    file = folder / "run.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, list(overrides), for_prepare=True)


VALID = ["data.valid_source=v.en", "data.valid_target=v.de"]


@pytest.mark.parametrize("explained", [True, False])
def test_corpora_are_tables_and_print_as_such(tmp_path, explained):
    config = two_corpora(tmp_path, *VALID)
    assert [(corpus.name, corpus.weight) for corpus in config.data.corpora] == [("news", 1.0), ("web.2", 0.5)]
    printed = to_toml(config, explained=explained)
    assert printed.count("\n[[data.corpora]]\n") == 2
    assert two_corpora(tmp_path, text=printed) == config
    as_value = toml_value(config.model_dump()["data"]["corpora"])
    assert load_config("tiny", [f"data.corpora={as_value}"]).data.corpora == config.data.corpora


def test_one_key_of_one_corpus_can_be_overridden(tmp_path):
    config = two_corpora(tmp_path, *VALID, "data.corpora.news.weight=3", "data.corpora.web.2.format=tmx")
    assert [(corpus.weight, corpus.format) for corpus in config.data.corpora] == [(3.0, "auto"), (0.5, "tmx")]
    with pytest.raises(ConfigError, match="no corpus of that name"):
        two_corpora(tmp_path, *VALID, "data.corpora.nws.weight=3")
    for nonsense in ("5", "words", "[5]"):
        with pytest.raises(ConfigError, match=r"2 problems"):
            load_config("tiny", [f"data.corpora={nonsense}", "data.corpora.news.weight=3"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('target = "news.de"', "", "data.corpora.news needs either source and target or pairs"),
        ('target = "news.de"', 'pairs = "x.tsv"', "data.corpora.news needs either source and target or pairs"),
        ('target = "news.de"', 'target = "news.de"\npairs = "x.tsv"', "and not both"),
        ('pairs = "web.tmx.zst"', "", "data.corpora.web.2 needs either"),
        ('"web.2"', '"news"', "data.corpora.news occurs 2 times"),
        ('"web.2"', '"../web"', "data.corpora.1.name"),
        ('name = "web.2"\n', "", "data.corpora.1.name is missing"),
        ("weight = 0.5", "weight = 0", "greater than 0"),
        (
            "weight = 0.5",
            "wieght = 0.5",
            "data.corpora.1.wieght = 0.5 is not an option; did you mean data.corpora.1.weight?",
        ),
        ("temperature = 5", 'train_source = "a"', "data.train_source and data.corpora exclude each other"),
        ("temperature = 5", 'corpus = "grammar"', 'no meaning with data.corpus = "grammar"'),
        ("temperature = 5", "temperature = 0", "data.temperature = 0"),
    ],
)
def test_rules_of_corpora(tmp_path, old, new, words):
    assert old in TWO_CORPORA
    with pytest.raises(ConfigError) as error:
        two_corpora(tmp_path, *VALID, text=TWO_CORPORA.replace(old, new, 1))
    assert words in str(error.value)


def test_one_wrong_key_of_a_corpus_is_one_problem(tmp_path):
    """Its table cannot be read, so nothing is known of what names its corpora have."""
    text = (
        TWO_CORPORA.replace("weight = 0.5", "weight = 0") + "[[data.stages]]\nfrom_step = 5\nweights = { news = 2.0 }\n"
    )
    with pytest.raises(ConfigError) as error:
        two_corpora(tmp_path, *VALID, text=text)
    assert len(error.value.problems) == 1
    with pytest.raises(ConfigError) as error:
        two_corpora(tmp_path, text=text)
    assert [problem.split(" ")[0] for problem in error.value.problems] == ["data.corpora.1.weight", "data.valid_source"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.tokenized=true"], "data.tokenized = true needs subwords.model"),
        (["data.tokenized=true", "subwords.model=m", "data.corpus=grammar"], "no meaning"),
        (["data.tokenized=true", "subwords.model=m", "subwords.dropout=0.1"], "subwords.dropout = 0.1 cannot cut"),
        (["subwords.variants=2"], "subwords.variants = 2 would all be the same"),
        (["subwords.dropout=0.1", "subwords.kind=word"], 'needs subwords.kind = "bpe" or "unigram", not "word"'),
    ],
)
def test_rules_of_subwords(overrides, words):
    with pytest.raises(ConfigError) as error:
        load_config("tiny", overrides)
    assert words in str(error.value)
