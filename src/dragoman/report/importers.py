"""Runs of other systems -> RunRecord, as far as their logs go: OpenSeq2Seq, fairseq, Hugging Face, TensorBoard, and figures that people
published. Losses come out in nats per token, times in seconds; what a log does not say stays empty."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman.config import load_config
from dragoman.errors import RunError
from dragoman.report import units
from dragoman.report.contradictions import STATED, seconds_of
from dragoman.report.read import Checkpoint, RunRecord, Sample, by_step, section
from dragoman.runs import OURS, Row, RunFolder

NUMBER = r"([-+]?[\d.]+(?:[eE][-+]?\d+)?|nan|inf)"
ENDED = "it is told that it ended"
TEACHER_FORCED = "teacher_forced_bleu"
REFERENCE_TAGS = {  # of OpenSeq2Seq
    "learning_rate": ("train", "learning_rate"),
    "train_loss": ("train", "loss"),
    "Loss_Optimization/global_gradient_norm": ("train", "grad_norm"),
    "Loss_Optimization/loss_scale": ("train", "loss_scale"),
    "global_step/sec": ("train", "steps_per_s"),
    "eval_loss": ("valid", "loss"),
    "Eval_BLEU_Score": ("valid", TEACHER_FORCED),
}


def import_run(path: str | Path, run_file: str | None = None) -> RunRecord:
    """Whatever is there, by its looks. `run_file`: the configuration it is said to have had, to check its learning rates against."""
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path}: no such file or folder to import")
    path = path if path.name.strip(".") else path.resolve()  # "." and ".." have no name to call a folder after
    kind, reader = recognise(path)
    record = RunRecord(RunFolder(path.with_name(f"{path.name}.report")), f"{kind} ({path.name})")
    if run_file:
        record.config = load_config(run_file)
    try:
        reader(path, record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: looks like {kind} and cannot be read as such ({error})") from error
    if not record.train_rows and not record.valid_rows:
        raise RunError(f"{path}: looks like {kind}, but holds no step that could be read")
    record.checkpoints = checkpoints_in(path if path.is_dir() else path.parent)
    return record


def recognise(path: Path) -> tuple[str, Callable[[Path, RunRecord], None]]:
    if path.is_dir() or ".tfevents." in path.name:
        states = sorted(path.glob("checkpoint-*/trainer_state.json"), key=lambda file: step_in(file.parent.name))
        states += path.glob("trainer_state.json")  # of the whole run
        if states:
            return "a Hugging Face run", lambda _, record: hugging_face(states[-1], record)
        return "TensorBoard files", tensorboard
    if path.suffix == ".toml":
        return "stated figures", stated
    if path.suffix == ".json":
        return "a Hugging Face trainer state", hugging_face
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith("*** Global step") or "OpenSeq2Seq" in line:
                return "an OpenSeq2Seq log", openseq2seq
            if "num_updates" in line:
                return "a fairseq log", fairseq
    known = "OpenSeq2Seq (nohup.out), fairseq, trainer_state.json, TensorBoard files and stated.toml"
    raise RunError(f"{path}: not a log that is known here; {known} are")


# --- logs in lines -----------------------------------------------------------------------------------------


def openseq2seq(path: Path, record: RunRecord) -> None:
    """Its time a step is printed as h:mm:s and includes evaluations; its loss has the floor of label smoothing subtracted; its
    BLEU was fed the reference and counts subword pieces: none of them is called by our names."""
    rows: list[Row] = []
    step, sample = 0, dict[str, str]()
    floor = "the floor of label smoothing is subtracted (1.3648 nats at 0.1 over 32,768 classes)"
    record.notes[2] = [("Its loss", floor)]
    for line in content_of(path).split("\n"):
        if found := re.match(rf"\*\*\* Global step (\d+):.*Train loss:\s*{NUMBER}", line):
            step = int(found[1]) + 1  # counted from 0
            rows.append({"kind": "train", "step": step, "loss": float(found[2])})
        elif found := re.match(r"time per step = (\d+):(\d+):([\d.]+)", line):
            hours, minutes, seconds = map(float, found.groups())
            rows.append({"kind": "train", "step": step, "step_seconds": 3600 * hours + 60 * minutes + seconds})
        elif found := re.match(rf"\*\*\*\s+(Validation loss|Eval BL(?:UE|EU) score):\s*{NUMBER}", line):
            key, scale = ("loss", 1.0) if "loss" in found[1] else (TEACHER_FORCED, 100.0)
            rows.append({"kind": "valid", "step": step, key: scale * float(found[2])})
        elif found := re.match(r"\*\*\*\s+Train (Source|Target|Prediction)\[0\]:\s*(.*)", line):
            sample[found[1]] = found[2]
            if found[1] == "Prediction":
                record.probes[step] = [Sample(sample.get("Source", ""), sample.get("Target", ""), found[2])]
        elif found := re.match(r"\*\*\*\s+Total trainable parameters: (\d+)", line):
            knows_parameters(record, found)
        elif found := re.match(rf"\*\*\* Avg time per step:\s*{NUMBER}s", line):
            record.own_average = average = float(found[1])
            rows.insert(0, {"kind": "train", "step": step, "step_seconds": average})  # unless the step tells its own
        elif found := re.match(rf"\*\*\* Avg objects per second:\s*{NUMBER}", line):
            knows_objects(record, float(found[1]))
        elif line.startswith("*** Finished training"):
            record.events = [{"time": 0.0, "event": "stop", "step": step, "reason": ENDED}]
    fill(record, rows)


def knows_objects(record: RunRecord, per_s: float) -> None:
    rows = [("Source and target tokens a second, by its log", units.rough(per_s))]
    if pace := record.own_average:
        rows.insert(0, ("Average step, by its log", units.duration(pace)))
        rows.append(("Source and target tokens a step, by its log", units.count(per_s * pace)))
    record.notes[10] = rows


def fairseq(path: Path, record: RunRecord) -> None:
    """Its losses are in bits (base 2): times ln 2 they are nats. Its times are those of the clock there, wherever that was."""
    record.clock = "by the log's clock"
    content = content_of(path)
    rows, epochs, times = list[Row](), list[Row](), list[float]()
    names = {"nll_loss": "nll", "lr": "learning_rate", "gnorm": "grad_norm", "bleu": "bleu"}
    names |= {"wps": "target_tokens_per_s", "bsz": "pairs_a_step", "wpb": "target_tokens_a_step"}
    written = rf"\b([a-z_]+)[= ]{NUMBER}(?=[,|\s]|$)"
    for line in content.split("\n"):
        facts = loose_json(line) or dict(re.findall(written, line.rpartition("INFO")[2]))  # log-format json, or simple
        kind = ""
        if "| valid" in line or "valid_loss" in facts:
            kind = "valid"
        elif "| train" in line or "ups" in facts:
            kind = "train"
        facts = {key.removeprefix(f"{kind}_"): float(value) for key, value in facts.items() if is_number(value)}
        if when := re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line):
            times.append(datetime.fromisoformat(when[1]).replace(tzinfo=UTC).timestamp())
        if not kind or not facts.get("num_updates") or "loss" not in facts:
            continue
        row: Row = {"kind": kind, "step": int(facts["num_updates"]), "loss": facts["loss"] * math.log(2)}
        row |= {"time": times[-1]} if times else {}
        row |= {ours: facts[theirs] for theirs, ours in names.items() if theirs in facts}
        row |= {"nll": row["nll"] * math.log(2)} if "nll" in row else {}
        row |= {"step_seconds": 1 / facts["ups"]} if facts.get("ups") and kind == "train" else {}
        (epochs if "| train |" in line else rows).append(row)  # means over an epoch
    fill(record, rows if any(row["kind"] == "train" for row in rows) else rows + epochs)
    count_up(record.train_rows)
    done = re.search(rf"done training in {NUMBER} seconds", content)
    ran(record, times[0] if times else 0.0, float(done[1]) if done else None)
    if times and not done:
        record.events = [{"time": times[0], "event": "start", "step": 0}]
    knows_parameters(record, re.search(r"num\. (?:shared )?model params: ([\d,]+)", content))
    if devices := re.search(r"training on (\d+) (?:devices|GPUs)", content):
        record.environment["world_size"] = int(devices[1])
    if examples := re.search(r"\btrain \S+ ([\d,]+) examples|loaded ([\d,]+) examples from: \S*\btrain\.", content):
        record.data = {"train": {"pairs": int((examples[1] or examples[2]).replace(",", ""))}}


def count_up(rows: list[Row]) -> None:
    """Pairs and tokens seen so far, from those of a step: means over the steps since the row before."""
    totals, before = dict.fromkeys(("pairs", "target_tokens"), 0.0), 0
    for row in rows:
        for key in totals:
            if f"{key}_a_step" in row:
                totals[key] += row.pop(f"{key}_a_step") * (row["step"] - before)
                row[key] = totals[key]
        before = row["step"]


def hugging_face(path: Path, record: RunRecord) -> None:
    state = json.loads(path.read_text(encoding="utf-8"))
    rows: list[Row] = []
    took, evaluating = None, sum(float(entry.get("eval_runtime") or 0.0) for entry in state["log_history"])
    for entry in state["log_history"]:
        row: Row = {"kind": "train", "step": int(entry.get("step") or 0)}
        if "train_runtime" in entry:  # the last entry; its train_loss is the mean of the whole run
            took = float(entry["train_runtime"])
            pace = (took - evaluating) / max(1, row["step"])
            rows.append(row | {"step_seconds": pace, "steps": row["step"]})
        elif "eval_loss" in entry:
            scores = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            rows.append(row | scores | {"kind": "valid", "seconds": entry.get("eval_runtime")})
        elif "loss" in entry:
            keys = ("loss", "learning_rate", "grad_norm", "epoch")
            rows.append(row | {key: entry[key] for key in keys if key in entry})
    fill(record, rows)
    ran(record, 0.0, took)


def tensorboard(path: Path, record: RunRecord) -> None:
    """The reference's tags, or names of the form train/loss and eval/loss."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folders = {file.parent for file in path.rglob("*.tfevents.*")} if path.is_dir() else {path}
    rows = dict[tuple[str, int], Row]()
    for folder in sorted(folders):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        tags = events.Tags()["scalars"]
        bleu = "bleu" if OURS in tags else TEACHER_FORCED  # our own runs translate freely, whatever their tags are
        for tag in tags:
            kind, key = REFERENCE_TAGS.get(tag) or tag.replace("eval/", "valid/").rpartition("/")[::2]
            for event in events.Scalars(tag) if kind in ("train", "valid") else []:
                step = event.step + (tag in REFERENCE_TAGS and kind == "train")  # the reference counts from 0
                row = rows.setdefault((kind, step), {"kind": kind, "step": step, "time": event.wall_time})
                row[bleu if key == TEACHER_FORCED else key] = event.value * (100.0 if key == TEACHER_FORCED else 1.0)
    for row in rows.values():
        if row.get("steps_per_s"):
            row["step_seconds"] = 1 / row["steps_per_s"]
    fill(record, rows.values())
    times = [row["time"] for row in rows.values()]
    if times:
        record.events = [{"time": min(times), "event": "start", "step": 0}]


