"""How good does Hugging Face's Marian get in the same time, on the same data?

    python bench/marian.py [PRESET-OR-RUN.TOML] [section.key=value ...] --minutes 10 --valid dev=dev.en,dev.de

Trains `MarianMTModel` on the prepared folder of the run file for so many minutes: same vocabulary, shape, dropout, label
smoothing and fused Adam, bf16 by autocast, padded batches of sentences of similar length. The learning rate follows the
schedule of the run file, stretched over the minutes: it ends when they do, however many steps that is. Marian
normalises after every sublayer (post-norm); it has no option for pre-norm, so that the models differ in this. Now and then
it translates the first validation set and prints sacreBLEU against the seconds since the start; translating does not count,
compiling does. At the end all sets with a beam. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import border
import numpy as np
import psutil
import torch
from padded import Padded, arithmetic, groups, padded, precision_of, smoothed_loss, update
from torch import Tensor, nn

from dragoman.config import Config, load_config
from dragoman.config.schedule import learning_rate
from dragoman.data.encode import Encoded, PreparedData
from dragoman.data.loader import prefetched
from dragoman.data.subwords import BOS, EOS, PAD, Vocabulary
from dragoman.errors import ConfigError, DataError, require_extra
from dragoman.evaluation.metrics import score
from dragoman.parallel.mesh import pick_device
from dragoman.training import optim
from dragoman.training.garbage import Aside

COMPILE = ("off", "layers", "whole")
LONGEST = 1024  # positions that Marian has; longer sources are cut
COMPILING = 5  # steps at the start that may compile

Texts = tuple[list[str], list[str]]  # sources and references


# --- the model, also for peers.py --------------------------------------------------------------------------


def build(config: Config, vocab_size: int) -> nn.Module:
    """A Marian of the configured shape, with our special ids. Its own default is to start decoding with the pad id."""
    transformers = require_extra("transformers", "bench", "the Marian peer")
    shape = config.model
    settings = transformers.MarianConfig(
        vocab_size=vocab_size,
        d_model=shape.d_model,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        dropout=shape.dropout,
        attention_dropout=shape.attention_dropout,
        activation_dropout=shape.relu_dropout,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=LONGEST,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=EOS,
    )
    return transformers.MarianMTModel(settings)


class MarianLoss(nn.Module):
    """Model and loss in one, called like `Plain`. `layers` compiles every layer by itself: one graph for the encoder's
    and one for the decoder's, where the whole model breaks into pieces around every layer (LayerDrop is a branch)."""

    def __init__(self, model: nn.Module, smoothing: float, compiled: str = "off"):
        super().__init__()
        self.model, self.smoothing, self.loss = model, smoothing, smoothed_loss
        if compiled != "off":
            # More shapes than this and torch goes on uncompiled, without a word.
            torch._dynamo.config.recompile_limit = 256
        if compiled == "layers":
            for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
                layer.compile(dynamic=True)
            self.loss = torch.compile(smoothed_loss, dynamic=True)
        if compiled == "whole":
            self.compile(dynamic=True)

    def forward(self, source: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        mask = (source != PAD).long()
        result = self.model(input_ids=source, attention_mask=mask, decoder_input_ids=target_in, use_cache=False)
        return self.loss(result.logits, target_out, self.smoothing)


# --- training ----------------------------------------------------------------------------------------------


class Training:
    """The loop that one writes around a Marian, with nothing in it that waits for the device."""

    def __init__(self, config: Config, data: PreparedData, options: argparse.Namespace):
        self.config, self.device = config, pick_device(config.train.device)
        torch.manual_seed(config.run.seed)
        self.model = build(config, len(data.vocabulary)).to(self.device)
        self.objective = MarianLoss(self.model, config.train.label_smoothing, options.compile).train()
        self.optimizer = optim.build(self.model, config.train)
        self.rate, self.limit, self.compiled_at = learning_rate(config), 60 * options.minutes, 0.0
        self.step = self.target_tokens = 0
        self.seconds = time.time() - psutil.Process().create_time()
        self.loss_sum = torch.zeros((), device=self.device)

    def update(self, batch: Padded) -> None:
        optim.set_rate(self.optimizer, self.rate(int(self.share * (self.config.train.max_steps - 1))))
        self.loss_sum += update(self.objective, self.optimizer, self.config, batch.to(self.device))
        self.step += 1
        self.target_tokens += batch.target_tokens

    @property
    def share(self) -> float:
        """Of the time there is for training, what is over. It begins after the first steps, which compile."""
        return min(1.0, max(0.0, self.seconds - self.compiled_at) / max(1e-9, self.limit - self.compiled_at))

    def train_until(self, seconds: float, stream: Iterator[Padded]) -> float:
        """Go on until so many seconds since the start are over, for one step at least; returns the mean loss."""
        self.objective.train()
        self.loss_sum.zero_()
        first, start, before = self.step, time.perf_counter(), self.seconds
        while self.step == first or self.seconds < seconds:
            self.update(next(stream))
            if self.step <= COMPILING:
                self.loss_sum.item()  # waits for the device
                if self.step == COMPILING:
                    Aside().put()
                self.compiled_at = before + time.perf_counter() - start
            self.seconds = before + time.perf_counter() - start
        mean = self.loss_sum.item() / max(1, self.step - first)  # waits for the device
        self.seconds = before + time.perf_counter() - start
        return mean


def endless(data: Encoded, tokens: int, seed: int, *, multiple: int, pin: bool) -> Iterator[Padded]:
    """Epoch after epoch, grouped anew and in random order."""
    random = np.random.default_rng(seed)
    while True:
        epoch = groups(data, tokens, random, multiple)
        for choice in random.permutation(len(epoch)).tolist():
            batch = padded(data, epoch[choice], multiple)
            yield batch.pin() if pin else batch


# --- translating -------------------------------------------------------------------------------------------


@torch.inference_mode()
def translated(training: Training, vocabulary: Vocabulary, texts: list[str], beam: int, size: int) -> list[str]:
    """Longest first, `size` hypotheses at once. Compiled layers run eagerly: every length would be a shape of its own."""
    training.model.eval()
    ids = [[*row[: LONGEST - 1][:-1], EOS] for row in vocabulary.encode(texts)]
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    found: list[list[int]] = [[] for _ in ids]
    with torch.compiler.set_stance("force_eager"), arithmetic(training.config, training.device):
        for at in range(0, len(order), max(1, size // beam)):
            chosen = order[at : at + max(1, size // beam)]
            for index, row in zip(chosen, generated(training, [ids[index] for index in chosen], beam), strict=True):
                found[index] = row
    return vocabulary.decode(found)


def generated(training: Training, rows: list[list[int]], beam: int) -> list[list[int]]:
    width = max(map(len, rows))
    source = torch.tensor([row + [PAD] * (width - len(row)) for row in rows], device=training.device)
    result = training.model.generate(
        input_ids=source,
        attention_mask=(source != PAD).long(),
        num_beams=beam,
        do_sample=False,
        max_new_tokens=min(width + 50, LONGEST - 1),
        decoder_start_token_id=BOS,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        suppress_tokens=[PAD, BOS],
    )
    return [up_to_end(row[1:]) for row in result.tolist()]


def up_to_end(row: list[int]) -> list[int]:
    return row[: row.index(EOS)] if EOS in row else row


def scores(
    training: Training, vocabulary: Vocabulary, sets: dict[str, Texts], beam: int, size: int
) -> dict[str, dict[str, Any]]:
    """sacreBLEU of every set, with the seconds it took."""
    results = {}
    for name, (sources, references) in sets.items():
        start = time.perf_counter()
        translations = translated(training, vocabulary, sources, beam, size)
        bleu = score(sources, translations, references, ["bleu"])["bleu"]
        results[name] = {"bleu": bleu["score"], "signature": bleu["signature"], "beam": beam}
        results[name]["seconds"] = round(time.perf_counter() - start, 1)
    return results


# --- the story ---------------------------------------------------------------------------------------------


def main() -> None:
    options = parse()
    config = load_config(options.run_file, options.overrides)
    data = PreparedData(options.data or config.data.folder)
    sets = dict(read_set(text) for text in options.valid)
    training = Training(config, data, options)
    encoded, pin = data.encoded("train"), training.device.type == "cuda"
    history = []
    stream = endless(encoded, options.tokens, config.run.seed, multiple=options.multiple, pin=pin)
    watched = dict(list(sets.items())[:1])
    with closing(prefetched(stream, pin=False)) as ahead:  # type: ignore[arg-type]  # works for any items
        while not history or training.seconds < training.limit:
            goal = min(training.limit, training.seconds + options.evaluate_every)
            loss = training.train_until(goal, ahead)
            found = scores(training, data.vocabulary, watched, options.beam, options.batch_sentences)
            history.append(line(training, loss, found))
    final = scores(training, data.vocabulary, sets, options.final_beam, options.batch_sentences)
    for name, result in final.items():
        print(f"{name}: BLEU {result['bleu']:.2f} with beam {result['beam']}, {result['signature']}")
    print(json.dumps(figures(training, options, history, final), ensure_ascii=False))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file", nargs="?", default="transformer-base")
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    parser.add_argument("--data", type=Path, help="prepared folder; without it data.folder of the run file")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="since the start; compiling counts, translating does not"
    )
    parser.add_argument("--tokens", type=int, default=32_768, help="padded target slots a batch")
    parser.add_argument("--multiple", type=int, default=1, help="of which all widths are; peers.py says what is faster")
    parser.add_argument("--compile", choices=COMPILE, default="layers")
    parser.add_argument("--evaluate-every", type=float, default=120.0, help="seconds of training")
    parser.add_argument("--valid", action="append", default=[], metavar="NAME=SOURCE,REFERENCE")
    parser.add_argument("--beam", type=int, default=1, help="while training")
    parser.add_argument("--final-beam", type=int, default=4)
    parser.add_argument("--batch-sentences", type=int, default=512, help="hypotheses translated at once")
    return parser.parse_intermixed_args()


def read_set(text: str) -> tuple[str, Texts]:
    name, _, paths = text.partition("=")
    files = paths.split(",")
    if not name or len(files) != 2:
        raise ConfigError([f"--valid {text!r} is not of the form NAME=SOURCE,REFERENCE"], "bench/marian.py")
    sources, references = (lines(Path(path)) for path in files)
    if len(sources) != len(references):
        raise DataError(f"{text}: {len(sources)} sources for {len(references)} references")
    return name, (sources, references)


def lines(path: Path) -> list[str]:
    """Split at newlines only: `splitlines` knows seven other characters that end a line."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def line(training: Training, loss: float, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    bleus = {name: result["bleu"] for name, result in found.items()}
    told = ", ".join(f"{name} BLEU {bleu:.2f}" for name, bleu in bleus.items())
    print(f"{training.seconds:.0f} s, step {training.step:,}: loss {loss:.3f}, {told or 'no sets'}", flush=True)
    evaluation = round(sum(result["seconds"] for result in found.values()), 1)
    return {
        "train_seconds": round(training.seconds, 1), "step": training.step, "target_tokens": training.target_tokens,
        "loss": round(loss, 4), "bleu": bleus, "evaluation_seconds": evaluation,
    }  # fmt: skip


def figures(
    training: Training, options: argparse.Namespace, history: list[dict[str, Any]], final: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    return {
        "bench": "marian",
        "transformers": require_extra("transformers", "bench", "the Marian peer").__version__,
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if training.device.type == "cuda" else "cpu",
        "precision": precision_of(training.config, training.device),
        "compile": options.compile,
        "tokens": options.tokens,
        "multiple": options.multiple,
        "parameters": sum(parameter.numel() for parameter in training.model.parameters() if parameter.requires_grad),
        "steps": training.step,
        "train_seconds": round(training.seconds, 1),
        "target_tokens": training.target_tokens,
        "target_tokens_per_s": round(training.target_tokens / training.seconds, 1),
        "history": history,
        "final": final,
    }


if __name__ == "__main__":
    border.run(main)
