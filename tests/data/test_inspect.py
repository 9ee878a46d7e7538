"""What `data inspect` says is what is in the text."""

import json
import random
import re
import shutil
import zipfile

import pytest
from support import config_for, sentences, write_corpus

from dragoman.config.load import toml_value
from dragoman.config.schema import Data
from dragoman.data import inspect as looking
from dragoman.data.prepare import prepare
from dragoman.errors import DataError


def table(sections, title):
    section = next(section for section in sections if section.title.startswith(title))
    return {row[0]: row[1:] for row in section.rows}


def write(tmp_path, pairs):
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return tmp_path / "a.en", tmp_path / "a.de"


GOOD = [(f"The dog number {n} sleeps in the garden.", f"Der Hund Nummer {n} schläft im Garten.") for n in range(200)]
BAD = [
    ("See https://example.org/a for the details, please.", "Siehe https://example.org/b für Einzelheiten, bitte."),
    ("Yes.", "Dieser Satz gehört ganz gewiss nicht hierher, denn er ist viel zu lang für ein einziges Ja."),
    ("It happened in 1984 and cost 5000 crowns.", "Es geschah 1793 und kostete 26 Kronen."),
]


def test_counts_lengths_and_oddities(tmp_path):
    pairs = [*GOOD, GOOD[0], GOOD[0], ("same", "same"), ("", "leer")]
    sections = looking.inspect(*write(tmp_path, pairs))
    size = table(sections, "Size")
    assert size["a.en"][1:] == ["204", f"{202 * 8 + 1:,}", f"{sum(len(one) for one, _ in pairs):,}"]
    lengths = next(section for section in sections if section.title == "Lengths")
    assert sum(counts[0] for _, counts in lengths.bars) == 204
    assert dict(lengths.bars)["0 words"] == [1, 0]
    assert dict(lengths.bars)["5-9 words"] == [202, 202]
    odd = table(sections, "Oddities")
    assert odd["copies of an earlier pair"][0] == "2"
    assert odd["an empty side"][0] == "1"
    assert odd["both sides the same"][0] == "1"


def test_suspects_are_found_and_ranked(tmp_path):
    pairs = [*GOOD[:100], BAD[0], BAD[1], BAD[1], *GOOD[100:], BAD[2]]
    sections = looking.inspect(*write(tmp_path, pairs))
    suspects = sections[-1].rows
    assert [row[0] for row in suspects] == ["102", "101", "204"]  # a copy is shown once
    assert suspects[0][2].startswith("length 4:")
    assert suspects[1][2] == "addresses"
    assert suspects[2][2] == "figures"
    assert table(sections, "Oddities")["misaligned suspects"][0] == "4"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("It cost 10,000.50 on 7/4/2010.", "Es kostete 10.000,50 am 4.7.2010."),
        ("He said: &quot;no&quot; &#91;twice&#93;.", "Er sagte: „nein“ [zweimal]."),
        ("Is it true?", "„Ist es wahr?“"),
        ("A couple of 2 people", "Ein Paar aus zwei Leuten"),
    ],
)
def test_what_is_no_reason_for_suspicion(source, target):
    assert looking.suspicion(source, target, 0.0)[0] < looking.SUSPICIOUS