# --- published figures -------------------------------------------------------------------------------------


def stated(path: Path, record: RunRecord) -> None:
    """A table of figures that somebody wrote down about a run, `[read]` what was read off screens, `[said]` answers that were given."""
    facts = tomllib.loads(path.read_text(encoding="utf-8"))
    for table, prefix in ((facts, ""), (section(facts, "read"), "read.")):
        for key, (parse, example) in STATED.items():
            if key in table and parse(table[key]) is None:
                raise RunError(f'{path}: {prefix}{key} = {table[key]!r} cannot be read; write it as "{example}"')
    record.stated = facts
    steps, ranks, parameters, gpu = int(facts["steps"]), facts.get("ranks"), facts.get("parameters"), facts.get("gpu")
    if "preset" in facts:
        record.config = load_config(facts["preset"])
    places = stated_hosts(facts.get("hosts", 1 if gpu else 0), ranks, gpu)
    ring = 8 * (ranks - 1) * parameters // ranks if parameters and ranks else None
    record.environment = {"world_size": ranks, "device": "cuda" if gpu else "", "hosts": places}
    exchange = {"strategy": "ring", "wire": "fp32", "sent_bytes": ring}
    record.environment |= {"model": {"parameters": parameters}, "exchange": exchange}
    took, pace = (seconds_of(facts.get(key)) for key in ("duration", "step_time"))
    row: Row = {"kind": "train", "step": steps, "step_seconds": pace, "time": took or 0.0}
    fill(record, [row, *({"kind": "valid", **valid} for valid in facts.get("validation", []))])
    for place in places if gpu else []:
        record.telemetry[place["host"]] = [{"time": row["time"], "gpus": [gpu] * len(place["gpus"])}]
    ran(record, 0.0, took)


