"""Questions about size: 7 the training set, 8 the files of a checkpoint, 9 its bytes against the prediction."""

from __future__ import annotations

from dataclasses import replace

from dragoman.report import units
from dragoman.report.answer import Answer, Evidence, Table, answer, not_recorded
from dragoman.report.measures import CheckpointSize, checkpoint_size
from dragoman.report.read import RunRecord, number, section
from dragoman.runs import Row

NO_CHECKPOINT = "there is no whole checkpoint in checkpoints/ yet"


# --- 7: training set ---------------------------------------------------------------------------------------


def training_set(record: RunRecord) -> Answer:
    train = section(record.data, "train")
    pairs, source, target = (number(train, key) for key in ("pairs", "source_bytes", "target_bytes"))
    if pairs is None or source is None or target is None:
        return not_recorded(7, record.why("data.json", "does not give the pairs and bytes of the training set"))
    seen = number(record.train_rows[-1], "pairs") if record.train_rows else None
    epochs = None if seen is None or not pairs else units.significant(seen / pairs)
    from_lang, to_lang = (str(record.data.get(f"{side}_lang", side)) for side in ("source", "target"))
    # Three digits, not one decimal: of a small set, 0.2 MB + 0.2 MB = 0.3 MB would be read as a mistake.
    source_mb, target_mb, both_mb = (units.significant(size / 1e6) for size in (source, target, source + target))
    verdict = (
        f"{units.count(pairs, 'lines')} a side, {source_mb} MB {from_lang} + {target_mb} MB {to_lang} = {both_mb} MB"
        f"{f'; each pair was seen {epochs} times' if epochs else ''}."
    )
    evidence = [
        (f"Source side ({from_lang})", units.size(source)),
        (f"Target side ({to_lang})", units.size(target)),
        ("Lines (sentence pairs)", units.count(pairs)),
        ("Source tokens (subwords)", units.count(number(train, "source_tokens"))),
        ("Target tokens (subwords)", units.count(number(train, "target_tokens"))),
        *dropped(train),
        ("Pairs seen in training", units.count(seen)),
        ("Epochs (how often each pair was seen)", epochs or units.NOT_RECORDED),
    ]
    derivation = (
        "Counts are those of the manifest of the prepared data (data.json): UTF-8 bytes of the cleaned text, line ends "
        "included; MB = 10^6 bytes. Epochs are the pairs of the last row of metrics.jsonl over the pairs of the set."
    )
    return answer(7, verdict, evidence, "training_set", derivation)


def dropped(train: Row) -> Evidence:
    counts = {reason: number(section(train, "dropped"), reason) or 0.0 for reason in section(train, "dropped")}
    read, total = number(train, "read_pairs"), sum(counts.values())
    rows = [("Lines read", units.count(read)), ("Dropped", units.count(total))]
    rows += [(f"Dropped: {reason}", units.count(many)) for reason, many in counts.items()]
    astray = 0.0 if read is None else read - total - (number(train, "pairs") or 0.0)
    return [*rows, ("Neither kept nor counted as dropped", f"{astray:,.0f}")] if astray else rows


# --- 8 and 9: checkpoint -----------------------------------------------------------------------------------


def checkpoint_files(record: RunRecord) -> Answer:
    if not record.checkpoints:
        return not_recorded(8, NO_CHECKPOINT)
    newest = record.checkpoints[-1]
    model = [file.name for file in newest.files if file.name in ("model.safetensors", "model.toml", "vocabulary.model")]
    verdict = f"{units.plural(len(newest.files), 'file')}: {', '.join(file.name for file in newest.files)}."
    evidence = [
        ("Checkpoint looked at", f"{newest.folder.name}, the newest of {len(record.checkpoints)} kept"),
        ("Enough to translate", ", ".join(model) if len(model) == 3 else "no: model files are missing"),
        ("Agrees with its manifest", "; ".join(newest.problems) or "yes, every size"),
    ]
    derivation = "The files of the newest checkpoint as they lie on disk, compared in size with its manifest.json."
    table = Table(("File", "Role", "Bytes"), [(file.name, file.role, f"{file.bytes:,}") for file in newest.files])
    return replace(answer(8, verdict, evidence, "checkpoint_files", derivation), table=table)


def checkpoint_bytes(record: RunRecord) -> Answer:
    if not record.checkpoints:
        return not_recorded(9, NO_CHECKPOINT)
    parameters = number(record.environment, "model", "parameters")
    parts = checkpoint_size(record.checkpoints[-1], parameters)
    everything = units.size(sum(checkpoint.bytes for checkpoint in record.checkpoints))
    evidence = [
        ("Whole checkpoint", f"{units.size(parts.total)}, {parts.total:,} bytes"),
        ("Tensors (weights, two moments)", f"{parts.tensors:,} bytes"),
        ("Names and shapes (safetensors headers)", f"{parts.headers:,} bytes"),
        ("Vocabulary", f"{parts.vocabulary:,} bytes"),
        ("Descriptions (TOML, JSON) and the rest", f"{parts.rest:,} bytes"),
        *prediction(parts, parameters),
        (f"All {units.plural(len(record.checkpoints), 'checkpoint')} on disk", everything),
    ]
    derivation = (
        "Sum of the files of the newest checkpoint. Weights and Adam's two moments in fp32 are 3 x 4 bytes a "
        "parameter; 16 bytes are counters. The headers are read from the safetensors files."
    )
    return answer(9, size_verdict(parts), evidence, "checkpoint_size", derivation)


def size_verdict(parts: CheckpointSize) -> str:
    whole, tensors = units.size(parts.total), units.decimal_size(parts.tensors)
    if parts.predicted is None:
        return f"{whole}; what it should weigh cannot be said, because the number of parameters is not recorded."
    if abs(parts.tensors - parts.predicted) > 16:
        return f"{whole}; its tensors take {tensors}, NOT the predicted {units.decimal_size(parts.predicted)}."
    return (
        f"{whole}: {tensors} of weights and moments, as 12 bytes a parameter + 16 predict, "
        f"and {units.decimal_size(parts.total - parts.tensors)} of vocabulary and descriptions."
    )


def prediction(parts: CheckpointSize, parameters: float | None) -> Evidence:
    if parts.predicted is None or not parameters:
        return [("Prediction", f"{units.NOT_RECORDED}: environment.json does not give the parameters")]
    tensors, rest = parts.tensors - parts.predicted, parts.total - parts.tensors
    # The reference kept its step and Adam's powers as tensors; here the step is in training.json.
    reason = " (counters are no tensors in this format)" if tensors == -16 else ""
    return [
        ("Parameters", f"{parameters:,.0f}, at {parts.tensors / parameters:.3f} bytes of tensors each"),
        ("Prediction: 12 bytes a parameter + 16", f"{parts.predicted:,} bytes = {units.size(parts.predicted)}"),
        ("Difference", f"{tensors + rest:+,} bytes"),
        ("Of it, headers, vocabulary, descriptions", f"{rest:+,} bytes"),
        ("Of it, tensors", f"{tensors:+,} bytes{reason}"),
    ]
