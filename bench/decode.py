"""Translating against Hugging Face `generate`, same weights, same sentences, each at its best batch size; and what quantising costs.

    python bench/decode.py runs/first --source newstest.en --reference newstest.de        # a trained model: BLEU too
    python bench/decode.py --preset transformer-base --device cuda --sentences 8192       # random weights, drawn sentences
    python bench/decode.py --preset tiny --sentences 64 --batches 8 32                    # the same, small, on a CPU

Counted are target tokens a second of the best hypotheses, without padding; search is beam 4 everywhere. What is first done with
a shape (kernels chosen, graphs recorded) is done before the clock starts, for everybody. The latency is the median of one sentence
of about 30 subwords at a time. With random weights nothing ends by itself: translations are as long as their sources.
Prints a table and, as its last line, one JSON object.

hugging face          transformers in fp16 on a GPU, fp32 on a CPU                    torch    our search in torch
ctranslate2-<type>    our engine for CPUs, with the weights in this type              cold     a process from start to first translation
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import border
import torch
from marian import up_to_end
from rich.console import Console
from rich.table import Table

from dragoman.benchmark.sentences import learn_words
from dragoman.benchmark.step import synchronize
from dragoman.config import load_config
from dragoman.data.subwords import BOS, EOS, PAD, Vocabulary
from dragoman.errors import require_extra
from dragoman.evaluation.evaluate import run_of
from dragoman.evaluation.metrics import score
from dragoman.evaluation.sets import test_set
from dragoman.exporting import export
from dragoman.exporting.huggingface import their_config, their_tensors
from dragoman.model.folder import Description, write_model
from dragoman.model.transformer import Transformer
from dragoman.parallel.mesh import pick_device
from dragoman.translate.ct2_engine import CTranslate2Engine
from dragoman.translate.models import find_model, read_whole
from dragoman.translate.request import Engine, Request
from dragoman.translate.torch_engine import TorchEngine

Ids = list[list[int]]
Search = Callable[[Ids], Ids]  # of one batch: the best hypothesis of every source
TYPICAL = 30  # subwords of the sentence whose latency is measured


# --- what is compared --------------------------------------------------------------------------------------


def own(engine: Engine, request: Request) -> Search:
    return lambda sources: [found[0].ids for found in engine.search(sources, [[]] * len(sources), request)]


def hugging_face(folder: Path, request: Request, device: torch.device) -> Search:
    library = require_extra("transformers", "bench", "the peer")
    ours, description, _ = read_whole(folder)
    config = their_config(description)
    kind = library.MarianMTModel if config["model_type"] == "marian" else library.PegasusForConditionalGeneration
    model = kind(kind.config_class(**config))
    model.load_state_dict(their_tensors(ours), strict=False)
    model.tie_weights()
    model = model.to(device, torch.float16 if device.type == "cuda" else torch.float32).eval()

    @torch.inference_mode()
    def search(sources: Ids) -> Ids:
        width = max(map(len, sources))
        ids = torch.tensor([source + [PAD] * (width - len(source)) for source in sources], device=device)
        found = model.generate(
            input_ids=ids,
            attention_mask=(ids != PAD).long(),
            num_beams=request.beam,
            length_penalty=request.length_penalty,
            early_stopping=True,
            do_sample=False,
            max_new_tokens=width + request.extra_length,
            bad_words_ids=[[PAD], [BOS]],
        )
        return [up_to_end(row[1:]) for row in found.tolist()]

    return search


# --- measures ----------------------------------------------------------------------------------------------


def throughput(search: Search, sources: Ids, size: int, device: torch.device, times_before: int) -> tuple[float, Ids]:
    """Target tokens/s with batches of so many sentences of similar length, and all translations."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    split = [order[start : start + size] for start in range(0, len(order), size)]
    if device.type == "cuda":
        for _ in range(times_before):
            for batch in split:
                search([sources[index] for index in batch])
    else:
        search([sources[index] for index in split[-1]])
    synchronize(device)
    start, found = time.perf_counter(), [[] for _ in sources]
    for batch in split:
        for index, ids in zip(batch, search([sources[index] for index in batch]), strict=True):
            found[index] = ids
    synchronize(device)
    return sum(len(ids) + 1 for ids in found) / (time.perf_counter() - start), found


def latency(search: Search, sources: Ids, device: torch.device, times: int) -> float:
    """Milliseconds of one sentence, the median of several."""
    chosen = min(sources, key=lambda source: abs(len(source) - 1 - TYPICAL))
    took = []
    for _ in range(times + 3):
        start = time.perf_counter()
        search([chosen])
        synchronize(device)
        took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took[3:])


