"""Preparing: bad text is counted by reason or refused in words, and nothing is half written."""

import gzip
import lzma

import pytest
import sentencepiece
from support import SENTENCES, config_for, sentences, tiny_config, write_corpus

from dragoman.cli.stages import prepare
from dragoman.config.schema import Subwords
from dragoman.data import clean
from dragoman.data.encode import PreparedData
from dragoman.data.subwords import learn
from dragoman.errors import ConfigError, DataError


def test_every_drop_has_a_reason_and_the_sums_agree(tmp_path):
    bad = [
        ("", "leer"),
        ("   \t ", "leer"),
        (b"caf\xe9 au lait", "Milchkaffee"),
        ("x " * 100, "y " * 100),
        ("a" * 6000, "b"),
        ("one two three four five six seven eight nine ten", "kurz"),
        ("a \x00 b", "a b"),
    ]
    manifest = prepare(config_for(write_corpus(tmp_path, SENTENCES + bad))).manifest["train"]
    assert manifest["dropped"] == {
        "empty side": 2,
        "not UTF-8": 1,
        "over 63 subwords": 1,
        "over 5,000 characters": 1,
        "word ratio over 4": 1,
        "control characters": 1,
    }
    assert manifest["pairs"] == len(SENTENCES)
    assert manifest["read_pairs"] == len(SENTENCES) + len(bad)
    assert manifest["source_bytes"] == sum(len(source) + 1 for source, _ in SENTENCES)
    assert manifest["target_bytes"] == sum(len(target.encode()) + 1 for _, target in SENTENCES)


def test_unequal_sides_are_refused_with_both_counts(tmp_path):
    folder = write_corpus(tmp_path)
    with (folder / "train.de").open("ab") as stream:
        stream.write(b"einer zu viel\n")
    with pytest.raises(DataError, match=r"300 lines and .*train\.de has 301"):
        prepare(config_for(folder))
    assert not (folder / "out").exists()


@pytest.mark.parametrize(("line", "reason"), [(b"caf\xe9", "not UTF-8"), (b"", "empty side")])
def test_validation_sets_are_taken_whole_or_refused(tmp_path, line, reason):
    folder = write_corpus(tmp_path, valid=[*sentences(1, 2, 3, 4), (line, "Satz")])
    with pytest.raises(DataError, match=f"line 5: {reason}"):
        prepare(config_for(folder))
    assert not (folder / "out").exists()


def test_compressed_files_give_the_same_data(tmp_path):
    folder = write_corpus(tmp_path)
    plain = prepare(config_for(folder)).manifest
    with gzip.open(folder / "train.en.gz", "wb") as stream:
        stream.write((folder / "train.en").read_bytes())
    with lzma.open(folder / "train.de.xz", "wb") as stream:
        stream.write((folder / "train.de").read_bytes())
    names = [f"data.train_source={folder}/train.en.gz", f"data.train_target={folder}/train.de.xz"]
    assert prepare(config_for(folder, *names, out="other")).manifest["digest"] == plain["digest"]


