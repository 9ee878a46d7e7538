"""Every filter drops what it is for and nothing else; every pair that was read is kept or counted."""

import json
import sys
import unicodedata
from pathlib import Path

import pytest
from support import SENTENCES, config_for, sentences, write_corpus

from dragoman import runs
from dragoman.cli.stages import prepare
from dragoman.config.schema import Clean
from dragoman.data import clean
from dragoman.data.clean import wrong_language
from dragoman.data.streams import TOO_LONG
from dragoman.errors import ConfigError, DataError, MissingExtra


def cleaned(pair, held_out=(), languages=("en", "de"), **keys):
    """The pair after repairs and the reason to drop it, alone and among others that are sound."""
    cleaner = clean.cleaner_for(Clean.model_validate(keys), languages, held_out)
    sound = [(f"sound line {n}".encode(), f"gute Zeile {n}".encode()) for n in range(3)]
    for before in (0, 3):
        block, reasons, _ = cleaner([*sound[:before], tuple(text.encode() for text in pair), *sound])
        assert set(reasons) <= {before}
    return block.pair(before), reasons.get(before)


def reason(pair, held_out=(), languages=("en", "de"), **keys):
    return cleaned(pair, held_out, languages, **keys)[1]


def mended(text, **keys):
    return cleaned((text, "x"), **keys)[0][0]


@pytest.mark.parametrize(
    ("pair", "keys", "expected"),
    [
        (("a", ""), {}, "empty side"),
        (("a \x07 b", "c"), {}, "control characters"),
        (("a \x07 b", "c"), {"control_characters": False}, None),
        (("a" * 5001, "b" * 5001), {}, "over 5,000 characters"),
        (("a" * 5001, "b" * 5001), {"max_characters": 0}, None),
        (("a " * 251, "b " * 251), {}, "over 250 words"),
        (("a " * 250, "b " * 250), {}, None),
        (("a " * 250, "b " * 250), {"max_words": 20}, "over 20 words"),
        (("a b c d e f g h i j", "x y"), {}, "word ratio over 4"),
        (("a b c d e f g h i", "x"), {}, None),
        (("a b c d e f g h i j", "x y"), {"max_word_ratio": 0.0}, None),
        (("a" * 61, "b" * 10), {}, "character ratio over 6"),
        (("a" * 59, "b" * 9), {}, None),
        (("a" * 61, "b" * 10), {"max_character_ratio": 0.0}, None),
        (("to be or not", "to be or not"), {}, "copy of the source"),
        (("Angela Merkel", "Angela Merkel"), {}, None),
        (("to be or not", "to be or not"), {"copies": False}, None),
        (("a \ufffd b", "c"), {}, "broken encoding"),
        (("a \ufffd b", "c"), {"encoding": "keep"}, None),
        (("MÃ¼nchen", "Munich"), {}, None),
        (("MÃ¼nchen", "Munich"), {"encoding": "drop"}, "broken encoding"),
        (("« CAFÉ»", "„Ä“ à « la »"), {"encoding": "drop"}, None),
        (("Fish &amp; chips", "x"), {}, None),
        (("Fish &amp; chips", "x"), {"html": "drop"}, "HTML"),
        (("R&D; 3 < 4 and 5 > 4, <b and c>", "x y z"), {"html": "drop"}, None),
        (("<br/>", "x"), {}, "empty side"),
        (("It cost 1,000.50 in ١٩٩٠", "1990 kostete es 1 000,50"), {"digits": True}, None),
        (("In 1990", "Im Jahr 1991"), {"digits": True}, "different digits"),
        (("In 1990", "Im Jahr 1991"), {}, None),
    ],
)
def test_reasons(pair, keys, expected):
    assert reason(pair, **keys) == expected


def test_languages_without_spaces_are_not_counted_in_words():
    pair = ("The weather is nice today and so we go to the park.", "今天天气很好所以我们去公园散步吧")
    assert reason(pair, languages=("en", "zh-Hans")) is None
    assert reason(pair, languages=("en", "de")) == "word ratio over 4"


