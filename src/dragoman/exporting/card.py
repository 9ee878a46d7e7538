"""The model card: what a model is, what it was made from, how good it is, and how to use it; from the files of its run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman import __version__, runs
from dragoman.config import recorded_config
from dragoman.data.corpus import PARTS
from dragoman.errors import DragomanError
from dragoman.model.folder import read_description

RULE = "|---|---|---|---|"
HUGGING_FACE = """python -c "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained('.'), AutoTokenizer.from_pretrained('.')
print(tokenizer.batch_decode(model.generate(**tokenizer(['...'], return_tensors='pt')), skip_special_tokens=True))"
"""
USES = {
    "dragoman": "dragoman translate . < input.txt\ndragoman serve .",
    "ctranslate2": "dragoman translate . < input.txt\ndragoman serve .",
    "huggingface": HUGGING_FACE,
    "onnx": "python -c \"import onnxruntime; onnxruntime.InferenceSession('encoder.onnx')\"",
}


def write_card(
    fresh: Path,
    folder: Path,
    run: runs.RunFolder | None,
    origin: runs.Row,
    kind: str = "dragoman",
    quantization: str | None = None,
    licence: str = "",
) -> None:
    """Of the model at `folder`, made by `run` where it is at hand; `origin` is what its manifest says. Without a licence, that of
    an earlier card."""
    from dragoman.model.size import parameters  # and with it torch

    description = read_description(folder)
    count = parameters(description.model, description.vocab_size + description.source_vocab_size)
    licence = licence or licence_of(folder / "README.md")
    pair = f"{description.source_lang} to {description.target_lang or 'an unnamed language'}"
    head = ["---", "language:", *(f"- {code}" for code in (description.source_lang, description.target_lang) if code)]
    head += [f"license: {licence}"] if licence else []
    library = "transformers" if kind == "huggingface" else "dragoman"
    head += ["pipeline_tag: translation", f"library_name: {library}", "tags:", "- translation", "- dragoman", "---"]
    shape = description.model
    told, rows = before(folder / "README.md") if run is None else ([], [])
    table = scores(run, folder, origin, rows, rounded=quantization not in (None, "float32"))
    body = [
        f"# Translation from {pair}",
        "",
        f"A Transformer of {count:,} parameters: {shape.encoder_layers} + {shape.decoder_layers} layers, width {shape.d_model}, "
        f"{shape.heads} heads, {description.vocab_size:,} subwords, style {shape.style}. "
        f"Format: {kind}{f', weights in {quantization}' if quantization else ''}.",
        "",
        *(told or made_of(run, folder, origin)),
        *table,
        "## Licence",
        "",
        licence or "Not stated. Whoever publishes this model should say under which terms, as its training data allow.",
        "",
        "## Use",
        "",
        "```sh",
        USES[kind],
        "```",
        "",
        f"Written by dragoman {__version__} on {datetime.now(UTC).date().isoformat()}.",
    ]
    runs.write_text(fresh / "README.md", "\n".join([*head, "", *body, ""]))


def read(path: Path) -> Any:
    try:
        return runs.read_json(path)
    except DragomanError:
        return {}


def made_of(run: runs.RunFolder | None, folder: Path, origin: runs.Row) -> list[str]:
    """Data, steps and the commands that make the model again."""
    try:
        config = recorded_config(run.config) if run else None
    except DragomanError:
        config = None
    if run is None or config is None:
        source = origin.get("imported_from")
        told = f"Imported from `{source}`." if source else "Its run was not at hand when this was written."
        return ["## Origin", "", told, ""]
    data, machine, train = read(run.data), read(run.environment), config.train
    names = [corpus.name for corpus in config.data.corpora] or [config.data.train_source or config.data.corpus]
    averaged = origin.get("averaged_steps")
    step = f"mean of steps {averaged}" if averaged else f"step {runs.step_of(folder):,} of {train.max_steps:,}"
    return [
        "## Data",
        "",
        *(part_line(part, data[part]) for part in PARTS if part in data),
        f"- corpora: {', '.join(names)}",
        f"- digest: `{data.get('digest', '')[:16]}`",
        "",
        "## Training",
        "",
        *([f"- started from `{train.start_from}`"] if train.start_from else []),
        f"- {step}, {train.batch_tokens:,} target slots a step, {train.optimizer}, {config.schedule.policy} schedule",
        f"- {machine.get('world_size')} x {machine.get('device_name')}, {machine.get('precision')}, {machine.get('started')}",
        "",
        "```sh",
        "dragoman prepare run.toml",
        "dragoman train run.toml",
        "```",
        "",
    ]


def part_line(part: str, facts: runs.Row) -> str:
    size = (facts["source_bytes"] + facts["target_bytes"]) / 1e6
    dropped = sum(facts.get("dropped", {}).values())
    return f"- {part}: {facts['pairs']:,} pairs, {size:,.1f} MB, {facts['target_tokens']:,} target tokens, {dropped:,} dropped"


def before(path: Path) -> tuple[list[str], list[str]]:
    """Data and training as an earlier card told them, and the rows of its scores: the model was exported once already."""
    text = text_of(path)
    start, end = text.find("\n## "), text.find("\n## Licence")
    if not 0 <= start < end:
        return [], []
    told, _, table = text[start + 1 : end].partition("\n## Scores\n")
    return [*told.rstrip().splitlines(), ""], table.partition(RULE)[2].split("\n")


def licence_of(path: Path) -> str:
    """What the head of a card says, also of one that Hugging Face's files came with."""
    head = re.match(r"---\n(.*?)\n---\n", text_of(path), re.DOTALL)
    found = re.search(r"^license: *(\S.*?) *$", head[1], re.MULTILINE) if head else None
    return found[1].strip("'\"") if found else ""


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def scores(
    run: runs.RunFolder | None, folder: Path, origin: runs.Row, earlier: list[str], *, rounded: bool
) -> list[str]:
    """Those of an earlier card, of training, and what `dragoman evaluate` found; a model without a run keeps that itself. All are
    of the model as it was trained, which is said where its weights are `rounded` now."""
    found = origin.get("scores", {}).items()
    rows = [
        *filter(None, earlier),
        *(f"| validation | {name} | {score:.2f} | while training |" for name, score in found),
    ]
    for entry in read((run or runs.RunFolder(folder)).scores):
        if run is None or Path(entry["model"]).name == folder.name:
            rows += [
                f"| {entry['test_set']} ({entry['sentences']:,}) | {name} | {score['score']:.2f} | {escaped(score['signature'])} |"
                for name, score in entry["scores"].items()
            ]
    if not rows:
        return []
    if rounded:
        rows = [f"{row.removesuffix(' |')}, before quantisation |" for row in rows]
    return ["## Scores", "", "| set | metric | score | signature |", RULE, *dict.fromkeys(rows), ""]


def escaped(signature: str) -> str:
    return signature.replace("|", "\\|")
