"""How full are the rows, how random are they, and how fast are they packed?

    python bench/packing.py [SOURCE TARGET] [--width 128] [--window 16384] [--pairs 200000]

SOURCE and TARGET are aligned text files (plain, gz, xz); without them lengths are drawn like those of WMT sentences. Words
are counted as 1.3 subwords when no SentencePiece model is given with --model. Prints a table and, as its last line, one
JSON object. The peer is first fit in random order, the packing that one writes first.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.benchmark.sentences import draw_lengths
from dragoman.data.corpus import raw_pairs
from dragoman.data.pack import Ints, Packing, Position, Row, rows_from
from dragoman.data.subwords import Vocabulary

PERCENTILES = (0, 5, 25, 50, 75, 95, 100)  # over the steps of an epoch


def main() -> None:
    options = parse()
    if options.files:
        source, target = real_lengths(options)
    else:
        source, target = draw_lengths(options.pairs, options.width - 1, np.random.default_rng(0))
    fits = (source <= options.width) & (target <= options.width)
    source, target = source[fits], target[fits]
    start = time.perf_counter()
    rows = epoch(source, target, Packing(options.width, options.window, 1))
    seconds = time.perf_counter() - start
    plain = first_fit(source[:20_000], target[:20_000], options.width)
    figures = {
        "bench": "packing",
        "pairs": len(source),
        "target_fill": round(float(target.sum()) / (options.width * len(rows)), 4),
        "source_fill": round(float(source.sum()) / (options.width * len(rows)), 4),
        "first_fit_target_fill": round(float(target[:20_000].sum()) / (options.width * plain), 4),
        "target_tokens_per_s": round(float(target.sum()) / seconds),
        **randomness(rows, target),
    }
    for name, value in figures.items():
        print(f"{name:34s} {value}")
    print(json.dumps(figures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--model", type=Path, help="SentencePiece model to count subwords with")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--window", type=int, default=16_384)
    parser.add_argument("--pairs", type=int, default=200_000)
    return parser.parse_args()


def real_lengths(options: argparse.Namespace) -> tuple[Ints, Ints]:
    pairs = [(a.decode(), b.decode()) for a, b in islice(raw_pairs(*options.files), options.pairs)]
    if options.model:
        vocabulary = Vocabulary(options.model)
        source, target = ([len(ids) for ids in vocabulary.encode([pair[side] for pair in pairs])] for side in (0, 1))
    else:
        source, target = ([round(1.3 * (pair[side].count(" ") + 1)) + 1 for pair in pairs] for side in (0, 1))
    return np.array(source), np.array(target)


def epoch(source: Ints, target: Ints, packing: Packing) -> list[Row]:
    """All rows of the first epoch."""
    rows: list[Row] = []
    for row, behind in rows_from(Position(), source, target, packing):
        rows.append(row)
        if behind.epoch:
            return rows
    raise AssertionError("the stream of rows is endless")


def first_fit(source: Ints, target: Ints, width: int) -> int:
    """Rows needed when every pair goes into the first row that holds it, in the order of the corpus."""
    free: list[list[int]] = []
    for need_source, need_target in zip(source.tolist(), target.tolist(), strict=True):
        row = next((room for room in free[-200:] if room[0] >= need_source and room[1] >= need_target), None)
        if row is None:
            row = [width, width]
            free.append(row)
        row[0] -= need_source
        row[1] -= need_target
    return len(free)


def randomness(rows: list[Row], target: Ints) -> dict[str, Any]:
    """Steps of 256 rows: the mean length of their sentences, and its drift over the epoch, against steps of as many pairs
    drawn at random. A curriculum by length would have percentiles far apart, or a drift."""
    steps = [np.concatenate([target[row] for row in rows[at : at + 256]]) for at in range(0, len(rows) - 255, 256)]
    random = np.random.default_rng(0)
    drawn = [random.choice(target, len(step)) for step in steps]
    return {
        f"{name}_{what}": value
        for name, each in (("packed", steps), ("drawn", drawn))
        for what, value in means(each).items()
    }


def means(steps: list[Ints]) -> dict[str, Any]:
    found = np.array([step.mean() for step in steps])
    drift = np.corrcoef(found, np.arange(len(found)))[0, 1] if len(found) > 2 else 0.0
    return {
        "mean_length_percentiles": {str(part): round(float(np.percentile(found, part)), 2) for part in PERCENTILES},
        "mean_length_std": round(float(found.std()), 3),
        "correlation_with_step": round(float(drift), 3),
    }


if __name__ == "__main__":
    main()
