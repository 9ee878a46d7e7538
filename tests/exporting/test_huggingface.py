"""What transformers computes from an export is what we compute; what we compute from an import is what transformers does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceTrainer

from dragoman.cli.stages import prepare, train
from dragoman.config import load_config
from dragoman.errors import RunError
from dragoman.exporting import export
from dragoman.exporting.huggingface import import_model
from dragoman.runs import RunFolder, read_json, read_rows
from dragoman.training.facts import stages_of
from dragoman.translate import Translator

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    return export(checkpoint, tmp_path_factory.mktemp("exports") / "hf", kind="huggingface")


@pytest.fixture(scope="module")
def opus(pairs, tmp_path_factory):
    """A Marian model as OPUS-MT publishes them: random, two SentencePiece models, eos first and pad last in the vocabulary."""
    folder = tmp_path_factory.mktemp("opus")
    numbers = {"</s>": 0, "<unk>": 1}
    for side, name in ((0, "source"), (1, "target")):
        texts = iter([pair[side] for pair in pairs])
        SentencePieceTrainer.train(
            sentence_iterator=texts, model_prefix=str(folder / name), vocab_size=38, model_type="unigram", minloglevel=2
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        for line in (folder / f"{name}.vocab").read_text().splitlines()[3:]:
            numbers.setdefault(line.split("\t")[0], len(numbers))
    numbers |= {">>deu<<": len(numbers), "<pad>": len(numbers) + 1}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "eng", "target_lang": "deu"}))
    pad = numbers["<pad>"]
    config = transformers.MarianConfig(
        vocab_size=len(numbers), d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, activation_function="swish", scale_embedding=True,
        pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=None, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.requires_grad:
                tensor += 0.3 * torch.randn_like(tensor)
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, 0] += 2.0  # some end
    model.save_pretrained(folder)
    return folder


def generated(folder, texts, **options):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    found = model.generate(**batch, **options, do_sample=False, max_new_tokens=90)
    return batch["input_ids"].tolist(), tokenizer.batch_decode(found, skip_special_tokens=True)


def test_the_export_translates_the_same(checkpoint, exported, sentences):
    ours = Translator.load(checkpoint, "cpu", engine="torch")
    ids, greedy = generated(exported, sentences[:-1], num_beams=1)
    assert [[number for number in row if number] for row in ids] == ours.vocabulary.encode(sentences[:-1])
    assert greedy == ours.translate(sentences[:-1], beam=1, extra_length=90)
    _, beam = generated(exported, sentences[:-1], num_beams=4, length_penalty=0.0, early_stopping="never")
    assert sum(a == b for a, b in zip(beam, ours.translate(sentences[:-1], length_penalty=0.0), strict=True)) >= 26


def test_the_export_has_the_same_logits(checkpoint, exported, sentences):
    ours = Translator.load(checkpoint, "cpu", engine="torch")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported).eval()
    source = torch.tensor([ours.vocabulary.encode(sentences)[0]])
    target = torch.tensor([[2, 9, 4, 7, 30, 31]])
    ones = torch.ones_like(source), torch.ones_like(target)
    model = ours.engine.model
    with torch.no_grad():
        memory = model.encode(source, torch.arange(source.shape[1])[None], ones[0])
        hidden = model.decode(target, torch.arange(target.shape[1])[None], ones[1], memory, ones[0])
        expected = model.logits(hidden)
        found = theirs(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.5, "a model that says nothing would prove nothing"


def test_out_and_in_again_is_the_same_model(checkpoint, exported, tmp_path):
    back = import_model(exported, tmp_path / "back")
    ours, again = (
        Translator.load(path, "cpu", engine="torch").engine.model.state_dict() for path in (checkpoint, back)
    )
    assert ours.keys() == again.keys()
    for name in ours:
        rows = (
            slice(4, None) if name == "embedding.weight" else slice(None)
        )  # marks have other rows: the start mark is named
        assert torch.equal(ours[name][rows], again[name][rows]), name
    assert not (back / "source.model").exists()


def test_an_opus_model_translates_as_transformers_does(opus, sentences, tmp_path):
    folder = import_model(opus, tmp_path / "model")
    texts = sentences[:-2]
    for engine in ("torch", "ctranslate2"):
        translator = Translator.load(folder, "cpu", engine=engine)
        assert translator.languages == ("eng", "deu")
        _, greedy = generated(opus, texts, num_beams=1, bad_words_ids=[[len(translator.vocabulary) - 2]])
        translations = translator.translate(texts, beam=1, extra_length=90)
        assert [text[:40] for text in translations] == [text[:40] for text in greedy]  # limits are counted differently
        assert len({text[:40] for text in translations}) > 5


def test_an_imported_model_has_a_card_with_the_licence_of_the_original(opus, tmp_path):
    folder = Path(shutil.copytree(opus, tmp_path / "other"))
    (folder / "README.md").write_text(
        "---\nlanguage:\n- en\nlicense: 'apache-2.0'\n---\n\nlicense: mit, says the text\n"
    )
    cards = {
        name: (import_model(each, tmp_path / name) / "README.md").read_text()
        for name, each in {"with": folder, "without": opus}.items()
    }
    assert "\nlicense: apache-2.0\n" in cards["with"]
    assert f"Imported from `{folder}`" in cards["with"]
    assert "Not stated." in cards["without"]


def test_an_imported_model_goes_out_as_marian_again(opus, sentences, tmp_path):
    folder = import_model(opus, tmp_path / "model")
    out = export(folder, tmp_path / "out", kind="huggingface")
    assert json.loads((out / "config.json").read_text())["model_type"] == "marian"
    ours = Translator.load(folder, "cpu", engine="torch")
    _, greedy = generated(out, sentences[:5], num_beams=1)
    assert [text[:30] for text in greedy] == [text[:30] for text in ours.translate(sentences[:5], beam=1)]
    assert "Imported from" in (out / "README.md").read_text()


def test_both_sides_of_an_imported_vocabulary(opus, pairs, tmp_path):
    vocabulary = Translator.load(import_model(opus, tmp_path / "model"), "cpu").vocabulary
    for side, texts in ((vocabulary.source, [pair[0] for pair in pairs]), (vocabulary, [pair[1] for pair in pairs])):
        assert side.decode(side.encode(texts)) == texts
    assert vocabulary.source.encode(["das kleine Haus"]) != vocabulary.encode(["das kleine Haus"])
    assert vocabulary.source_size == 0, "both sides share one matrix"
    tokenizer = transformers.MarianTokenizer.from_pretrained(opus)
    numbers = json.loads((opus / "vocab.json").read_text())
    names = {number: piece for piece, number in numbers.items()}
    texts = [pair[0] for pair in pairs[:9]]
    for text in [*texts, *(f">>deu<< {text}" for text in texts), ">>deu<<bread", "our >>deu<< letters", ">>deu<<"]:
        theirs = [names[number] for number in tokenizer(text)["input_ids"]]
        ours = [vocabulary.processor.id_to_piece(number) for number in vocabulary.source.encode([text])[0]]
        assert ours == theirs


MARK = ">>deu<<"


def test_a_language_is_named_as_transformers_does(opus, sentences, tmp_path):
    """The mark alone, without a blank before; no translation holds it."""
    texts = [f"{MARK} {text}" for text in sentences[:20]]
    folder = import_model(opus, tmp_path / "model")
    for engine in ("torch", "ctranslate2"):
        translator = Translator.load(folder, "cpu", engine=engine)
        _, greedy = generated(opus, texts, num_beams=1, bad_words_ids=[[len(translator.vocabulary) - 2]])
        ours = translator.translate(texts, beam=1, extra_length=90)
        wanted = [" ".join(text.replace(MARK, " ").split())[:40] for text in greedy]
        assert [" ".join(text.split())[:40] for text in ours] == wanted
        assert not any(MARK in text for text in ours)
        assert ours != translator.translate(sentences[:20], beam=1, extra_length=90), "it says something"


def test_every_sentence_of_a_text_is_told_its_language(opus, sentences, tmp_path):
    translator = Translator.load(import_model(opus, tmp_path / "model"), "cpu", engine="torch")
    first, second = sentences[0].capitalize(), sentences[1].capitalize()
    alone = translator.translate([f"{MARK} {first}", f"{MARK} {second}"])
    assert translator.translate([f"{MARK} {first} {second}"], split=True) == [" ".join(alone)]
    endless, asked = " ".join(["bread"] * 400), []
    search = translator.engine.search
    translator.engine.search = lambda sources, *given, **how: asked.extend(sources) or search(sources, *given, **how)
    (found,) = translator.search([f"{MARK} {endless}"], translator.request(beam=1), alignment=True)
    mark = translator.vocabulary.source.languages[MARK]
    assert len(asked) > 2
    assert all(source[0] == mark and mark not in source[1:] for source in asked)
    assert max(pair[0] for pair in found[0].alignment) in range(300, 401)
    assert translator.translate([MARK]) == [""], "nothing but a language is nothing"


FINE_TUNING = """
preset = "tiny"
[run]
folder = "{folder}/run"
[data]
corpus = "files"
folder = "{folder}/data"
valid_source = "{folder}/valid.tsv"
[[data.corpora]]
name = "new"
pairs = "{folder}/new.tsv"
weight = 4.0
[[data.corpora]]
name = "old"
pairs = "{folder}/old.tsv"
[subwords]
model = "{model}/vocabulary.model"
[model]
style = "marian"
activation = "swish"
d_model = 32
heads = 4
d_ff = 64
[train]
start_from = "{model}"
freeze = ["encoder.0.*"]
batch_tokens = 256
max_steps = 24
log_every = 12
precision = "fp32"
[schedule]
policy = "fixed"
learning_rate = 0.006
warmup_steps = 0
[validation]
every = 12
[checkpoint]
every = 24
"""


def test_an_imported_model_is_fine_tuned_on_new_data_mixed_with_the_old(opus, pairs, tmp_path):
    """From a run file as in docs/fine-tuning.md; what was learnt goes back to transformers."""
    model = import_model(opus, tmp_path / "model")
    for name, chosen in (("new", pairs[::3]), ("old", pairs[1::3]), ("valid", pairs[2::3])):
        lines = "".join(f"{source}\t{target}\n" for source, target in chosen)
        (tmp_path / f"{name}.tsv").write_text(lines, encoding="utf-8")
    (tmp_path / "run.toml").write_text(FINE_TUNING.format(folder=tmp_path, model=model), encoding="utf-8")
    config, told = load_config(tmp_path / "run.toml"), []
    mixture = stages_of(prepare(config), config)[0].mixture
    assert [corpus.times for corpus in mixture] == [4.0, 1.0]
    train(config, progress=lambda *words: told.append(words))
    run = RunFolder(tmp_path / "run")
    before, after = (load_file(folder / "model.safetensors") for folder in (model, run.checkpoint(24)))
    report, count = read_json(run.start), len(before["output_bias"])
    assert told[0][:3] == ("starting", 0, 24)
    assert f"from {model}: {len(report['taken'])} tensors, {count} of {count} rows of " in told[0][3]
    assert {*report["taken"], *report["rows"]} == before.keys()
    assert (report["new"], report["left"]) == ([], [])
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert set(report["frozen"]) == {name for name in before if name.startswith("encoder.0.")}
    assert kept == {*report["frozen"], "output_bias"}, "which transformers does not train either"
    losses = [row["loss"] for row in read_rows(run.metrics) if row["kind"] == "valid"]
    assert losses[-1] < losses[0] - 0.1, "it learns"
    out = export(run.path, tmp_path / "out", kind="huggingface")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).state_dict()
    assert torch.equal(theirs["model.decoder.layers.1.fc2.weight"], after["decoder.1.feed_forward.outer.weight"])
    assert f"started from `{model}`" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bart"}, "model_type = 'bart' (marian and pegasus can be)"),
        (
            {"activation_function": "gelu", "decoder_ffn_dim": 32},
            "activation_function = 'gelu'; different ffn_dim: 64 and 32",
        ),
        (
            {"scale_embedding": False, "add_final_layer_norm": True},
            "scale_embedding = False; add_final_layer_norm = true",
        ),
        ({"d_model": None, "encoder_layers": "two"}, "model.d_model = null: "),
        ({"encoder_attention_heads": 3, "decoder_attention_heads": 3}, "model.heads = 3 does not divide model.d_model"),
    ],
)
def test_what_cannot_be_imported_is_named_and_nothing_is_written(opus, tmp_path, change, words):
    folder = tmp_path / "other"
    folder.mkdir()
    for file in opus.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((opus / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="cannot be imported") as error:
        import_model(folder, tmp_path / "out")
    assert words in str(error.value)
    config = {key: value for key, value in json.loads((opus / "config.json").read_text()).items() if key != "d_model"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="cannot be imported: d_model is missing"):
        import_model(folder, tmp_path / "out")
    (folder / "config.json").write_text((opus / "config.json").read_text())
    (folder / "model.safetensors").write_bytes(b"torso")
    with pytest.raises(RunError, match="missing or damaged"):
        import_model(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def rewritten(folder, copied, change):
    """The same export with other positions."""
    other = Path(shutil.copytree(folder, copied))
    tensors = load_file(other / "model.safetensors")
    change(tensors)
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    return other


def test_positions_that_are_not_ours_are_refused(exported, opus, tmp_path):
    """Pegasus stores waves of other lengths; those of Marian are ours, stored or not."""
    name = "model.encoder.embed_positions.weight"
    config = transformers.AutoConfig.from_pretrained(exported)
    theirs = transformers.PegasusForConditionalGeneration(config).get_encoder().embed_positions.create_weight()
    for number, (change, words) in enumerate(
        [
            (lambda tensors: tensors.update({name: theirs}), f"{name} are other positions than the waves of style"),
            (lambda tensors: tensors.update({name: tensors[name][:, :-2].clone()}), f"{name} are other positions"),
            (lambda tensors: tensors.pop(name), f"{name} is missing, and the positions of Pegasus itself are not ours"),
        ]
    ):
        with pytest.raises(RunError, match="cannot be imported") as error:
            import_model(rewritten(exported, tmp_path / f"pegasus{number}", change), tmp_path / "out")
        assert words in str(error.value)
    marian = transformers.AutoModelForSeq2SeqLM.from_pretrained(opus).get_encoder().embed_positions.weight
    stored = rewritten(opus, tmp_path / "marian", lambda tensors: tensors.update({name: marian.half()}))
    assert name not in load_file(opus / "model.safetensors")
    import_model(stored, tmp_path / "stored")


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("vocab.json", {"▁house": 9999}, "has no row 9999 in model.shared.weight"),
        ("vocab.json", {"▁house": "five"}, "'▁house' has no whole number"),
        ("config.json", {"decoder_start_token_id": 9999}, "has no row 9999"),
        ("config.json", {"decoder_start_token_id": "5"}, "decoder_start_token_id = '5' is no whole number"),
        ("config.json", None, "config.json: is no JSON object"),
    ],
)
def test_numbers_that_name_nothing_are_refused(opus, tmp_path, file, change, words):
    folder = Path(shutil.copytree(opus, tmp_path / "other"))
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | change if change else []))
    with pytest.raises(RunError) as error:
        import_model(folder, tmp_path / "out")
    assert words in str(error.value)


def test_without_a_start_mark_it_is_the_padding(opus, tmp_path):
    folder = Path(shutil.copytree(opus, tmp_path / "other"))
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"decoder_start_token_id": None}))
    ours, usual = (
        load_file(import_model(each, tmp_path / f"from {each.name}") / "model.safetensors") for each in (folder, opus)
    )
    assert torch.equal(ours["embedding.weight"], usual["embedding.weight"])