def test_languages_without_spaces_have_copies_and_held_out_sentences_too():
    cleaner = clean.cleaner_for(Clean(), ("en", "zh"), [("a sentence of the test set", "这是一个验证句子")])
    pairs = [
        ("你好世界你好世界", "你好世界你好世界"),
        ("something wholly different now", "这是一个验证句子"),
        ("ok", "好"),
    ]
    reasons = cleaner([(source.encode(), target.encode()) for source, target in pairs])[1]
    assert reasons == {0: "copy of the source", 1: "in validation or test set"}


def test_what_windows_left_is_repaired_and_what_nobody_knows_is_dropped():
    lines = [(b"it\xc2\x92s 5 \xc2\x96 10", b"x y"), (b"what \xc2\x81 is this", b"x y")]
    block, reasons, repaired = clean.cleaner_for(Clean(), ("en", "de"), [])(lines)
    assert block.pair(0) == ("it’s 5 – 10", "x y")
    assert reasons == {1: "control characters"}
    assert repaired == {"broken encoding": 1}


def test_repairs():
    assert mended("Die StraÃŸe in MÃ¼nchen â€“ schÃ¶n") == "Die Straße in München – schön"
    assert mended('Fish &amp; <a href="x">chips</a>&nbsp;&quot;now&#34;') == 'Fish & chips "now"'
    assert mended("MÃ¼nchen &amp; <b>", encoding="keep", html="keep") == "MÃ¼nchen &amp; <b>"
    assert mended("a&#10;b") == "a b"  # no line end gets in by the back door


@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_tag_that_is_never_closed_costs_no_more_than_its_length(quote):
    """Each attribute that could be read in two ways would double the time: here the test would outlive us."""
    text = "see <td" + f" x={quote}1{quote}" * 60 + " and more"
    assert mended(text) == text
    assert mended(text.replace(" and", "> and")) == "see and more"
    for tag in (
        "<a x=\"1\" y='2' z=3>",
        "<br x=a/>",
        '<a href="x>',
        '<a x="1"b>',
        '<td a="b c" d = "e"/>',
        '<a x=">">',
    ):
        assert mended(f"one {tag} two") == "one two", tag


@pytest.mark.parametrize("longest", [0, 10_000, 20_000])
def test_what_stands_for_an_endless_line_is_never_text(longest):
    endless = TOO_LONG.decode()
    for pair in ((endless, "x"), ("x", endless), (endless, endless)):
        assert reason(pair, max_characters=longest, max_character_ratio=0.0) == "line over 1 MB"
    assert reason((endless + "x", "x"), max_characters=0, max_character_ratio=0.0) is None


def test_a_side_of_the_validation_set_is_no_training_text():
    held_out = [("Good morning, Anna!", "Guten Morgen, Anna!")]
    assert reason(("good morning anna", "x"), held_out) == "in validation or test set"
    assert reason(("x", "GUTEN MORGEN: Anna."), held_out) == "in validation or test set"
    assert reason(("Guten Morgen, Anna!", "Good morning, Anna!"), held_out) is None
    assert reason(("Good morning, Anna!", "x"), held_out, overlap=False) is None
    assert reason(("..." * 12 + "good morning, Anna", "x"), held_out) == "in validation or test set"
    assert reason(("Good morning, Annabel!", "Guten Morgen"), held_out) is None
    assert reason(("Good", "Guten"), held_out) is None
    short = [("Why?", "Warum?")]
    assert reason(("Why?", "Wieso?"), short) is None, "everybody says that"
    assert reason(("why", "warum"), short) == "in validation or test set"


@pytest.mark.parametrize(
    "damaged", ["It&apos;s a nice day in Köln", "It's a nice day in KÃ¶ln", "<b>It's</b> a nice day in Köln"]
)
def test_a_held_out_sentence_is_known_however_either_was_damaged(damaged):
    """Training text is repaired before it is compared, validation and test sets are taken as they are."""
    sound = "It's a nice day in Köln"
    for training, held_out in ((damaged, sound), (sound, damaged), (damaged, damaged)):
        assert reason((training, "x"), [(held_out, "y")]) == "in validation or test set"
    assert (
        reason(("It&apos;s a nice day", "x"), [("It&apos;s a nice day", "y")], html="keep")
        == "in validation or test set"
    )


