"""Questions about size: 7 the training set, 8 the files of a checkpoint, 9 its bytes against the prediction."""

from __future__ import annotations

from dragoman.report import units
from dragoman.report.answer import Answer, Evidence, Table
from dragoman.report.contradictions import size_of
from dragoman.report.measures import Prediction, newest_checkpoint, predicted_bytes
from dragoman.report.read import Checkpoint, RunRecord, column, number, role, section, text
from dragoman.runs import Row


def training_set(record: RunRecord) -> Answer:
    """Counts are those of the manifest of the prepared data (data.json): UTF-8 bytes of the cleaned text, line ends
    included; MB = 10^6 bytes. Epochs are the pairs of the last row of metrics.jsonl over the lines of the set."""
    train = section(record.data, "train")
    pairs, source, target = (number(train, key) for key in ("pairs", "source_bytes", "target_bytes"))
    pairs = number(train, "text_pairs") or pairs  # a line that is cut in several ways is one line
    seen = number(record.last_row, "pairs")
    epochs = units.significant(seen / pairs) if pairs and seen is not None else units.NOT_RECORDED
    use = [("Pairs seen in training", units.count(seen)), ("Epochs (how often each pair was seen)", epochs)]
    if record.origin and pairs is not None:
        return Answer(7, f"{units.count(pairs, 'lines')} a side; its bytes are {units.NOT_RECORDED}.", use)
    if pairs is None or source is None or target is None:
        raise record.lacks("data.json", "does not give the pairs and bytes of the training set")
    from_lang, to_lang = (text(record.data, f"{side}_lang") or side for side in ("source", "target"))
    # Three digits, not one decimal: of a small set, 0.2 MB + 0.2 MB = 0.3 MB would be read as a mistake.
    from_mb, to_mb, both_mb = (units.significant(size / 1e6) for size in (source, target, source + target))
    verdict = f"{units.count(pairs, 'lines')} a side, {from_mb} MB {from_lang} + {to_mb} MB {to_lang} = {both_mb} MB"
    verdict += "." if epochs == units.NOT_RECORDED else f"; each pair was seen {epochs} times."
    evidence = [
        (f"Source side ({from_lang})", units.size(source)),
        (f"Target side ({to_lang})", units.size(target)),
        ("Lines (sentence pairs)", units.count(pairs)),
        ("Source tokens (subwords)", units.count(number(train, "source_tokens"))),
        ("Target tokens (subwords)", units.count(number(train, "target_tokens"))),
        *dropped(train, pairs),
        *use,
    ]
    return Answer(7, verdict, evidence, "training_set")


def dropped(train: Row, pairs: float) -> Evidence:
    counts = {reason: number(train, "dropped", reason) or 0.0 for reason in section(train, "dropped")}
    read, total, variants = number(train, "read_pairs"), sum(counts.values()), number(train, "variants") or 1.0
    rows = [("Lines read", units.count(read)), ("Dropped", units.count(total))]
    rows += [(f"Dropped: {reason}", units.count(many)) for reason, many in counts.items()]
    if variants > 1:  # then drops and pairs count each of them, and lines do not
        rows.append(("Ways to cut each pair into subwords", units.count(variants)))
    elif read is not None and read != pairs + total:
        rows.append(("Neither kept nor counted as dropped", units.count(read - pairs - total)))
    return rows


def checkpoint_files(record: RunRecord) -> Answer:
    """The files of the newest checkpoint as they lie on disk, compared in size with its manifest.json."""
    newest = newest_checkpoint(record)
    verdict = f"{units.plural(len(newest.files), 'file')}: {', '.join(newest.files)}."
    model = [name for name in newest.files if name in ("model.safetensors", "model.toml", "vocabulary.model")]
    evidence = [("Checkpoint looked at", f"{newest.name}, the newest of {len(record.checkpoints)} kept")]
    if newest.ours:
        evidence += [
            ("Enough to translate", ", ".join(model) if len(model) == 3 else "no: model files are missing"),
            ("Agrees with its manifest", "; ".join(newest.problems) or "yes, every size"),
        ]
    rows = [(name, role(name), f"{num_bytes:,}") for name, num_bytes in newest.files.items()]
    return Answer(8, verdict, evidence, "checkpoint_files", Table(("File", "Role", "Bytes"), rows))


