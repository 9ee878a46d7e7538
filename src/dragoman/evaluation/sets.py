"""Test sets: two files, a name that sacreBLEU knows, or the set that a run was prepared with."""

from __future__ import annotations

from pathlib import Path

from dragoman import runs
from dragoman.config import recorded_config
from dragoman.data.clean import checked
from dragoman.data.corpus import Pair, raw_pairs
from dragoman.data.encode import PreparedData
from dragoman.errors import ConfigError, DataError


def test_set(
    run: runs.RunFolder | None, source: str | None, reference: str | None, named: str | None, languages: tuple[str, str]
) -> tuple[str, list[Pair]]:
    """Its name and its pairs of source and reference."""
    if named and (source or reference):
        raise DataError("a test set is named with --set, or two files with --source and --reference, not both")
    if named:
        return named_set(named, languages)
    if source and reference:
        pairs = checked(raw_pairs(Path(source), Path(reference)), f"{source} / {reference}").pairs()
        if not pairs:
            raise DataError(f"{source}: is empty")
        return Path(source).name, pairs
    if source or reference:
        raise DataError("a test set has two files: name both --source and --reference")
    if run is None:
        raise DataError(
            "this model folder belongs to no run, so it has no test set; name one with --source and --reference, or --set"
        )
    return "test", PreparedData(recorded_config(run.config).data.folder).text("test")


def pair_of(named: str | None) -> tuple[str, str] | None:
    """The languages that a name of a set ends with, if it names any: wmt14:de-en."""
    source, _, target = (named or "").partition(":")[2].partition("-")
    return (source, target) if source else None


def named_set(text: str, languages: tuple[str, str]) -> tuple[str, list[Pair]]:
    """`wmt14`, or `wmt14/full:de-en` where the model does not know its languages. Downloaded once, by sacreBLEU."""
    from sacrebleu.utils import get_available_testsets, get_langpairs_for_testset, get_reference_files, get_source_file

    name, pair = text.partition(":")[0], "-".join(pair_of(text) or languages)
    if name not in get_available_testsets():
        raise ConfigError([f"test set {name!r} is not known to sacreBLEU; `sacrebleu --list` prints all"], "evaluate")
    if pair not in get_langpairs_for_testset(name):
        known = ", ".join(get_langpairs_for_testset(name)[:12])
        raise ConfigError([f"test set {name} has no pair {pair!r}; it has {known}; say {name}:PAIR"], "evaluate")
    try:
        files = [get_source_file(name, pair), get_reference_files(name, pair)[0]]
        sides = [Path(file).read_text(encoding="utf-8").removesuffix("\n").split("\n") for file in files]
    except Exception as error:  # a border: whatever its download may raise
        raise DataError(
            f"test set {name}: sacreBLEU could not get it ({error}). Without a network, copy its files into $SACREBLEU"
        ) from None
    return f"{name} {pair}", list(zip(*sides, strict=True))