def test_a_large_corpus_is_sampled_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(looking, "LARGEST_SAMPLE", 500)
    pairs = [(f"number {n} of many", f"Nummer {n} von vielen") for n in range(2000)] * 2
    random.Random(3).shuffle(pairs)
    sections = looking.inspect(*write(tmp_path, pairs))
    assert table(sections, "Size")["a.en"][1] == "4,000"
    odd = next(section for section in sections if section.title == "Oddities")
    sampled = int(re.search(r"sample: ([\d,]+) of 4,000 pairs", odd.note)[1].replace(",", ""))
    assert 300 < sampled < 700
    assert odd.rows[0] == ["copies of an earlier pair", str(sampled // 2), "50.00%"]  # as in the whole


def test_a_prepared_folder(prepared, tmp_path):
    folder = shutil.copytree(prepared.folder, tmp_path / "data")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["train"] |= {"dropped": {"empty side": 5, "not UTF-8": 1}, "read_pairs": manifest["train"]["pairs"] + 6}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    rows = [{"reason": "empty side", "source": f"text {n}", "target": "", "line": n} for n in range(9)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = looking.inspect(folder)
    parts = table(sections, "Prepared")
    assert parts["train"][0] == str(manifest["train"]["pairs"])
    assert parts["train"][2] == f"{manifest['train']['target_tokens']:,}"
    used, unknown, fertility, *_ = table(sections, "Vocabulary")["source"]
    ids = prepared.encoded("train").source.ids
    expected = len({int(i) for i in ids if i > 3}) / (len(prepared.vocabulary) - 4)
    assert used == f"{expected:.1%}"
    assert unknown == "0.000"
    assert 1.0 < float(fertility) < 4.0
    assert table(sections, "Dropped")["empty side"] == ["5", f"{5 / manifest['train']['read_pairs']:.2%}"]
    samples = next(section for section in sections if section.title.startswith("Samples"))
    assert [row[1] for row in samples.rows] == ["0", "1", "2"]


def test_everything_that_can_be_prepared_can_be_looked_at(tmp_path):
    expected = looking.inspect(*write(tmp_path, GOOD))[0].rows[0][1:]
    tsv = "".join(f"{source}\t{target}\n" for source, target in GOOD)
    unit = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv><tuv xml:lang="{}"><seg>{}</seg></tuv></tu>'
    units = "".join(unit.format("fr", source, "it", target) for source, target in GOOD)
    files = {
        "a.tsv": tsv,
        "a.txt": tsv,
        "a.jsonl": "".join(json.dumps({"one": source, "two": target}) + "\n" for source, target in GOOD),
        "a.tmx": f"<tmx><body>{units}</body></tmx>",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for side, lang in enumerate(("fr", "it")):
            archive.writestr(f"b.{lang}", "".join(pair[side] + "\n" for pair in GOOD))
    data = Data(source_lang="fr", target_lang="it", format="tsv", source_key="one", target_key="two")
    for name in ("a.tsv", "a.txt", "a.jsonl", "a.tmx", "a.zip"):
        reading = data if name == "a.txt" else data.model_copy(update={"format": "auto"})
        assert looking.inspect(tmp_path / name, None, reading=reading)[0].rows[0][1:] == expected, name
    marked = ["".join(f'<seg id="1">{pair[side]}</seg>\n' for pair in GOOD) for side in (0, 1)]
    for name, text in zip(("s.sgm", "t.sgm"), marked, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert looking.inspect(tmp_path / "s.sgm", tmp_path / "t.sgm")[0].rows[0][1:] == expected


def test_drops_by_corpus_repairs_and_lines_that_are_counted_once(tmp_path):
    """What is said of a prepared folder agrees with what went in, also where each line was cut in three ways."""
    write_corpus(tmp_path)
    extra = [*sentences(400, 401), ("", "leer"), ("A &amp; B are here", "A &amp; B sind hier")]
    (tmp_path / "b.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in extra), encoding="utf-8")
    corpora = [{"name": "a", "source": f"{tmp_path}/train.en", "target": f"{tmp_path}/train.de"}]
    corpora += [{"name": "b", "pairs": f"{tmp_path}/b.tsv"}]
    files = ["data.train_source=", "data.train_target=", f"data.corpora={toml_value(corpora)}"]

    def looked_at(*overrides, out):
        return looking.inspect(prepare(config_for(tmp_path, *files, *overrides, out=out), "test", workers=1).folder)

    plain = looked_at(out="plain")
    assert table(plain, "Dropped") == {"empty side": ["1", f"{1 / 304:.2%}"]}
    by_corpus = next(section for section in plain if section.title == "By corpus")
    assert [row[:3] for row in by_corpus.rows] == [["a", "kept", "300"], ["b", "kept", "3"], ["b", "empty side", "1"]]
    assert table(plain, "Repaired")["HTML"][0] == "1"
    varied = looked_at("subwords.dropout=0.001", "subwords.variants=3", out="varied")
    once, thrice = (float(table(each, "Vocabulary")["source"][2]) for each in (plain, varied))
    assert thrice == pytest.approx(once, rel=0.05)
    assert table(varied, "Size")["source"] == table(plain, "Size")["source"]


def test_the_page_needs_nothing_and_trusts_nothing(tmp_path):
    evil = "<script>alert(1)</script> https://example.org/x"
    page = looking.to_html(looking.inspect(*write(tmp_path, [*GOOD, (evil, "ja")])), "a & b")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<title>a &amp; b" in page
    assert not re.search(r"(src|href)=|url\(|@import|<link", page)
    assert page.count("<svg") == 2
    assert "nan" not in page


def test_bad_input_is_one_line(tmp_path):
    one, two = write(tmp_path, GOOD)
    with pytest.raises(DataError, match=r"a\.en: one file, which would have to be \.tsv"):
        looking.inspect(one)
    with pytest.raises(DataError, match="no prepared data there"):
        looking.inspect(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        looking.inspect(one, tmp_path / "nowhere")
    two.write_text("only one\n")
    with pytest.raises(DataError, match="200 lines"):
        looking.inspect(one, two)
    one.write_text("")
    two.write_text("")
    with pytest.raises(DataError, match="no lines"):
        looking.inspect(one, two)
    one.write_bytes(b"caf\xe9\n")
    two.write_text("Kaffee\n")
    assert (
        table(looking.inspect(one, two), "Oddities")["not UTF-8, or already damaged (\N{REPLACEMENT CHARACTER})"][0]
        == "1"
    )