def cold(folder: Path) -> float:
    """Seconds of a whole process: start, load, one translation, end."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "dragoman", "translate", str(folder), "--device", "cpu"]
    subprocess.run(command, input="This is a test.\n", text=True, check=True, capture_output=True)
    return time.perf_counter() - start


# --- models and sentences ----------------------------------------------------------------------------------


def random_folder(preset: str, folder: Path) -> Path:
    """A model of random weights, with words that mean nothing."""
    config = load_config(preset)
    size, words = config.subwords.vocab_size, folder / "words" / "vocabulary.model"
    words.parent.mkdir(parents=True)
    learn_words(size, words)
    model = Transformer(config.model, size)
    model.init_weights(1)
    searched = config.translate.model_copy(update={"extra_length": 1})  # nothing ends by itself
    description = Description(config.model, size, "en", "de", searched)
    write_model(folder, model.state_dict(), description, words)
    return folder


def drawn(count: int, vocabulary: int) -> Ids:
    """Lengths as in news: 28 subwords on average, a long tail."""
    draw = random.Random(1)
    lengths = [min(120, max(3, round(draw.lognormvariate(3.2, 0.5)))) for _ in range(count)]
    return [[*(draw.randrange(4, vocabulary) for _ in range(length)), EOS] for length in lengths]


def sentences(options: argparse.Namespace, vocabulary: Vocabulary) -> tuple[Ids, list[str], list[str]]:
    """Sources as ids; texts and references where there are some."""
    if not options.model:
        return drawn(options.sentences, len(vocabulary)), [], []
    _, pairs = test_set(run_of(Path(options.model)), options.source, options.reference, None, ("", ""))
    texts, references = ([pair[side] for pair in pairs[: options.sentences]] for side in (0, 1))
    return vocabulary.source.encode(texts), texts, references


# --- the story ---------------------------------------------------------------------------------------------


def main() -> None:
    options = parse()
    device = pick_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(options.threads)  # all systems have as many
    with tempfile.TemporaryDirectory(prefix="dragoman-") as temporary:
        scratch = Path(temporary)
        folder = find_model(Path(options.model)) if options.model else random_folder(options.preset, scratch / "random")
        vocabulary = read_whole(folder)[2]
        sources, texts, references = sentences(options, vocabulary)
        request = Request(beam=options.beam, extra_length=50 if options.model else 1)
        rows: dict[str, dict[str, Any]] = {}
        for name, search in systems(folder, vocabulary, request, device, scratch, options):
            rows[name] = row = {}
            for size in options.batches:
                try:
                    # On a GPU our second time with a shape is recorded; others have nothing to do then.
                    speed, found = throughput(search, sources, size, device, 2 if name == "torch" else 1)
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    continue
                row[f"batch_{size}"] = round(speed, 1)
                print(f"{name}, batches of {size}: {speed:,.0f} target tokens/s", file=sys.stderr, flush=True)
            row["best"] = max(value for key, value in row.items() if key.startswith("batch_"))
            row["latency_ms"] = round(latency(search, sources, device, options.times), 2)
            if references:
                row["bleu"] = score(texts, vocabulary.decode(found), references, ["bleu"])["bleu"]["score"]
        facts: dict[str, Any] = {}
        if device.type == "cpu" and "ctranslate2" in options.systems:
            facts["cold_seconds"] = cold_start(folder, scratch)
    tell(rows, options)
    peer = rows.get("hugging face")
    ours = [row for row in rows.values() if row is not peer]
    if peer and ours:
        facts["ratio_throughput"] = round(max(row["best"] for row in ours) / peer["best"], 2)
        facts["ratio_latency"] = round(peer["latency_ms"] / min(row["latency_ms"] for row in ours), 2)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{options.threads} CPU threads"
    facts |= {"bench": "decode", "device": name, "beam": options.beam, "sentences": len(sources)}
    print(json.dumps(facts | {"torch": torch.__version__, "systems": rows}, ensure_ascii=False))


def systems(
    folder: Path,
    vocabulary: Vocabulary,
    request: Request,
    device: torch.device,
    scratch: Path,
    options: argparse.Namespace,
) -> Any:
    """One at a time: they share the memory of the device."""
    if "hugging face" in options.systems:
        yield "hugging face", hugging_face(folder, request, device)
    if "torch" in options.systems:
        yield "torch", own(TorchEngine(read_whole(folder)[0].to(device)), request)
    for kind in options.types if device.type == "cpu" and "ctranslate2" in options.systems else []:
        out = export(folder, scratch / kind, kind="ctranslate2", quantization=kind)
        yield f"ctranslate2-{kind}", own(CTranslate2Engine(out, vocabulary, threads=options.threads), request)


def cold_start(folder: Path, scratch: Path) -> float:
    out = scratch / "int8"
    if not out.exists():
        export(folder, out, kind="ctranslate2", quantization="int8")
    return round(min(cold(out) for _ in range(3)), 2)


def tell(rows: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    batches = [f"batch {size}" for size in options.batches]
    table = Table(f"beam {options.beam}, target tokens/s", *batches, "latency", "BLEU", "against hugging face")
    peer = rows.get("hugging face", {}).get("best")
    for name, row in rows.items():
        sizes = [f"{row[f'batch_{size}']:,.0f}" if f"batch_{size}" in row else "-" for size in options.batches]
        bleu = f"{row['bleu']:.2f}" if "bleu" in row else "-"
        table.add_row(name, *sizes, f"{row['latency_ms']:.1f} ms", bleu, f"{row['best'] / peer:.2f} x" if peer else "-")
    Console(highlight=False).print(table)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="run, checkpoint or model folder; without it random weights of the preset"
    )
    parser.add_argument("--preset", default="transformer-base")
    parser.add_argument("--source", help="test text; without it the test set of the run")
    parser.add_argument("--reference")
    parser.add_argument("--sentences", type=int, default=2048, help="at most")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[64, 256, 1024, 2048], help="sentences at once, to try"
    )
    parser.add_argument("--times", type=int, default=20, help="to measure the latency")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU, of every system")
    parser.add_argument(
        "--types", nargs="+", default=["float32", "int8"], help="of weights in CTranslate2; all: float32 int16 int8 ..."
    )
    parser.add_argument("--systems", nargs="+", default=["hugging face", "torch", "ctranslate2"])
    return parser.parse_args()


if __name__ == "__main__":
    border.run(main)