def checkpoint_bytes(record: RunRecord) -> Answer:
    """Sum of the files of the newest checkpoint. Weights and Adam's two moments in fp32 are 3 x 4 bytes a parameter; one that is frozen
    has no moments; 16 bytes are counters. What ranks have for themselves (own-*) depends on the strategy and is not predicted. The
    headers are read from the safetensors files."""
    logged = [*filter(None, column(record.events_of("checkpoint"), "bytes"))]
    foreign = [each.bytes for each in record.checkpoints if not each.ours]
    known = foreign or (logged if not record.checkpoints else [])
    if held := size_of(record.stated.get("checkpoint")) or (known[-1] if known else None):
        return bytes_alone(held, number(record.environment, "model", "parameters"))
    newest = newest_checkpoint(record)
    verdict, compared = against_prediction(newest, predicted_bytes(record))
    vocabulary = newest.files.get("vocabulary.model", 0)
    described = newest.rest_bytes - newest.header_bytes - vocabulary
    everything = units.size(sum(checkpoint.bytes for checkpoint in record.checkpoints))
    evidence = [
        ("Whole checkpoint", f"{units.size(newest.bytes)}, {newest.bytes:,} bytes"),
        ("Tensors (weights, two moments)", f"{newest.tensor_bytes:,} bytes"),
        ("Names and shapes (safetensors headers)", f"{newest.header_bytes:,} bytes"),
        ("Vocabulary", f"{vocabulary:,} bytes"),
        ("Descriptions (TOML, JSON) and the rest", f"{described:,} bytes"),
        *compared,
        (f"All {units.plural(len(record.checkpoints), 'checkpoint')} on disk", everything),
    ]
    return Answer(9, verdict, evidence, "checkpoint_size")


def bytes_alone(held: float, parameters: float | None) -> Answer:
    """Of a checkpoint that is not here, but its size was written down: explained by bytes a parameter."""
    moments = "fp32 weights and Adam's two moments"
    kinds = {4: "weights alone", 12: moments, 14: f"{moments}, and half-precision copies"}
    each = held / parameters if parameters else 0.0
    fits = [f", {count} bytes a parameter: {words}" for count, words in kinds.items() if abs(each - count) < 0.35]
    expected = units.size(parameters and 12 * parameters + 16)
    evidence = [("Parameters", units.count(parameters)), ("Prediction: 12 bytes a parameter + 16", expected)]
    return Answer(9, f"{units.size(held)}{''.join(fits)}.", evidence)


def against_prediction(checkpoint: Checkpoint, predicted: Prediction | None) -> tuple[str, Evidence]:
    whole, tensors = units.size(checkpoint.bytes), units.decimal_size(checkpoint.tensor_bytes)
    if predicted is None:
        verdict = f"{whole}; what it should weigh cannot be said, because the number of parameters is not recorded."
        return verdict, [("Prediction", f"{units.NOT_RECORDED}: environment.json does not give the parameters")]
    rest, difference = units.decimal_size(checkpoint.rest_bytes), checkpoint.tensor_bytes - predicted.bytes
    # The reference kept its step and Adam's powers as tensors; here the step is in training.json.
    reason = " (counters are no tensors in this format)" if difference == -16 else ""
    a_parameter = f"{checkpoint.tensor_bytes / predicted.parameters:.3f} bytes of tensors each"
    own = [("Of it, what ranks have for themselves", f"{checkpoint.own_bytes:+,} bytes")]
    evidence = [
        ("Parameters", f"{predicted.parameters:,}, at {a_parameter}"),
        (f"Prediction: {predicted.words}", f"{predicted.bytes:,} bytes = {units.size(predicted.bytes)}"),
        ("Difference", f"{checkpoint.bytes - predicted.bytes:+,} bytes"),
        ("Of it, headers, vocabulary, descriptions", f"{checkpoint.rest_bytes:+,} bytes"),
        *(own if checkpoint.own_bytes else []),
        ("Of it, tensors", f"{difference:+,} bytes{reason}"),
    ]
    if abs(difference) > 16:
        verdict = f"{whole}; its tensors take {tensors}, NOT the predicted {units.decimal_size(predicted.bytes)}."
        return verdict, evidence
    what = "weights, their average and moments" if "weights.safetensors" in checkpoint.files else "weights and moments"
    verdict = f"{whole}: {tensors} of {what}, as {predicted.words} predict"
    if checkpoint.own_bytes:
        verdict += f", {units.decimal_size(checkpoint.own_bytes)} that ranks have for themselves"
    return f"{verdict}, and {rest} of vocabulary and descriptions.", evidence
