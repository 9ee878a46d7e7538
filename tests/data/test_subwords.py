"""Subwords: existing vocabularies and text that is cut already are used as they are; random cuts follow from the seed."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import SENTENCES, config_for, tiny_config, write_corpus

from dragoman.cli.stages import prepare, train
from dragoman.config.schema import Subwords
from dragoman.data.clean import text_of
from dragoman.data.encode import PreparedData
from dragoman.data.subwords import EOS, UNK, Cutter, Vocabulary, learn
from dragoman.errors import DataError
from dragoman.translate import Translator

BESIDE = Path(__file__).parents[3] / "shared" / "data" / "reference"  # of the repository
REFERENCE = Path(
    os.environ.get("DRAGOMAN_REFERENCE", BESIDE)
)  # a folder of OpenSeq2Seq: m_common.model, tokenised text
PAIRS = [(f"the old house number {n} has a garden", f"das alte Haus Nummer {n} hat einen Garten") for n in range(400)]
TEXTS = [source for source, _ in PAIRS]


def learnt(path, kind="bpe", size=90, **keys):
    path.parent.mkdir(exist_ok=True)
    return learn(map(text_of, zip(*PAIRS, strict=True)), Subwords(vocab_size=size, kind=kind, **keys), path)


@pytest.fixture(scope="module")
def given_model(tmp_path_factory):
    return learnt(tmp_path_factory.mktemp("given") / "m_common.model")


def cut(vocabulary, text):
    return " ".join(vocabulary.processor.encode(text, out_type=str))


def rows(cutter, texts):
    """Ids of every text, as lists."""
    ids, lengths = cutter.encode(text_of(texts), 2)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def written(folder, change, parts=("train", "valid")):
    """Overrides that name files of the changed pairs."""
    names = []
    for part, pairs in zip(parts, (PAIRS, PAIRS[:20]), strict=True):
        for side, key in enumerate(("source", "target")):
            path = folder / f"{part}.clean.{key}.BPE_common.32K.tok"
            path.write_text("".join(change(pair[side]) + "\n" for pair in pairs), encoding="utf-8")
            names.append(f"data.{part}_{key}={path}")
    return ["data.corpus=files", "clean.overlap=false", *names]


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        ([], {"sample_pairs": 300}),
        (["subwords.sample_pairs=100"], {"sample_pairs": 100}),
        (["subwords.kind=unigram"], {"sample_pairs": 75}),
        (["data.target_lang=zh"], {"sample_pairs": 100}),
        (["data.target_lang=zh", "subwords.joint=false"], {"source_sample_pairs": 300, "sample_pairs": 100}),
    ],
)
@pytest.mark.parametrize("shards", [1000, 40])
def test_what_sentencepiece_holds_whole_is_bounded(tmp_path, monkeypatch, change, sizes, shards):
    """Unigram holds all sentences, BPE those without spaces, as one word each: their characters are bounded, not only pairs."""
    taken = []

    def counting(texts, *rest):
        texts = list(texts)
        taken.append(sum(map(len, texts)))
        return learn(texts, *rest)

    corpus = write_corpus(tmp_path)
    sides = [sum(len(pair[side]) for pair in SENTENCES) for side in (0, 1)]
    monkeypatch.setattr("dragoman.data.prepare.learn", counting)
    monkeypatch.setattr("dragoman.data.prepare.MOST_UNIGRAM", sum(sides) // 4 + 1)
    monkeypatch.setattr("dragoman.data.prepare.MOST_UNSPACED", sides[1] // 3 + 1)
    config = config_for(corpus, f"data.shard_pairs={shards}", "subwords.vocab_size=50", *change)
    manifest = prepare(config, workers=1).manifest["vocabulary"]
    assert {key: value for key, value in manifest.items() if key.endswith("sample_pairs")} == sizes
    joint = "source_sample_pairs" not in sizes
    assert taken == [size * (2 if joint else 1) for size in sizes.values()]


def test_an_existing_model_is_used_as_it_is(tmp_path, given_model):
    options = [*written(tmp_path, str), f"subwords.model={given_model.path}"]
    data = prepare(tiny_config(tmp_path / "out", tmp_path / "run", *options))
    assert (data.folder / "vocabulary.model").read_bytes() == given_model.path.read_bytes()
    assert data.manifest["vocabulary"] == {"kind": "given", "size": 90, "digest": given_model.digest()}
    learnt(given_model.path.parent / "other.model", size=80)
    with pytest.raises(DataError, match="--force"):
        prepare(
            tiny_config(
                tmp_path / "out",
                tmp_path / "run",
                *options[:-1],
                f"subwords.model={given_model.path.parent}/other.model",
            )
        )


def test_models_with_other_marks_or_none_at_all_are_refused(tmp_path):
    prefix = tmp_path / "default"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=str(prefix), vocab_size=55, minloglevel=2
    )
    (tmp_path / "text.model").write_text("no model", encoding="utf-8")
    files = written(tmp_path, str)
    for name, words in (
        ("default.model", r"pad, eos, bos, unk are \(-1, 2, 1, 0\); dragoman needs \(0, 1, 2, 3\).*--pad_id=0"),
        ("text.model", "not a SentencePiece model"),
        ("nowhere.model", r"subwords\.model = .*: no such file"),
    ):
        with pytest.raises(DataError, match=words):
            prepare(tiny_config(tmp_path / "out", tmp_path / "run", *files, f"subwords.model={tmp_path}/{name}"))


def test_text_that_is_cut_already_gives_the_same_ids_and_plain_translations(tmp_path, given_model):
    for folder, change in (("plain", str), ("pieces", lambda text: cut(given_model, text))):
        (tmp_path / folder).mkdir()
        options = [*written(tmp_path / folder, change), f"subwords.model={given_model.path}", "train.max_steps=2"]
        options.append(f"data.tokenized={str(folder == 'pieces').lower()}")
        config = tiny_config(tmp_path / folder / "out", tmp_path / folder / "run", *options)
        prepare(config)
    plain, pieces = (PreparedData(tmp_path / folder / "out") for folder in ("plain", "pieces"))
    assert pieces.manifest["digest"] == plain.manifest["digest"]
    assert pieces.text("valid") == plain.text("valid") == PAIRS[:20]
    train(config)
    (translation,) = Translator.load(tmp_path / "pieces" / "run", "cpu").translate(["the old house"])
    assert "▁" not in translation


def test_text_that_two_vocabularies_cut_is_joined_by_the_same_two(tmp_path):
    files = []
    for side, (key, name) in enumerate((("source", "source.model"), ("target", "vocabulary.model"))):
        texts = [pair[side] for pair in PAIRS]
        own = learn([text_of(texts)], Subwords(vocab_size=60), tmp_path / name)
        for part, some in (("train", texts), ("valid", texts[:20])):
            path = tmp_path / f"{part}.{key}"
            path.write_text("".join(cut(own, text) + "\n" for text in some), encoding="utf-8")
            files.append(f"data.{part}_{key}={path}")
    options = ["data.corpus=files", "data.tokenized=true", f"subwords.model={tmp_path}/vocabulary.model", *files]
    data = prepare(tiny_config(tmp_path / "out", tmp_path / "run", "clean.overlap=false", *options))
    assert data.manifest["valid"]["unknown_tokens"] == 0
    assert data.text("valid") == PAIRS[:20]


def test_another_vocabulary_of_the_source_is_other_settings(tmp_path):
    """It lies beside the one that the run file names, and is used with it."""
    learnt(tmp_path / "vocabulary.model"), learnt(tmp_path / "source.model", size=80)
    options = [*written(tmp_path, str), f"subwords.model={tmp_path}/vocabulary.model"]
    config = tiny_config(tmp_path / "out", tmp_path / "run", *options)
    assert prepare(config).manifest["vocabulary"]["source_size"] == 80
    learnt(tmp_path / "source.model", size=70)
    with pytest.raises(DataError, match="other settings"):
        prepare(config)
    assert prepare(config, force=True).manifest["vocabulary"]["source_size"] == 70


def test_a_damaged_vocabulary_of_the_source_is_refused_before_anything_is_cleaned(tmp_path):
    learnt(tmp_path / "vocabulary.model")
    (tmp_path / "source.model").write_bytes(b"no model")
    config = tiny_config(
        tmp_path / "out", tmp_path / "run", *written(tmp_path, str), f"subwords.model={tmp_path}/vocabulary.model"
    )
    with pytest.raises(DataError, match=r"source\.model: not a SentencePiece model"):
        prepare(config)
    assert not (tmp_path / "out.partial").exists()


def test_unknown_pieces_are_counted_and_plain_text_is_recognised(tmp_path, given_model):
    known = given_model.processor.piece_to_id("▁the")
    assert rows(Cutter(given_model, tokenized=True), ["▁the zzz </s> <pad>"]) == [[known, UNK, UNK, UNK, EOS]]
    assert given_model.join(["▁the zzz ▁old"]) == ["thezzz old"]
    options = [f"subwords.model={given_model.path}", "data.tokenized=true"]
    some = written(tmp_path, lambda text: cut(given_model, text) + (" zzz" if text == TEXTS[3] else ""))
    manifest = prepare(tiny_config(tmp_path / "out", tmp_path / "run", *some, *options)).manifest
    assert (manifest["train"]["unknown_tokens"], manifest["valid"]["unknown_tokens"]) == (1, 1)
    with pytest.raises(DataError, match=r"% of the train pieces are not in subwords\.model"):
        prepare(tiny_config(tmp_path / "other", tmp_path / "run", *written(tmp_path, str), *options))


@pytest.mark.parametrize("bad", ["", " ", "x" * 3_000_000])
def test_a_line_that_is_no_sentence_is_dropped_from_cut_text_too(tmp_path, given_model, bad):
    """It would train as the unknown piece."""
    options = [f"subwords.model={given_model.path}", "data.tokenized=true"]
    files = written(tmp_path, lambda text: bad if text == TEXTS[3] else cut(given_model, text))
    for side in ("source", "target"):  # a validation set would be refused
        file = tmp_path / f"valid.clean.{side}.BPE_common.32K.tok"
        file.write_text(cut(given_model, TEXTS[0]) + "\n", encoding="utf-8")
    train = prepare(tiny_config(tmp_path / "out", tmp_path / "run", *files, *options)).manifest["train"]
    assert (train["pairs"], train["unknown_tokens"]) == (399, 0)
    assert train["dropped"] == {"over 5,000 characters" if len(bad) > 9 else "empty side": 1}


def vocab_of(vocabulary, path):
    processor = vocabulary.processor
    entries = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(vocabulary))]
    path.write_text("".join(f"{piece}\t{score:g}\n" for piece, score in entries), encoding="utf-8")
    return path


@pytest.mark.parametrize("keys", [{}, {"kind": "unigram", "size": 60}, {"byte_fallback": True, "size": 350}])
def test_pieces_and_scores_alone_are_a_vocabulary(tmp_path, keys):
    model = learnt(tmp_path / "m.model", **keys)
    alone = Vocabulary(vocab_of(model, tmp_path / "other.vocab"))
    texts = [*TEXTS[:9], "Ｔhe  old\u200b house ﬁne", "日本 zzz"]
    assert alone.pieces() == model.pieces()
    assert alone.encode(texts) == model.encode(texts)
    assert alone.decode(alone.encode(texts)) == model.decode(model.encode(texts))
    assert alone.knows_words == model.knows_words


def test_cut_text_and_a_vocabulary_file_are_enough(tmp_path, given_model):
    path = vocab_of(given_model, tmp_path / "m_common.vocab")
    options = [*written(tmp_path, lambda text: cut(given_model, text)), "data.tokenized=true", f"subwords.model={path}"]
    data = prepare(tiny_config(tmp_path / "out", tmp_path / "run", *options))
    assert data.manifest["vocabulary"]["digest"] == given_model.digest()
    assert data.text("valid") == PAIRS[:20]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 12\nold 7\n", "not a vocabulary of SentencePiece, whose lines are PIECE TAB SCORE"),
        ("", "not a vocabulary of SentencePiece"),
        ("a\tb\n", "not a vocabulary of SentencePiece"),
        ("<unk>\t0\n<s>\t0\n</s>\t0\n<pad>\t0\na\t-1\n", "not a SentencePiece model|dragoman needs"),
        ("<pad>\t0\n</s>\t0\n<s>\t0\n<unk>\t0\na\t-1\na\t-2\n", "not a SentencePiece model"),
    ],
    ids=["counts", "empty", "words", "other marks", "a piece twice"],
)
def test_other_vocabulary_files_are_refused_in_a_line(tmp_path, text, words):
    (tmp_path / "x.vocab").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"x\.vocab: .*({words})") as error:
        Vocabulary(tmp_path / "x.vocab")
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no {REFERENCE}; name a folder with DRAGOMAN_REFERENCE")
@pytest.mark.parametrize("name", ["m_common.model", "m_common.vocab"])
def test_the_reference_data_folder_works_as_it_is(name):
    vocabulary = Vocabulary(REFERENCE / name)
    pieces = (REFERENCE / "wmt14-en-de.src.BPE_common.32K.tok").read_text(encoding="utf-8").splitlines()
    ids = rows(Cutter(vocabulary, tokenized=True), pieces)
    assert (len(vocabulary), len(ids), sum(row.count(UNK) for row in ids)) == (32_768, 2_737, 12)
    plain = vocabulary.join(pieces)
    assert plain[0] == "Orlando Bloom and Miranda Kerr still love each other"
    assert vocabulary.encode(plain) == ids == rows(Cutter(vocabulary), plain)
    assert vocabulary.knows_words


@pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no {REFERENCE}; name a folder with DRAGOMAN_REFERENCE")
def test_text_cut_for_the_reference_trains_as_it_is(tmp_path):
    """Its test set on both sides: all that there is of real text that was cut for it."""
    text = REFERENCE / "wmt14-en-de.src.BPE_common.32K.tok"
    few = tmp_path / "few.tok"
    few.write_bytes(b"".join(text.read_bytes().splitlines(keepends=True)[:8]))
    files = [f"data.train_{side}={text}" for side in ("source", "target")]
    files += [f"data.valid_{side}={few}" for side in ("source", "target")]
    given = ["data.corpus=files", "data.tokenized=true", f"subwords.model={REFERENCE / 'm_common.model'}"]
    config = tiny_config(tmp_path / "out", tmp_path / "run", *files, *given, "train.max_steps=2")
    train_set = prepare(config).manifest["train"]
    assert train_set["read_pairs"] == 2_737 == train_set["pairs"] + sum(train_set["dropped"].values())
    assert 0 < train_set["unknown_tokens"] <= 24
    train(config)


ODD = st.text(
    st.characters(codec="utf-8", exclude_characters="\n")
    | st.sampled_from("the old \u2581\u200b\xb4\xa8\u0308\u3099ﬁＡ가")
)


@pytest.fixture(scope="module")
def literal_models(tmp_path_factory):
    """Models to which U+2581 in a text is no space, and those like them that leave white space alone."""
    names = ("identity", "nfkc", "nmt_nfkc")
    for name in names:
        prefix = tmp_path_factory.getbasetemp() / name
        marks = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "minloglevel": 2, "model_type": "bpe"}
        texts, train = iter(TEXTS), sentencepiece.SentencePieceTrainer.train
        train(sentence_iterator=texts, model_prefix=str(prefix), vocab_size=90, normalization_rule_name=name, **marks)
    return [Vocabulary(tmp_path_factory.getbasetemp() / f"{name}.model") for name in names]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(ODD.map(lambda text: " ".join(text.split())), min_size=1))
def test_whatever_is_normalised_ids_are_those_of_whole_sentences(literal_models, texts):
    for vocabulary in literal_models:
        assert rows(Cutter(vocabulary), [*texts, "the\u2581 old"]) == vocabulary.encode([*texts, "the\u2581 old"])
    assert [vocabulary.knows_words for vocabulary in literal_models] == [False, False, True]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(ODD.map(lambda text: " ".join(text.split())), min_size=1))
def test_words_that_are_cut_once_are_cut_as_in_their_sentences(given_model, texts):
    assert given_model.knows_words
    assert rows(Cutter(given_model), [*texts, *TEXTS[:3], ""]) == given_model.encode([*texts, *TEXTS[:3], ""])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [("unigram", {}), ("char", {}), ("word", {"use_all_vocab": True}), ("bpe", {"add_dummy_prefix": False}),
     ("bpe", {"split_by_whitespace": False}), ("bpe", {"treat_whitespace_as_suffix": True})],
)  # fmt: skip
def test_other_vocabularies_see_whole_sentences(tmp_path, kind, keys):
    marks = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "minloglevel": 2}
    train, size = sentencepiece.SentencePieceTrainer.train, {"char": 25, "word": 30, "unigram": 55}.get(kind, 90)
    train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(tmp_path / "m"),
        vocab_size=size,
        model_type=kind,
        **marks,
        **keys,
    )
    vocabulary = Vocabulary(tmp_path / "m.model")
    assert not vocabulary.knows_words
    texts = [*TEXTS[:20], "the \u200b unheard of zzz qqq house"]
    assert rows(Cutter(vocabulary), texts) == vocabulary.encode(texts)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_random_cuts_follow_from_the_seed_whatever_runs_beside(tmp_path, kind):
    vocabulary = learnt(tmp_path / "v.model", kind, 70)
    drawn = [vocabulary.sample(TEXTS, 0.05, seed) for seed in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    with ThreadPoolExecutor(8) as pool:
        again = list(pool.map(lambda seed: vocabulary.sample(TEXTS, 0.05, seed), [0, 1, 2] * 8))
    assert all(again[index] == drawn[index % 3] for index in range(24))
    assert all(vocabulary.decode(rows) == TEXTS for rows in drawn)


def test_variants_of_the_training_set(tmp_path):
    options = [*written(tmp_path, str), "subwords.vocab_size=90", "subwords.dropout=0.2", "subwords.variants=3"]
    config = tiny_config(tmp_path / "out", tmp_path / "run", *options, "data.max_tokens=24")
    data = prepare(config)
    again = prepare(
        config.model_copy(update={"data": config.data.model_copy(update={"folder": str(tmp_path / "again")})})
    )
    assert again.manifest["digest"] == data.manifest["digest"]
    part = data.manifest["train"]
    assert (part["variants"], part["read_pairs"]) == (3, 400)
    assert part["pairs"] == 3 * part["text_pairs"]
    assert part["dropped"]["over 24 subwords"] == 400 - part["text_pairs"] > 0, "a pair goes with all its variants"
    other = prepare(tiny_config(tmp_path / "other", tmp_path / "run", *options, "run.seed=5"))
    assert other.manifest["train"]["digest"] != data.manifest["train"]["digest"]
    assert other.manifest["valid"]["digest"] == data.manifest["valid"]["digest"]
    encoded = other.encoded("train")
    rows = [[encoded.source.sentence(3 * index + variant).tolist() for variant in range(3)] for index in range(400)]
    assert [data.vocabulary.decode(row) for row in rows] == [[text] * 3 for text in TEXTS]
    assert sum(row[0] != row[1] != row[2] for row in rows) > 300
    valid = data.encoded("valid")
    assert [valid.source.sentence(index).tolist() for index in range(20)] == data.vocabulary.encode(TEXTS[:20])


def test_only_some_kinds_can_be_cut_at_random(tmp_path):
    model = learnt(tmp_path / "char.model", "char").path
    with pytest.raises(DataError, match=r"only BPE and unigram .* subwords\.dropout = 0\.0"):
        prepare(tiny_config(tmp_path / "out", tmp_path / "run", f"subwords.model={model}", "subwords.dropout=0.1"))


def test_byte_fallback_spells_what_has_no_piece(tmp_path):
    vocabulary = learnt(tmp_path / "v.model", size=350, byte_fallback=True)
    assert vocabulary.decode(vocabulary.encode(["старый house 日"])) == ["старый house 日"]