def test_marks_tell_words_apart_and_both_ways_to_write_a_letter_are_one():
    """In Hindi and Thai vowels are marks: कि, की and के are three words."""
    hindi, thai = ("यह की घर है", "यह के घर है"), ("น้ำ มัน ดี มาก", "นำ มั่น ดี มาก")
    for one, other in (hindi, thai):
        assert reason((one, "x"), [(one, "y")]) == "in validation or test set"
        assert reason((one, "x"), [(other, "y")]) is None
        assert len(clean.letters(clean.text_of([one, other])).unique()) == 2
    for text in ("Ein schöner Tag für Ärzte", "Một ngày rất đẹp ở đây, phải không?", "x" * 31 + "é ö ü ä"):
        two_ways = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
        assert reason((two_ways[0], "x"), [(two_ways[1], "y")]) == "in validation or test set"
        assert reason((two_ways[1], "x"), [(two_ways[0], "y")]) == "in validation or test set"
        assert len(clean.letters(clean.text_of(two_ways)).unique()) == 1


def test_wrong_language():
    pytest.importorskip("py3langid")
    english, german = (
        "The house on the hill is older than the church.",
        "Das Haus auf dem Hügel ist älter als die Kirche.",
    )
    assert reason((english, german), language=True) is None
    assert reason((german, german + " Ja."), language=True) == "wrong language"
    assert reason(("Nein, danke.", "Das Haus"), language=True) is None  # too short to tell
    foreign = wrong_language(("en_GB", "DE-at"))
    assert (foreign(english, german), foreign(german, german)) == (None, "wrong language")
    with pytest.raises(ConfigError, match='"tlh" is no language that the identifier knows'):
        wrong_language(("en", "tlh"))