def stated_hosts(hosts: int, ranks: int | None, gpu: Row | None) -> list[Row]:
    """As many as were told, alike; nothing is told of what nobody stated."""
    each = max(1, ranks // hosts) if ranks and hosts else None
    facts: Row = {"gpus": [{"power_limit_watts": gpu.get("power_limit_watts")}] * (each or 1)} if gpu else {}
    return [
        {"host": f"node {at + 1}", **({"ranks": list(range(at * each, (at + 1) * each))} if each else {}), **facts}
        for at in range(hosts)
    ]


# --- what all have in common -------------------------------------------------------------------------------


def content_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def loose_json(line: str) -> Row:
    try:
        found = json.loads(line[line.index("{") :])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def fill(record: RunRecord, rows: Iterable[Row]) -> None:
    """Several rows of one step and kind are one."""
    merged = defaultdict[tuple[str, int], Row](dict)
    for row in rows:
        merged[row["kind"], row["step"]] |= row
    record.train_rows, record.valid_rows = (by_step(list(merged.values()), kind) for kind in ("train", "valid"))


def knows_parameters(record: RunRecord, found: re.Match[str] | None) -> None:
    if found:
        record.environment = {"model": {"parameters": int(found[1].replace(",", ""))}}


def checkpoints_in(folder: Path) -> list[Checkpoint]:
    """By step: folders of Hugging Face, or such a folder itself; files of TensorFlow that share a prefix, files of fairseq."""
    groups = dict[str, list[Path]]()
    own = folder.glob("*") if re.fullmatch(r"checkpoint-\d+", folder.name) else ()
    for file in (*folder.glob("checkpoint-*/*"), *folder.glob("model.ckpt-*"), *folder.glob("checkpoint*.pt"), *own):
        whole = file.parent != folder or own
        name = file.parent.name if whole else re.sub(r"(?<=model\.ckpt-)(\d+)\..*", r"\1", file.name)
        groups.setdefault(name, []).append(file)
    return [Checkpoint(name, groups[name]) for name in sorted(groups, key=lambda name: (step_in(name), name))]


def step_in(name: str) -> int:
    """The last number of a name."""
    return int(found[-1]) if (found := re.findall(r"\d+", name)) else 0


def ran(record: RunRecord, begin: float, seconds: float | None) -> None:
    if not seconds:
        return
    last, timed = record.last_row.get("step", 0), [row for row in record.valid_rows if row.get("seconds")]
    record.events = [
        {"time": begin, "event": "start", "step": 0},
        *({"time": begin, "event": "validation", "step": row["step"], "seconds": row["seconds"]} for row in timed),
        {"time": begin + seconds, "event": "stop", "step": last, "reason": ENDED, "seconds": seconds},
    ]
