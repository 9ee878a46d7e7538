"""Results of stages, told to people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman import runs


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    found = Table(*heads)
    for row in rows:
        found.add_row(*row)
    Console(highlight=False).print(found)


def prepared(folder: Path, manifest: dict[str, Any]) -> None:
    print(
        f"prepared: {folder} ({manifest['vocabulary']['size']:,} pieces, {manifest['source_lang']} to {manifest['target_lang']})"
    )
    for part in ("train", "valid", "test"):
        if part in manifest:
            print(f"  {part:5s} {part_line(manifest[part])}")
    if manifest["train"]["dropped"]:
        print(f"  a few of the dropped pairs: {folder / 'samples.jsonl'}")


def part_line(part: dict[str, Any]) -> str:
    origin = f" ({part['text_pairs']:,} cut {part['variants']} ways)" if part["variants"] > 1 else ""
    megabytes = (part["source_bytes"] + part["target_bytes"]) / 1e6
    text = f"{part['pairs']:,} pairs{origin}, {megabytes:.1f} MB, {part['target_tokens']:,} target tokens"
    text += f", {part['unknown_tokens']:,} tokens unknown" if part["unknown_tokens"] else ""
    drops = ", ".join(f"{count:,} {reason}" for reason, count in part["dropped"].items())
    return f"{text}; dropped: {drops}" if drops else text


def trained(folder: str, again: str, reason: str) -> None:
    if reason in ("interrupted", "terminated", "max_hours"):
        print(f"{reason}, with a checkpoint: {folder}\nnext: {again}")
    else:
        known = runs.read_json(runs.RunFolder(folder).data)
        files = "" if "test" in known else " --source FILE --reference FILE"
        print(f"trained ({reason}): {folder}\nnext: dragoman evaluate {folder}{files}, dragoman report {folder}")


def scores(results: list[dict[str, Any]]) -> None:
    for result in results:
        step = f", step {result['step']:,}" if result["step"] is not None else ""
        test_set = f"{result['sentences']:,} sentences of {result['test_set']}"
        print(f"{result['model']}{step}: {test_set}, beam {result['beam']}, {result['seconds']:.1f} s")
        other = result.get("against", {})
        for name, score in result["scores"].items():
            print(f"  {name.upper():5s} {score['score']:6.2f}   {score['signature']}")
            if name in other:
                p, difference = other[name]["p_value"], other[name]["difference"]
                words = "significant" if p < 0.05 else "may be chance"
                print(f"        {difference:+6.2f}   against {other['system']}: p = {p:.3f}, {words}")
    if len(results) > 1:
        ranking(results)


def ranking(results: list[dict[str, Any]]) -> None:
    names = list(results[0]["scores"])
    order = sorted(results, key=lambda result: result["scores"][names[0]]["score"], reverse=names[0] != "ter")
    rows = [[str(each["model"]), *(f"{score['score']:.2f}" for score in each["scores"].values())] for each in order]
    table(["model", *names], rows)
