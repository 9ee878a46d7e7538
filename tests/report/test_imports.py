"""Logs of other systems, and figures that people published: read in the right units, and nothing made up."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dragoman.config import load_config
from dragoman.config.schedule import learning_rate
from dragoman.errors import RunError
from dragoman.monitor.sinks import Metrics, TensorBoard
from dragoman.report import import_run, write
from dragoman.report.contradictions import bytes_per_s, seconds_of, size_of, unit_slip
from dragoman.report.findings import findings
from dragoman.report.questions import answers
from dragoman.report.read import RunRecord

HERE = Path(__file__).parent
LOGS, REFERENCE = HERE / "logs", HERE / "reference"


def verdicts(record: RunRecord) -> dict[int, str]:
    return {answer.number: answer.verdict for answer in answers(record)}


def titles(record: RunRecord) -> str:
    return "\n".join(f"{finding.title}: {finding.cause}" for finding in findings(record))


def test_openseq2seq_log() -> None:
    record = import_run(LOGS / "nohup.out")
    assert record.origin == "an OpenSeq2Seq log (nohup.out)"
    assert [row["step_seconds"] for row in record.train_rows] == [1.951, 1.940, 1.946]
    assert [row["loss"] for row in record.train_rows] == [1.7010, 1.6611, 1.6348]
    (valid,) = record.valid_rows
    assert (valid["loss"], valid["teacher_forced_bleu"]) == (1.6273, 36.9)
    assert "bleu" not in valid, "what was fed the reference is no BLEU"
    assert record.probes[61501][0].translation == "<s> Es ist kalt . </s>"
    said = verdicts(record)
    assert "an average one took 1.95 s" in said[10]
    assert said[7] == "Not recorded: an OpenSeq2Seq log (nohup.out) does not tell."
    assert said[1].startswith("About 33 h 20 min 50 s, if all 61,701 steps took 1.95 s as those in the log did")
    assert "The steps in the log took 1.95 s on average, its last lines say 1.71 s" in titles(record)
    evidence = {number: dict(answer.evidence) for number, answer in enumerate(answers(record), 1)}
    assert evidence[2]["Why it stopped"] == "it is told that it ended"
    assert evidence[10]["Measured over"] == "300 steps in 3 rows of metrics", "the log begins late"
    assert said[8] == "Not recorded: no checkpoint lies beside an OpenSeq2Seq log (nohup.out)."
    assert evidence[2]["Its own BLEU: fed the reference, over subword pieces"].startswith("36.9; no sacreBLEU")
    assert "floor of label smoothing is subtracted (1.3648 nats" in evidence[2]["Its loss"]
    assert evidence[10]["Average step, by its log"] == "1.71 s"
    assert evidence[10]["Source and target tokens a step, by its log"] == "62,408"  # 36,410.491/s x 1.714 s


def test_an_openseq2seq_log_that_breaks_off_is_no_finished_run(tmp_path: Path) -> None:
    log = (LOGS / "nohup.out").read_text().partition("*** Finished")[0]
    (tmp_path / "nohup.out").write_text(log)
    record = import_run(tmp_path / "nohup.out")
    assert not record.events
    assert "its last lines say" not in titles(record)


def test_fairseq_log_counts_in_bits() -> None:
    record = import_run(LOGS / "fairseq.log")
    assert [row["step"] for row in record.train_rows] == [100, 200]
    assert record.train_rows[1]["loss"] == pytest.approx(10.0 * math.log(2))
    assert record.train_rows[1]["step_seconds"] == pytest.approx(0.4)
    assert record.valid_rows[0]["loss"] == pytest.approx(9.0 * math.log(2))
    assert record.valid_rows[0]["bleu"] == 1.5
    assert verdicts(record)[1].startswith("2 min 2 s from start to stop")
    said = verdicts(record)
    assert "here from 398 pairs and 12,184 target tokens" in said[10]
    assert said[7] == "160,239 lines a side; its bytes are not recorded."
    assert said[6].startswith("The rate rises from 1.25e-5 to 2.5e-5 at step 200; its formula is not recorded")
    assert record.environment == {"model": {"parameters": 39469056}, "world_size": 4}
    assert said[5].startswith("Not recorded"), "four devices, but nobody says on how many hosts"
    assert "an average one took 0.400 s (0.610 s with validation" in verdicts(record)[10], "122 s over 200 steps"


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_times_without_a_zone_are_those_of_the_log(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        evidence = dict(answers(import_run(LOGS / "fairseq.log"))[0].evidence)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert evidence["Start"] == "2021-05-03 12:00:00 by the log's clock"


def test_fairseq_log_in_json_says_the_same(tmp_path: Path) -> None:
    """As `--log-format json` writes it: numbers in quotes, names with the kind before them."""
    lines = []
    for line in (LOGS / "fairseq.log").read_text().splitlines():
        head, _, facts = line.rpartition("epoch 001")
        found = re.findall(r"([a-z_]+)[= ]([\d.e-]+)", facts)
        kind = {"valid": "valid_", "train": "train_"}.get((head.split("|") * 2)[-2].strip(), "")
        lines.append(f"{head}{json.dumps({f'{kind}{key}': value for key, value in found})}" if found and head else line)
    (tmp_path / "train.log").write_text("\n".join(lines))
    assert '"valid_bleu": "1.5"' in "".join(lines)
    plain, in_json = (import_run(at) for at in (LOGS / "fairseq.log", tmp_path / "train.log"))
    assert in_json.train_rows == plain.train_rows
    assert in_json.valid_rows == plain.valid_rows
    assert in_json.events == plain.events


def test_checkpoints_of_others_are_found_and_weighed(tmp_path: Path) -> None:
    log = (LOGS / "nohup.out").read_text()
    (tmp_path / "nohup.out").write_text(f"*** Total trainable parameters: 1000\n{log}")
    for step, part, size in (
        (100, "index", 7),
        (61701, "data-00000-of-00001", 12_000),
        (61701, "index", 50),
        (61701, "meta", 20),
    ):
        (tmp_path / f"model.ckpt-{step}.{part}").write_bytes(b"x" * size)
    said = verdicts(import_run(tmp_path / "nohup.out"))
    assert said[8].startswith("3 files: model.ckpt-61701.data-00000-of-00001, ")
    assert "12 bytes a parameter: fp32 weights and Adam's two moments" in said[9]
    (tmp_path / "hf" / "checkpoint-400").mkdir(parents=True)
    (tmp_path / "hf" / "trainer_state.json").write_text((LOGS / "trainer_state.json").read_text())
    (tmp_path / "hf" / "checkpoint-400" / "optimizer.pt").write_bytes(b"x" * 5000)
    assert verdicts(import_run(tmp_path / "hf"))[8] == "1 file: optimizer.pt."


def test_hugging_face_state(tmp_path: Path) -> None:
    record = import_run(LOGS / "trainer_state.json")
    assert [row["loss"] for row in record.valid_rows] == [3.2, 2.9]
    assert record.train_rows[-1]["learning_rate"] == 0.0
    assert verdicts(record)[1].startswith("3 min 20 s from start to stop")
    assert dict(answers(record)[0].evidence)["Validation"] == "20.9 s (10.4 %)"
    assert verdicts(record)[6].startswith("The rate falls from 5e-5 to 0 at step 400; its formula is not recorded")
    assert "an average one took 0.448 s (0.500 s with validation" in verdicts(record)[10], (
        "20.9 s of 200 s were evaluation"
    )
    assert dict(answers(record)[9].evidence)["Measured over"] == "400 steps in 1 row of metrics"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trainer_state.json").write_text((LOGS / "trainer_state.json").read_text())
    assert import_run(tmp_path / "out").valid_rows == record.valid_rows


def write_events(folder: Path, rows: dict[str, list[tuple[int, float]]]) -> None:
    writer = EventFileWriter(str(folder))
    for tag, values in rows.items():
        for step, value in values:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=1e9 + step, step=step, summary=summary))
    writer.close()


def test_tensorboard_with_the_tags_of_the_reference_and_its_rates_checked(tmp_path: Path) -> None:
    rate = learning_rate(load_config("transformer-base"))
    rates = [(step, rate(step)) for step in range(0, 20_000, 1000)]
    others = {"train_loss": [(1000, 4.0)], "eval_loss": [(4000, 1.8)], "Eval_BLEU_Score": [(4000, 0.35)]}
    write_events(tmp_path / "logs", {"learning_rate": rates, "global_step/sec": [(1000, 0.5)], **others})
    record = import_run(tmp_path / "logs", "transformer-base")
    assert "all 20 logged rates follow from the step alone" in verdicts(record)[6]
    assert record.valid_rows[0]["teacher_forced_bleu"] == pytest.approx(35.0)
    assert "an average one took 2.00 s" in verdicts(record)[10]
    wrong = import_run(tmp_path / "logs", "transformer-big")
    assert "do NOT obey the formula" in verdicts(wrong)[6]


@pytest.mark.parametrize("tags", ["openseq2seq", "own"])
def test_what_we_write_for_tensorboard_comes_back_the_same(tmp_path: Path, tags: str) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", [TensorBoard(tmp_path / "logs", tags)])
    train = [
        {"step": step, "loss": 4.0 / step, "learning_rate": 0.5, "grad_norm": 2.0, "loss_scale": 1024.0}
        for step in (1, 64)
    ]
    for row in train:
        metrics.write({"kind": "train", **row, "step_seconds": 0.25})
    metrics.write({"kind": "valid", "step": 50, "loss": 2.5, "bleu": 25.0})
    metrics.close()
    record = import_run(tmp_path / "logs")
    assert [{key: row[key] for key in train[0]} for row in record.train_rows] == train
    assert [row["step_seconds"] for row in record.train_rows] == [0.25, 0.25]
    (valid,) = record.valid_rows
    assert (valid["step"], valid["loss"], valid["bleu"]) == (50, 2.5, 25.0)


def test_tensorboard_of_our_own_runs(tmp_path: Path) -> None:
    write_events(tmp_path / "logs", {"train/loss": [(10, 3.0)], "valid/bleu": [(10, 25.0)], "eval/loss": [(10, 2.5)]})
    record = import_run(tmp_path / "logs")
    assert record.train_rows[0]["loss"] == 3.0
    assert (record.valid_rows[0]["bleu"], record.valid_rows[0]["loss"]) == (25.0, 2.5)


@pytest.mark.parametrize("content", ["", "hello\nworld\n", '{"log_history": 7}', '{"a": 1}', "steps = [1"])
@pytest.mark.parametrize("name", ["a.log", "trainer_state.json", "stated.toml"])
def test_what_is_no_log_gets_one_line(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RunError) as caught:
        import_run(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.report"))


def test_an_import_is_written_beside_its_log(tmp_path: Path) -> None:
    log = tmp_path / "nohup.out"
    log.write_text((LOGS / "nohup.out").read_text())
    pages = write(import_run(log))
    assert [page.parent.name for page in pages] == ["nohup.out.report"] * 3
    assert "Not recorded" in pages[1].read_text()


# --- the five reference runs ---


@pytest.mark.parametrize("here", [".", "..", "../run"])
def test_the_folder_one_stands_in_is_imported_by_its_name(
    here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "trainer_state.json").write_text((LOGS / "trainer_state.json").read_text())
    monkeypatch.chdir(tmp_path / "run" / ("logs" if here == ".." else "."))
    record = import_run(here)
    assert record.origin == "a Hugging Face run (run)"
    assert record.folder.path.resolve() == tmp_path / "run.report"


def test_report_a_and_b_agree_and_did_not_know_it() -> None:
    said = verdicts(import_run(REFERENCE / "a.toml"))
    assert said[9].startswith("730.9 MB (697.0 MiB), 12 bytes a parameter: fp32 weights and Adam's two moments")
    assert said[1].startswith("51 h 55 min 45 s")
    assert said[10].endswith("an average one took 1.80 s."), "it was stated once"
    assert "730.6 MB" not in titles(import_run(REFERENCE / "a.toml"))
    assert verdicts(import_run(REFERENCE / "b.toml"))[9].startswith("731.0 MB (697.1 MiB), 12 bytes a parameter")


def test_report_b_had_the_network_wrong() -> None:
    record = import_run(REFERENCE / "b.toml")
    said, found = verdicts(record), titles(record)
    assert said[5].startswith(
        "Very probably yes: 365.3 MB must leave a host at every step of 1.90 s, 192.3 MB/s = 1.54 Gbit/s"
    )
    assert "200.0 MB/s = 1.60 Gbit/s were seen on the wire: it is the gradients" in said[5]
    assert "48 of 250 W, they were waiting" in said[5]
    assert said[4].startswith("No, in spite of 100.0 % utilisation: busy 100.0 % of the time, 48 W of 250 W")
    assert (
        "“180-210 Mbps” was said, 200,000 KB/s was measured: they differ 8.21 times: bytes were read as bits" in found
    )
    assert "the network was not the bottleneck, 180-210 Mbps” is not what the numbers say" in found
    assert "the GPUs were 100 % utilised” is not what the numbers say" in found


CLAIMED = {  # answers to questions that the numbers of report B answer with no, yes and "from the step alone"
    4: (
        ["Yes", "yes, all of them", "Fully utilised", "100% busy", "They were 100 % utilised, not less"],
        ["No", "no, they were not fully utilised", "They weren't fully utilised", "not at 100 %", "48 of 250 W"],
    ),
    5: (
        ["No bottleneck", "No, the disk was", "It was not the bottleneck", "the bottleneck was the disk, not the network",
         "the bottleneck was not the network but the disk", "the disk was the bottleneck and the network was not"],
        ["Yes", "the network was the bottleneck, not the disk", "It was not the disk, the network was the bottleneck",
         "the bottleneck was the network", "the network carried 1.6 Gbit/s"],
    ),
    6: (
        ["it falls when bleu no longer improves", "It follows a plateau"],
        ["it follows the step, not BLEU", "from the step, neither from BLEU nor from a plateau"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", CLAIMED)
def test_only_answers_that_disagree_are_called_wrong(question: int, tmp_path: Path) -> None:
    facts = (REFERENCE / "b.toml").read_text().partition("[said]")[0]
    path = tmp_path / "stated.toml"

    def called_wrong(said: str) -> bool:
        path.write_text(f"{facts}[said]\n{question} = {json.dumps(said)}\n")
        return f"Question {question}: “{said}” is not what the numbers say" in titles(import_run(path))

    disagreeing, agreeing = CLAIMED[question]
    assert [said for said in disagreeing + agreeing if called_wrong(said)] == disagreeing


def test_report_c_contradicts_itself() -> None:
    record = import_run(REFERENCE / "c.toml")
    assert "44,012 steps of 0.590 s are 7 h 12 min 47 s, not 1 h 53 min 0 s" in titles(record)
    assert "there is room for 11,492 such steps" in titles(record)
    assert (
        verdicts(record)[9]
        == "852.3 MB (812.8 MiB), 14 bytes a parameter: fp32 weights and Adam's two moments, and half-precision copies."
    )


def test_reports_d_and_e_misread_seconds_and_the_learning_rate() -> None:
    record = import_run(REFERENCE / "d.toml")
    assert "“2 minutes” was said, 1.946 s was measured: they differ 61.7 times: seconds were read as minutes" in titles(
        record
    )
    for name in ("d", "e"):
        record = import_run(REFERENCE / f"{name}.toml")
        assert "from the step alone, neither from BLEU nor from a plateau" in verdicts(record)[6]
        assert "is not what the numbers say" in titles(record)
        assert "9.88" in verdicts(record)[6] or "0.000988" in verdicts(record)[6]


@pytest.mark.parametrize(
    ("name", "needs"), [("c", "at every step of 0.590 s, 619.1 MB/s = 4.95 Gbit/s"), ("e", "215.6 MB/s = 1.73 Gbit/s")]
)
def test_reports_c_and_e_are_not_cleared_of_the_network(name: str, needs: str, tmp_path: Path) -> None:
    said = verdicts(import_run(REFERENCE / f"{name}.toml"))
    assert said[5].startswith("Cannot be told, exposed communication is not recorded; but 365.3 MB must leave a host")
    assert needs in said[5]
    assert said[11] == f"Not recorded: stated figures ({name}.toml) does not tell."


@pytest.mark.parametrize("gpu", ["", "[gpu]\nutilization_percent = 100\npower_watts = 48\npower_limit_watts = 250\n"])
def test_ranks_and_hosts_that_nobody_stated_are_not_made_up(tmp_path: Path, gpu: str) -> None:
    facts = re.sub(r"(ranks|hosts) = .*\n", "", (REFERENCE / "c.toml").read_text()) + gpu
    (tmp_path / "stated.toml").write_text(facts)
    record = import_run(tmp_path / "stated.toml")
    said = verdicts(record)
    assert [said[number] for number in (5, 11)] == ["Not recorded: stated figures (stated.toml) does not tell."] * 2
    assert said[4].startswith("No, in spite of 100.0 % utilisation" if gpu else "Not recorded")
    page = write(record)[1].read_text()
    assert "no GPU" not in page
    assert "1970" not in page


@pytest.mark.parametrize("name", "abcde")
def test_every_reference_run_makes_a_page(name: str, tmp_path: Path) -> None:
    (tmp_path / "stated.toml").write_text((REFERENCE / f"{name}.toml").read_text())
    html = write(import_run(tmp_path / "stated.toml"))[0].read_text()
    assert html.count('class="said"') == 11


def test_amounts_are_read_with_their_units() -> None:
    assert bytes_per_s("200,000 KB/s") == 2e8
    assert bytes_per_s("180-210 Mbps") == bytes_per_s("195 Mbit/s") == 195e6 / 8
    assert size_of("697 MiB") == 697 * 2**20
    assert (size_of("731 MB"), size_of("731"), size_of(None)) == (731e6, None, None)
    assert seconds_of("51 h 55 min 45 s") == 51 * 3600 + 55 * 60 + 45
    assert seconds_of("2 minutes") == seconds_of("2 m") == 120.0
    assert {seconds_of(said) for said in ("1 h 53 m", "1h53m", "1:53:00", "1 hour, 53 mins", "6,780 sec")} == {6780.0}
    assert (seconds_of("2 m 5 s"), seconds_of("250 ms"), seconds_of("0:00:01.9")) == (125.0, 0.25, 1.9)
    assert bytes_per_s("1.6 Gb/s") == bytes_per_s("1.6 Gbit/s") == bytes_per_s("200 MB/s")
    for said in ("1:53", "3 months", "5", "1 h and more", "1,9 s", "1.2.3 s"):
        assert seconds_of(said) is None, said
    assert unit_slip(697 * 2**20, 731e6) == ""
    assert "MB (10^6) and MiB" in unit_slip(697e6, 697 * 2**20)
    assert "no slip" in unit_slip(1.0, 2.5)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [('duration = "1:53"', "duration = '1:53'"), ("step_time = 1.9", "step_time = 1.9"),
     ('[read]\nnetwork_rate = "a lot"', "read.network_rate = 'a lot'")],
)  # fmt: skip
def test_stated_figures_that_cannot_be_read_are_named(tmp_path: Path, line: str, wrong: str) -> None:
    (tmp_path / "stated.toml").write_text(f"steps = 100\n{line}\n")
    with pytest.raises(RunError, match=rf"stated.toml: {re.escape(wrong)} cannot be read; write it as"):
        import_run(tmp_path / "stated.toml")


def test_a_hugging_face_folder_whose_state_lies_in_its_checkpoints(tmp_path):
    """While it trains, trainer_state.json is in checkpoint-N only; the newest by number counts, not by name."""
    state = json.loads((LOGS / "trainer_state.json").read_text())
    for step in (90, 400):
        (tmp_path / f"checkpoint-{step}").mkdir()
        rows = [entry for entry in state["log_history"] if entry["step"] <= max(step, 100)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state | {"log_history": rows}))
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(bytes(4000))
    whole, alone = import_run(tmp_path), import_run(tmp_path / "checkpoint-400")
    assert [row["step"] for row in whole.train_rows] == [row["step"] for row in alone.train_rows]
    assert whole.train_rows[-1]["step"] == 400
    assert [each.name for each in whole.checkpoints] == ["checkpoint-90", "checkpoint-400"]
    assert [(each.name, sorted(each.files)) for each in alone.checkpoints] == [
        ("checkpoint-400", ["model.safetensors", "trainer_state.json"])
    ]