def test_a_missing_extra_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[langid\]'"):
        prepare(config_for(write_corpus(tmp_path), "clean.language=true"))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def own_filters(tmp_path, monkeypatch):
    """Modules beside the run file, where filters of one's own are written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])

    def write(module, text):
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")

    return write


def test_a_filter_of_ones_own_is_one_function(tmp_path, own_filters):
    own_filters(
        "my_filters",
        "def houses(source, target):\n    return 'houses' if 'number 7' in source else None\n"
        "def wrong(source, target):\n    return source[1000]\n",
    )
    small = "data.shard_pairs=100"  # several processes import it
    data = prepare(config_for(write_corpus(tmp_path), 'clean.own=["my_filters:houses"]', small), workers=2)
    assert data.manifest["train"]["dropped"] == {"houses": 11}
    for own, line in (("my_filters:wrong", "IndexError"), ("my_filters:none", "cannot be imported")):
        with pytest.raises(DataError, match=f'clean.own = "{own}": .*{line}'):
            prepare(config_for(tmp_path, f'clean.own=["{own}"]', small, out="other"), workers=2)


def test_mistakes_in_a_filter_of_ones_own_are_one_line(tmp_path, own_filters):
    for name, text in (("syntax", "def f(:\n"), ("naming", "undefined\n"), ("value", "f = 7\n")):
        own_filters(f"{name}_filter", text)
    own_filters(
        "part_filter",
        "import functools\ndef shorter(most, source, target):\n    return 'long' if len(source) > most else None\n"
        "f = functools.partial(shorter, 3)\n",
    )
    for name, words in (
        ("syntax", "SyntaxError"),
        ("naming", "NameError: name 'undefined'"),
        ("value", "is no function"),
    ):
        with pytest.raises(DataError, match=f'clean.own = "{name}_filter:f": .*{words}') as error:
            clean.source_files(f"{name}_filter:f")
        assert "\n" not in str(error.value)
    assert clean.source_files("part_filter:f") == [tmp_path / "part_filter.py"]
    assert clean.own_filter("part_filter:f")("four", "x") == "long"


def test_a_change_of_a_decorated_filter_is_noticed(tmp_path, own_filters):
    """Python says that such a function lies in the file of its decorator."""
    body = "from decorators import timed\n@timed\ndef f(source, target):\n    return 'seven' if 'number 7' in source else None\n"
    own_filters(
        "decorators",
        "def timed(f):\n    def inside(source, target):\n        return f(source, target)\n    return inside\n",
    )
    own_filters("decorated", body)
    config = config_for(write_corpus(tmp_path), 'clean.own=["decorated:f"]')
    files = clean.source_files("decorated:f")
    assert files == [tmp_path / "decorators.py", tmp_path / "decorated.py"]
    for changed in files:
        prepare(config, force=True)
        changed.write_text(changed.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
        with pytest.raises(DataError, match="other settings"):
            prepare(config)


def duplicated(tmp_path, *overrides, **options):
    repeated = [("Sentence NUMBER 3, about a house!", "Satz Nummer 3 über ein Haus."), *sentences(5, 299, 5)]
    folder = tmp_path if (tmp_path / "train.en").is_file() else write_corpus(tmp_path, SENTENCES + repeated)
    return prepare(config_for(folder, "data.shard_pairs=50", *overrides, **options), workers=1)


def test_the_first_occurrence_in_the_corpus_stays(tmp_path):
    data = duplicated(tmp_path)
    assert data.manifest["train"]["dropped"] == {"duplicate": 3}
    expected = [*SENTENCES, ("Sentence NUMBER 3, about a house!", "Satz Nummer 3 über ein Haus.")]
    assert data.text("train") == expected
    lines = [row["line"] for row in runs.read_rows(data.folder / "samples.jsonl")]
    assert lines == [302, 303, 304]
    assert not duplicated(tmp_path, "clean.duplicates=false", out="all").manifest["train"]["dropped"]


def test_near_duplicates(tmp_path, monkeypatch):
    monkeypatch.setattr("dragoman.data.shards.KEYS_AT_ONCE", 60)  # in several slices
    data = duplicated(tmp_path, "clean.near_duplicates=true", "subwords.vocab_size=30")
    assert data.manifest["train"]["dropped"] == {"duplicate": 3, "near duplicate": 300}
    assert data.text("train") == SENTENCES[:1]


def test_sums_agree_for_every_corpus_and_text_agrees_with_ids(tmp_path):
    bad = [("", "x"), ("x " * 70, "y " * 70), *SENTENCES[:7]]
    data = prepare(config_for(write_corpus(tmp_path, [*SENTENCES, *bad]), "data.shard_pairs=64"), workers=1)
    train = data.manifest["train"]
    for account in (train, *train["corpora"].values()):
        assert account["read_pairs"] == account["pairs"] + sum(account["dropped"].values()) == 309
    assert train["dropped"] == {"duplicate": 7, "empty side": 1, "over 63 subwords": 1}
    encoded, text = data.encoded("train"), data.text("train")
    ids = [encoded.source.sentence(index).tolist() for index in range(len(encoded))]
    assert data.vocabulary.decode(ids) == [source for source, _ in text]
    samples = [json.loads(row) for row in Path(data.folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["reason"], row["line"]) for row in samples] == [
        *(("duplicate", line) for line in range(303, 308)),
        ("empty side", 301),
        ("over 63 subwords", 302),
    ]


def test_every_corpus_has_its_own_account_and_duplicates_are_found_across_them(tmp_path, monkeypatch):
    config = config_for(write_corpus(tmp_path), "data.shard_pairs=64")
    one = [(source.encode(), target.encode()) for source, target in [*SENTENCES[:150], ("", "x")]]
    other = [(source.encode(), target.encode()) for source, target in [*SENTENCES[100:], *SENTENCES[290:]]]
    original = sys.modules["dragoman.data.prepare"].corpora

    def corpora(part, config):
        return iter([("one", iter(one)), ("other", iter(other))]) if part == "train" else original(part, config)

    monkeypatch.setattr("dragoman.data.prepare.corpora", corpora)
    data = prepare(config, workers=2)
    assert data.manifest["train"]["corpora"] == {
        "one": {"pairs": 150, "text_pairs": 150, "read_pairs": 151, "dropped": {"empty side": 1}, "repaired": {}},
        "other": {"pairs": 150, "text_pairs": 150, "read_pairs": 210, "dropped": {"duplicate": 60}, "repaired": {}},
    }
    assert data.text("train") == SENTENCES
    rows = runs.read_rows(data.folder / "samples.jsonl")
    assert [(row["corpus"], row["line"]) for row in rows] == [("one", 151), *(("other", line) for line in range(1, 6))]
