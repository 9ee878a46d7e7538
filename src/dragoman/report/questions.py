"""The eleven questions, answered: 1 and 6 to 10 with a verdict; for the others this version lists what the run has
recorded and leaves the verdict to the reader."""

from __future__ import annotations

from dragoman.report import units
from dragoman.report.answer import QUESTIONS, Answer, Evidence
from dragoman.report.measures import last_step, stop_reason
from dragoman.report.read import RunRecord, number, text
from dragoman.report.size_questions import checkpoint_bytes, checkpoint_files, training_set
from dragoman.report.time_questions import duration, learning_rates, step, stop_in_words
from dragoman.runs import Row


def answers(record: RunRecord) -> list[Answer]:
    """All eleven, in order."""
    answered = {1: duration, 6: learning_rates, 7: training_set, 8: checkpoint_files, 9: checkpoint_bytes, 10: step}
    return [answered[n](record) if n in answered else unanswered(n, record) for n in QUESTIONS]


def unanswered(n: int, record: RunRecord) -> Answer:
    facts = {2: training_state, 3: both_losses, 4: gpus, 5: network, 11: network}[n](record)
    return Answer(n, QUESTIONS[n], "Not answered by this version.", facts, answered=False)


# --- facts without verdicts --------------------------------------------------------------------------------


def training_state(record: RunRecord) -> Evidence:
    rows = []
    if record.valid_rows:
        last = record.valid_rows[-1]
        rows.append((f"Validation at step {int(last['step']):,}", loss_and_bleu(last)))
    scored = [(bleu, int(row["step"])) for row in record.valid_rows if (bleu := number(row, "bleu")) is not None]
    if scored:
        rows.append(("Best validation BLEU", f"{max(scored)[0]:.1f} at step {max(scored)[1]:,}"))
    planned = f" of {record.config.train.max_steps:,} planned" if record.config else ""
    rows.append(("Steps", f"{units.count(last_step(record))}{planned}"))
    floor = number(record.environment, "model", "loss_floor")
    if floor is not None:
        rows.append(("Lowest loss that label smoothing allows", f"{floor:.4f} nats per target token"))
    return [*rows, ("Why it stopped", stop_in_words(stop_reason(record)))]


def loss_and_bleu(row: Row) -> str:
    loss, bleu = number(row, "loss"), number(row, "bleu")
    parts = [] if loss is None else [f"loss {loss:.3f} nats per target token"]
    return ", ".join(parts if bleu is None else [*parts, f"BLEU {bleu:.1f}"]) or units.NOT_RECORDED


def both_losses(record: RunRecord) -> Evidence:
    rows = []
    for label, found in (("Training", record.train_rows), ("Validation", record.valid_rows)):
        losses = [(loss, int(row["step"])) for row in found if (loss := number(row, "loss")) is not None]
        if losses:
            rows.append((f"{label} loss at step {losses[-1][1]:,}", f"{losses[-1][0]:.3f} nats per target token"))
            rows.append((f"Lowest {label.lower()} loss", f"{min(losses)[0]:.3f}, at step {min(losses)[1]:,}"))
    mind = [("Mind", "training loss is measured with dropout, validation loss without")] if len(rows) == 4 else []
    return rows + mind or [("Losses", units.NOT_RECORDED)]


def gpus(record: RunRecord) -> Evidence:
    device = f"{text(record.environment, 'device')} {text(record.environment, 'device_name')}".strip()
    return [("Device", device or units.NOT_RECORDED), ("Telemetry", telemetry(record))]


def network(record: RunRecord) -> Evidence:
    return [
        ("All-reduce of one step, predicted", units.size(number(record.environment, "model", "allreduce_bytes"))),
        ("Ranks", units.count(number(record.environment, "world_size"))),
        *((f"Links of {text(host, 'host')}", links(host)) for host in hosts(record)),
        ("Telemetry", telemetry(record)),
    ]


def hosts(record: RunRecord) -> list[Row]:
    return listed(record.environment, "hosts")


def links(host: Row) -> str:
    found = listed(host, "interfaces")
    speeds = [f"{text(link, 'name')} {units.link_speed(number(link, 'speed_mbit'))}" for link in found]
    return ", ".join(speeds) or units.NOT_RECORDED


def listed(row: Row, key: str) -> list[Row]:
    found = row.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def telemetry(record: RunRecord) -> str:
    filled = {host: len(rows) for host, rows in record.telemetry.items() if rows}
    samples = [f"{units.plural(many, 'sample')} of {host}" for host, many in filled.items()]
    return ", ".join(samples) or "none: telemetry/ holds no samples"
