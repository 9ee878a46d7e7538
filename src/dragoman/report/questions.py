"""The eleven questions, answered: 1 and 6 to 10 with a verdict; for the others this version lists what the run has
recorded and leaves the verdict to the reader. How an answer is derived is the docstring of its function."""

from __future__ import annotations

from dataclasses import replace

from dragoman.report import units
from dragoman.report.answer import Answer, Evidence
from dragoman.report.measures import last_step, series
from dragoman.report.read import NotRecorded, RunRecord, number, sections, text
from dragoman.report.size_questions import checkpoint_bytes, checkpoint_files, training_set
from dragoman.report.time_questions import duration, learning_rates, step, why_it_stopped
from dragoman.runs import Row


def answers(record: RunRecord) -> list[Answer]:
    """All eleven, in order."""
    answered = {1: duration, 6: learning_rates, 7: training_set, 8: checkpoint_files, 9: checkpoint_bytes, 10: step}
    facts = {2: training_state, 3: both_losses, 4: gpus, 5: network, 11: network}
    found = {n: Answer(n, "Not answered by this version.", told(record), answered=False) for n, told in facts.items()}
    for n, answer in answered.items():
        try:
            found[n] = replace(answer(record), derivation=" ".join((answer.__doc__ or "").split()))
        except NotRecorded as reason:
            found[n] = Answer(n, f"Not recorded: {reason}.")
    return [found[n] for n in sorted(found)]


def training_state(record: RunRecord) -> Evidence:
    rows = []
    for last in record.valid_rows[-1:]:
        words = {"loss": "loss {:.3f} nats per target token", "bleu": "BLEU {:.1f}"}
        scores = [said.format(value) for key, said in words.items() if (value := number(last, key)) is not None]
        rows.append((f"Validation at step {last['step']:,}", ", ".join(scores) or units.NOT_RECORDED))
    steps, scored = series(record.valid_rows, "bleu")
    if scored:
        best, at = max(zip(scored, steps, strict=True))
        rows.append(("Best validation BLEU", f"{best:.1f} at step {at:,}"))
    planned = f" of {record.config.train.max_steps:,} planned" if record.config else ""
    rows.append(("Steps", f"{units.count(last_step(record))}{planned}"))
    floor = number(record.environment, "model", "loss_floor")
    if floor is not None:
        rows.append(("Lowest loss that label smoothing allows", f"{floor:.4f} nats per target token"))
    return [*rows, ("Why it stopped", why_it_stopped(record))]


def both_losses(record: RunRecord) -> Evidence:
    rows = []
    for label, found in (("Training", record.train_rows), ("Validation", record.valid_rows)):
        steps, losses = series(found, "loss")
        if losses:
            lowest, at = min(zip(losses, steps, strict=True))
            rows.append((f"{label} loss at step {steps[-1]:,}", f"{losses[-1]:.3f} nats per target token"))
            rows.append((f"Lowest {label.lower()} loss", f"{lowest:.3f}, at step {at:,}"))
    mind = [("Mind", "training loss is measured with dropout, validation loss without")] if len(rows) == 4 else []
    return rows + mind or [("Losses", units.NOT_RECORDED)]


def gpus(record: RunRecord) -> Evidence:
    device = f"{text(record.environment, 'device')} {text(record.environment, 'device_name')}".strip()
    return [("Device", device or units.NOT_RECORDED), ("Telemetry", telemetry(record))]


def network(record: RunRecord) -> Evidence:
    return [
        ("All-reduce of one step, predicted", units.size(number(record.environment, "model", "allreduce_bytes"))),
        ("Ranks", units.count(number(record.environment, "world_size"))),
        *((f"Links of {text(host, 'host')}", links(host)) for host in sections(record.environment, "hosts")),
        ("Telemetry", telemetry(record)),
    ]


def links(host: Row) -> str:
    speeds = {text(link, "name"): number(link, "speed_mbit") for link in sections(host, "interfaces")}
    return ", ".join(f"{name} {units.link_speed(speed)}" for name, speed in speeds.items()) or units.NOT_RECORDED


def telemetry(record: RunRecord) -> str:
    samples = [f"{units.plural(len(rows), 'sample')} of {host}" for host, rows in record.telemetry.items() if rows]
    return ", ".join(samples) or "none: telemetry/ holds no samples"