def test_a_truncated_archive_is_refused(tmp_path):
    folder = write_corpus(tmp_path)
    packed = gzip.compress((folder / "train.en").read_bytes())
    (folder / "train.en.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"train\.en\.gz: damaged"):
        prepare(config_for(folder, f"data.train_source={folder}/train.en.gz"))
    assert not (folder / "out").exists()


def test_several_corpora_are_one_training_set(tmp_path):
    folder = write_corpus(tmp_path)
    whole = prepare(config_for(folder)).manifest
    (folder / "half.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in SENTENCES[150:]), encoding="utf-8")
    write_corpus(tmp_path, SENTENCES[:150])
    files = f'{{name="a", source="{folder}/train.en", target="{folder}/train.de"}}'
    for weight in (1, 5):  # which matters in training only
        pairs = f'{{name="b", pairs="{folder}/half.tsv", weight={weight}}}'
        corpora = ["data.train_source=", "data.train_target=", f"data.corpora=[{files}, {pairs}]"]
        manifest = prepare(config_for(folder, *corpora, f"data.temperature={weight}", out="both")).manifest
    assert manifest["digest"] == whole["digest"]
    assert list(manifest["settings"]["inputs"])[2:] == [
        f"data.corpora.{key}" for key in ("a.source", "a.target", "b.pairs")
    ]
    with pytest.raises(DataError, match=r"data\.corpora\.b\.pairs = .*no such file"):
        prepare(config_for(folder, *corpora[:2], corpora[2].replace("half.tsv", "none.tsv"), out="none"))


def test_same_settings_are_reused_and_others_need_force(tmp_path):
    folder = write_corpus(tmp_path)
    first = prepare(config_for(folder))
    stamp = (folder / "out" / "manifest.json").stat().st_mtime_ns
    prepare(config_for(folder))
    assert (folder / "out" / "manifest.json").stat().st_mtime_ns == stamp
    with pytest.raises(DataError, match="--force"):
        prepare(config_for(folder, "data.max_tokens=40"))
    (folder / "train.en").write_bytes((folder / "train.en").read_bytes().replace(b"house", b"horse"))
    with pytest.raises(DataError, match="other text"):
        prepare(config_for(folder))
    assert prepare(config_for(folder), force=True).manifest["digest"] != first.manifest["digest"]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    folder = write_corpus(tmp_path)
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(DataError, match="left alone"):
        prepare(config_for(folder), force=True)
    assert (folder / "out" / "thesis.tex").read_text(encoding="utf-8") == "precious"


def test_the_same_seed_gives_the_same_data(tmp_path, prepared):
    again = prepare(tiny_config(tmp_path / "again", tmp_path / "run"))
    assert again.manifest["digest"] == prepared.manifest["digest"]
    other = prepare(tiny_config(tmp_path / "other", tmp_path / "run", "run.seed=2"))
    assert other.manifest["digest"] != prepared.manifest["digest"]


def test_the_seed_matters_where_something_is_drawn(tmp_path):
    """Text from files is the same whatever it is; cuts at random are not."""
    folder = write_corpus(tmp_path)
    first = prepare(config_for(folder))
    assert prepare(config_for(folder, "run.seed=2")).manifest == first.manifest
    prepare(config_for(folder, "subwords.dropout=0.1", out="drawn"))
    with pytest.raises(DataError, match="other settings"):
        prepare(config_for(folder, "subwords.dropout=0.1", "run.seed=2", out="drawn"))


def test_what_is_not_named_is_said_in_the_words_of_the_configuration(tmp_path):
    config = config_for(write_corpus(tmp_path), "data.train_source=", "data.train_target=", "data.valid_source=")
    with pytest.raises(
        ConfigError, match=r"2 problems.*\n.*data\.train_source is empty.*\n.*data\.valid_source is empty"
    ):
        prepare(config)


def test_a_vocabulary_that_cannot_be_learnt_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"subwords\.vocab_size = 30000"):
        prepare(config_for(write_corpus(tmp_path), "subwords.vocab_size=30000"))


def test_cut_ids_are_noticed(tmp_path):
    data = prepare(config_for(write_corpus(tmp_path)))
    path = data.folder / "train.source.ids"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match="not as long as its index says"):
        PreparedData(data.folder).encoded("train")


def test_text_and_ids_agree(prepared):
    data, text = prepared.encoded("valid"), prepared.text("valid")
    assert len(data) == len(text) == 40
    ids = [data.target.sentence(index).tolist() for index in range(len(data))]
    assert prepared.vocabulary.decode(ids) == [target for _, target in text]


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_counted_words_teach_the_same_pieces_as_sentences(tmp_path, monkeypatch, kind):
    section = Subwords(kind=kind, vocab_size=60 if kind == "bpe" else 30)
    texts = [clean.text_of(side) for side in zip(*SENTENCES, strict=True)]
    counted = learn(texts, section, tmp_path / "counted.model")
    train = sentencepiece.SentencePieceTrainer.train
    whole = {"sentence_iterator": (text for pair in SENTENCES for text in pair), "input_format": "text"}
    monkeypatch.setattr("sentencepiece.SentencePieceTrainer.train", lambda **options: train(**options | whole))
    assert learn(texts, section, tmp_path / "whole.model").digest() == counted.digest()
