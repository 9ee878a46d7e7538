"""HTML: the text between tags is translated, the tags stay.

What stands between two block boundaries is one passage, translated as a whole: a bold word does not cut its sentence. Tags inside a
passage go to the words of the translation that belong to theirs. Tags are given back as they came, text is escaped: a translation can
make no tag."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape, unescape
from html.parser import HTMLParser
from operator import itemgetter

from dragoman.translate.translator import Translation

INLINE = re.compile("a|abbr|b|bdi|bdo|big|cite|del|dfn|em|font|i|ins|label|mark|q|s|small|span|strike|strong|su[bp]|u")
# Left alone, with all that is in them, as is what says translate="no".
KEPT = re.compile("code|kbd|math|pre|samp|script|style|svg|template|textarea|var")
VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
DEEPEST, MOST = 30, 100  # inline elements in each other, and of a passage: one that has more is cut at every tag


@dataclass
class Element:
    """An inline element of a passage: its tags and the characters that it stands around."""

    name: str
    opening: str
    start: int
    closing: str = ""
    end: int = 0
    inside: list[Element] = field(default_factory=list)

    def empty(self) -> str:
        return self.opening + "".join(each.empty() for each in self.inside) + self.closing


@dataclass(frozen=True)
class Tag:
    """An inline tag."""

    name: str
    markup: str
    closes: bool


Run = str | Tag  # text, or a tag in it


@dataclass(frozen=True)
class Passage:
    """Text that is translated at once, with the inline elements in it."""

    text: str
    elements: list[Element]

    def written(self, translation: Translation) -> str:
        """The translation between the blanks that stood around the text."""
        before, after = self.text.split(self.text.strip(), 1)
        placed = Placing(self, translation).text() if self.elements else escape(translation.text, quote=False)
        return before + placed + after


class Placing:
    """Inline tags around the words of a translation."""

    def __init__(self, passage: Passage, translation: Translation):
        self.source = [word.span() for word in re.finditer(r"\S+", passage.text)]
        self.alignment = translation.alignment
        self.words = [escape(word, quote=False) for word in translation.text.split()] or [""]
        self.before, self.after = [""] * len(self.words), [""] * len(self.words)
        self.place(passage.elements, 0, len(self.words))

    def text(self) -> str:
        return " ".join(map("".join, zip(self.before, self.words, self.after, strict=True)))

    def place(self, elements: list[Element], low: int, high: int) -> None:
        """Among the words from `low` to `high`, in the order of the translation; none reaches into another."""
        for (first, last), element in sorted(((self.words_of(each), each) for each in elements), key=itemgetter(0)):
            first, last = (max(low, min(high, place)) for place in (first, last))
            if first < last:
                self.before[first] += element.opening
                self.place(element.inside, first, last)
                self.after[last - 1] += element.closing
            elif first < high:
                self.before[first] += element.empty()
            else:
                self.after[high - 1] += element.empty()
            low = last

    def words_of(self, element: Element) -> tuple[int, int]:
        """The longest run of words that belong to those of the element; of an element around everything, all."""
        inside = {at for at, (start, end) in enumerate(self.source) if start < element.end and end > element.start}
        if len(inside) == len(self.source):
            return 0, len(self.words)
        theirs = sorted({target for source, target in self.alignment if source in inside})
        if not theirs:
            later = [pair for pair in self.alignment if self.source[pair[0]][1] > element.start]
            return (place := min(later)[1] if later else len(self.words)), place
        runs = [[theirs[0]]]
        for target in theirs[1:]:
            if target != runs[-1][-1] + 1:
                runs.append([])
            runs[-1].append(target)
        longest = max(runs, key=len)
        return longest[0], longest[-1] + 1


class Document(HTMLParser):
    """Markup, which stays as it is, and what may be translated between it. An AssertionError tells of what is no HTML."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.parts: list[str | list[Run]] = []
        self.runs: list[Run] = []  # since the last boundary
        self.kept: list[str] = []  # open elements of a name that is left alone
        whole, end, rest = text.rpartition(">")
        self.feed(whole + end)
        self.close()
        if rest:  # no tag any more: a parser that looks for the end of one takes seconds
            self.handle_data(rest if self.cdata_elem else unescape(rest))
        self.boundary("")

    def plain(self) -> str:
        return " ".join(run for runs in self.parts if isinstance(runs, list) for run in runs if isinstance(run, str))

    def pieces(self, *, whole: bool) -> list[str | Passage]:
        """Not `whole`: cut at every tag, for languages whose words cannot be told apart."""
        return [piece for part in self.parts for piece in ([part] if isinstance(part, str) else cut(part, whole))]

    def boundary(self, markup: str) -> None:
        self.parts += [self.runs, markup]
        self.runs = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        markup = self.get_starttag_text() or ""
        if self.kept:
            self.kept += [tag] if tag == self.kept[0] else []
            self.parts.append(markup)
        elif INLINE.fullmatch(tag) and ("translate", "no") not in attrs:
            self.runs.append(Tag(tag, markup, closes=False))
        else:
            self.boundary(markup)
            if KEPT.fullmatch(tag) or (("translate", "no") in attrs and not VOID.fullmatch(tag)):
                self.kept = [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.boundary(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        markup = f"</{tag}>"
        if self.kept:
            self.parts.append(markup)
            self.kept = self.kept[tag == self.kept[0] :]
        elif INLINE.fullmatch(tag):
            self.runs.append(Tag(tag, markup, closes=True))
        else:
            self.boundary(markup)

    def handle_data(self, data: str) -> None:
        if self.kept:  # of a script it is what it is, elsewhere the parser has read its entities
            self.parts.append(data if self.cdata_elem else escape(data, quote=False))
        else:
            self.runs.append(data)

    def handle_comment(self, data: str) -> None:
        self.boundary(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.boundary(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self.boundary(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self.boundary(f"<![{data}]>")


def cut(runs: list[Run], whole: bool) -> Iterator[str | Passage]:
    """One passage, or where tags do not fit each other one for every text between two of them. What holds no letter stays."""
    elements = nested(runs) if whole else None
    text = "".join(run for run in runs if isinstance(run, str))
    if elements is not None and has_letters(text):
        yield Passage(text, elements)
        return
    for run in runs:
        if isinstance(run, Tag):
            yield run.markup
        else:
            yield Passage(run, []) if has_letters(run) else escape(run, quote=False)


def written(pieces: list[str | Passage], found: Iterator[list[Translation]]) -> list[str]:
    """The document and its alternatives, each made of those of its passages; `found`: the translations of all that come."""
    filled = [[piece] if isinstance(piece, str) else [piece.written(each) for each in next(found)] for piece in pieces]
    ranks = range(max(map(len, filled), default=1))
    return ["".join(each[min(rank, len(each) - 1)] for each in filled) for rank in ranks]


def nested(runs: list[Run]) -> list[Element] | None:
    """Elements out of tags; None where one is not closed, or too many are in each other."""
    top = Element("", "", 0)
    around, at, count = [top], 0, 0  # elements that are open here, characters and elements so far
    for run in runs:
        if isinstance(run, str):
            at += len(run)
        elif not run.closes:
            element = Element(run.name, run.markup, at)
            around[-1].inside.append(element)
            around.append(element)
            count += 1
            if len(around) > DEEPEST or count > MOST:
                return None
        elif around[-1].name == run.name:
            element = around.pop()
            element.closing, element.end = run.markup, at
        else:
            return None
    return top.inside if len(around) == 1 else None


def has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))
