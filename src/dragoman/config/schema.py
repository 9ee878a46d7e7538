"""Every option of dragoman: type, default, rule and explanation in one place. The manual is printed from here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]

SPECIAL_TOKENS = 4  # pad, eos, bos, unk


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Run(Section):
    """The run as a whole."""

    folder: str = "runs/default"
    """Where the run lives: configuration, metrics, checkpoints, report. One folder per run."""
    seed: Count = 1
    """Everything random (corpus, weights, order of sentences, dropout) follows from this number."""


Format = Literal["auto", "lines", "sgm", "tsv", "jsonl", "tmx"]


class Corpus(Section):
    """One of several training corpora."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
    """Its name: letters, digits, `_`, `-` and `.`; no two corpora have the same."""
    source: str = ""
    """Source side, aligned with target; or name a file of pairs instead."""
    target: str = ""
    """Target side."""
    pairs: str = ""
    """One file that holds both sides: TSV, JSON lines, TMX, or a .zip with a file of each language."""
    format: Format = "auto"
    """`auto`: as the file name ends, before .gz, .bz2, .xz, .zst or .zip; two files of any other name are aligned lines."""
    source_key: str = "source"
    """Key of the source text in JSON lines. {"translation": {"en": ..., "de": ...}} is understood by itself."""
    target_key: str = "target"
    """Key of the target text in JSON lines."""
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    """How often an epoch has each of its pairs, before data.temperature."""


class Stage(Section):
    """A stretch of training with its own mixture of corpora."""

    from_step: Positive
    """The first step of this mixture; it lasts until the next one."""
    weights: dict[str, Annotated[float, Field(ge=0.0)]] = {}
    """By the names of corpora; one that is not named keeps the weight of its own."""


class Data(Section):
    """What to learn from. Read by `dragoman prepare`."""

    folder: str = "data/default"
    """Where prepared data lies: cleaned shards, vocabulary, ids and a manifest."""
    corpus: Literal["files", "grammar", "reversal"] = "files"
    """`files`: the aligned text files named below. `grammar`: the embedded English-German corpus.
    `reversal`: the toy task of reversing a row of symbols."""
    source_lang: str = "en"
    """Language code of the source side: cleaning, what is read from TMX and zip files, and the card of a model follow from it."""
    target_lang: str = "de"
    """Language code of the target side; how BLEU cuts words follows from it too."""
    train_source: str = ""
    """Training text, source side, one sentence a line, UTF-8 (corpus = "files"). Named alone, a file of pairs (TSV, JSON lines,
    TMX); the same holds for validation and test."""
    train_target: str = ""
    """Training text, target side, aligned with the source line by line."""
    valid_source: str = ""
    """Validation text, source side."""
    valid_target: str = ""
    """Validation text, target side."""
    test_source: str = ""
    """Test text, source side; optional. `dragoman evaluate` uses it when no other test set is named."""
    test_target: str = ""
    """Test text, target side."""
    format: Format = "auto"
    """Of the files named above, where their names do not say it: `tsv`, `jsonl` and `tmx` of those that hold both sides, `lines`
    and `sgm` of the others. A table of data.corpora has its own."""
    source_key: str = "source"
    """Key of the source text, where one of the files named above holds JSON lines."""
    target_key: str = "target"
    """Key of the target text there."""
    train_pairs: Positive = 50_000
    """Training pairs to generate (corpus = "grammar" or "reversal")."""
    valid_pairs: Positive = 500
    """Validation pairs to generate."""
    test_pairs: Positive = 500
    """Test pairs to generate; none of them occurs in training or validation."""
    max_tokens: Positive = 100
    """Training pairs with more subwords than this on either side are dropped and counted, never cut."""
    shard_pairs: Positive = 100_000
    """Training pairs that are read, cleaned and encoded together, by one process, into one shard; fewer where they are over 64 MB."""
    tokenized: bool = False
    """The text is cut into pieces of subwords.model already, with spaces between them; pieces are looked up only."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Shares of several corpora are proportional to (pairs * weight)^(1/temperature): 1 leaves them as they are, more flattens."""
    corpora: Annotated[tuple[Corpus, ...], Field(strict=False)] = ()
    """Several training corpora instead of train_source and train_target, each a table [[data.corpora]] with these keys:"""
    stages: Annotated[tuple[Stage, ...], Field(strict=False)] = ()
    """Other weights of these corpora later in training, each a table [[data.stages]] with these keys:"""


Mending = Literal["repair", "drop", "keep"]


class Clean(Section):
    """Which training pairs are dropped or repaired. Every drop is counted by its reason; generated corpora are not cleaned."""

    control_characters: bool = True
    """Drop pairs with control characters."""
    encoding: Mending = "repair"
    """Text that went through a wrong encoding ("MÃ¼nchen"): repair it, drop the pair, or keep it as it is. What cannot be
    repaired (the replacement character) is dropped, unless kept."""
    html: Mending = "repair"
    """HTML tags and entities: take tags out and resolve entities, drop the pair, or keep it as it is."""
    max_characters: Count = 5_000
    """Drop pairs with more characters on a side; 0: any length."""
    max_words: Count = 250
    """Drop pairs with more words on a side; 0: any number."""
    max_word_ratio: NonNegative = 4.0
    """Drop pairs of 10 words or more whose sides differ in words by more than this factor; 0: never. Languages that are
    written without spaces are not counted in words."""
    max_character_ratio: NonNegative = 6.0
    """Drop pairs of 60 characters or more whose sides differ in characters by more than this factor; 0: never."""
    copies: bool = True
    """Drop pairs of 4 words or more whose sides are the same."""
    overlap: bool = True
    """Drop pairs with a side that is a sentence of the validation or test set, but for case and punctuation."""
    duplicates: bool = True
    """Drop pairs that occurred before, anywhere in the corpus."""
    near_duplicates: bool = False
    """Drop pairs that occurred before, but for case, digits and punctuation."""
    digits: bool = False
    """Drop pairs whose sides do not hold the same digits."""
    language: bool = False
    """Drop pairs with a side of 40 characters or more that is not in its language (needs the extra langid)."""
    own: Annotated[tuple[Annotated[str, Field(pattern=r"^[\w.]+:\w+$")], ...], Field(strict=False)] = ()
    """Filters of your own, "package.module:function": function(source, target) returns the reason to drop, or None."""


class Subwords(Section):
    """SentencePiece: one vocabulary for both languages, or one for each."""

    vocab_size: Annotated[int, Field(gt=SPECIAL_TOKENS)] = 32_768
    """Pieces in the vocabulary, the four special ones (pad, eos, bos, unk) included."""
    joint: bool = True
    """One vocabulary, and one matrix of embeddings, for both languages. false: each side has its own, of vocab_size pieces."""
    kind: Literal["unigram", "bpe", "word", "char"] = "bpe"
    """SentencePiece's algorithm."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 1.0
    """Share of all characters that get a piece of their own; lower it for large scripts such as Chinese."""
    sample_pairs: Positive = 2_000_000
    """At most this many training pairs, drawn evenly from the corpus, are read to learn the vocabulary; fewer for unigram and for
    languages without spaces, where memory asks for it."""
    byte_fallback: bool = False
    """Characters without a piece are spelled in bytes instead of becoming unknown; takes 256 pieces."""
    model: str = ""
    """An existing SentencePiece model to use as it is, with pad 0, eos 1, bos 2, unk 3, or the .vocab beside it. Nothing is learnt
    then: the keys above have no effect."""
    dropout: Share = 0.0
    """Training text is cut at random: the share of merges left out (BPE-dropout), or the smoothing of sampling (unigram).
    In as many ways as subwords.variants says, drawn once, by run.seed."""
    variants: Count = 0
    """How many times the training text is encoded, each time cut at random anew, so that a sentence is seen in so many ways; needs
    subwords.dropout. 0: 8 with it, 1 without."""

    @property
    def ways(self) -> int:
        return self.variants or (8 if self.dropout else 1)


class Model(Section):
    """The Transformer: sinusoidal positions, one matrix for the embeddings and the output."""

    d_model: Positive = 512
    """Width of the model."""
    heads: Positive = 8
    """Attention heads; must divide d_model."""
    encoder_layers: Positive = 6
    """Layers of the encoder."""
    decoder_layers: Positive = 6
    """Layers of the decoder."""
    d_ff: Positive = 2048
    """Width of the feed-forward layers ("filter size")."""
    dropout: Share = 0.1
    """Dropout on embeddings and on the output of every sublayer."""
    attention_dropout: Share = 0.1
    """Dropout on attention weights."""
    relu_dropout: Share = 0.1
    """Dropout inside the feed-forward layers."""
    style: Literal["tensor2tensor", "marian"] = "tensor2tensor"
    """`tensor2tensor`: norms before every sublayer and at the end of both stacks, attention without biases. `marian`: norms after every
    sublayer, biases in attention and output, other wave lengths of the positions; what Marian and OPUS-MT train."""
    activation: Literal["relu", "swish"] = "relu"
    """Inside the feed-forward layers."""


class Train(Section):
    """How to learn."""

    start_from: str = ""
    """A model to start from (fine-tuning): a run, a checkpoint or a model folder. Tensors are taken by name and shape, rows of the
    embedding by subword; what was taken is written down. Empty: from scratch."""
    freeze: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of tensors that stay as they are, with * and ?: ["embedding.*", "encoder.*"]."""
    max_steps: Positive = 300_000
    """Steps to train. A step is ONE update of the weights, from all ranks and all micro-batches together."""
    tile_width: Positive = 128
    """Slots per row on each side. Whole sentence pairs are packed into rows, several to a row."""
    wide_tile_width: Count = 512
    """Slots per row for pairs that do not fit train.tile_width: they fill steps of their own, with as many slots and fewer
    rows. 0: there are none. It matters only when data.max_tokens is train.tile_width or more."""
    batch_tokens: Positive = 32_768
    """Target slots per step, over all ranks and micro-batches: batch_tokens / tile_width rows. The update depends on
    this number alone, not on how many GPUs share the work."""
    tokens_per_gpu: Positive | Literal["auto"] = "auto"
    """Target slots one GPU handles at a time. What is missing to batch_tokens is accumulated over several micro-batches.
    `auto`: as many as fit into its memory, found by trying when the run starts."""
    window_pairs: Positive = 16_384
    """Look-ahead of the packer: within a window of this many pairs in random order it looks for the best fit."""
    label_smoothing: Share = 0.1
    """Share of the probability spread over the whole vocabulary in the training target."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam, or Adam with decoupled weight decay."""
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.997)
    """Decay rates of Adam's two moments."""
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-9
    """Adam's epsilon."""
    weight_decay: NonNegative = 0.0
    """Weight decay."""
    clip_norm: NonNegative = 0.0
    """Gradients with a larger norm than this are scaled down to it; 0 switches clipping off."""
    average_decay: Share = 0.0
    """Decay of a moving average of the weights (EMA), 0.999 for example: validation, checkpoints and all that comes after use
    the average, training goes on with its own weights. 0: no average."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"] = "auto"
    """Arithmetic of the matrix products. `auto`: bf16 on a GPU that has it, and on a CPU where it is at
    least 1.2 times as fast; fp32 elsewhere. fp16 scales the loss by itself. fp8 is bf16 with the products of large
    matrices in 8 bits, forward and backward, while learning; it pays from a width of 512 on. Weights and moments stay in fp32."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile. `auto`: on a GPU, where Triton is installed and finds a C compiler (gcc or clang)."""
    cuda_graphs: bool = True
    """With one GPU, a compiled model and memory to spare: play recorded steps, which start at once, instead of starting their
    kernels one by one. Small models are several times faster; the numbers are the same."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. `auto`: on GPUs when there are any."""
    log_every: Positive = 100
    """Steps between two rows of metrics."""
    max_hours: NonNegative = 0.0
    """Stop with a checkpoint after this many hours of steps, over all starts of the run; validation and checkpoints do not count.
    Raise it and resume to go on. 0: no limit."""
    timeout_seconds: Positive = 120
    """A rank that does not answer a collective operation for this long ends the run instead of hanging it."""


class Schedule(Section):
    """The learning rate as a function of the step, counted from 0. It depends on nothing else."""

    policy: Literal[
        "transformer", "fixed", "piecewise", "exponential", "polynomial", "cosine", "inverse_polynomial"
    ] = "transformer"
    """Shape of the curve. `transformer`: coefficient * learning_rate * d_model^-0.5 * min((s+1) * warmup^-1.5, (s+1)^-0.5).
    The others start from learning_rate after a linear warm-up."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 2.0
    """Factor of the transformer policy; the highest rate of all the others."""
    coefficient: Annotated[float, Field(gt=0.0)] = 1.0
    """Second factor of the transformer policy."""
    warmup_steps: Count = 8000
    """Steps until the rate is at its highest; 0 for none (not with the transformer policy)."""
    min_learning_rate: NonNegative = 0.0
    """Floor: the rate never falls below it after the warm-up."""
    begin_decay_at: Count = 0
    """Step at which the decay begins (exponential, polynomial, cosine, inverse_polynomial); not before the warm-up ends."""
    decay_steps: Count = 0
    """Steps the decay takes; 0: until train.max_steps."""
    decay_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Factor by which the exponential policy falls every decay_steps."""
    staircase: bool = False
    """The exponential policy falls in stairs instead of smoothly."""
    power: Annotated[float, Field(gt=0.0)] = 1.0
    """Exponent of the polynomial and inverse_polynomial policies."""
    boundaries: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """Steps at which the piecewise policy changes, rising."""
    factors: Annotated[tuple[float, ...], Field(strict=False)] = ()
    """Factors on learning_rate after each boundary of the piecewise policy."""


class Validation(Section):
    """What is measured while training."""

    every: Positive = 4000
    """Steps between two validations; the last step is always validated."""
    bleu_sentences: Count = 0
    """Validation sentences to translate freely for sacreBLEU; 0: all of them."""
    beam: Positive = 1
    """Beam size for these translations; 1 is fast and a little lower than the final score."""
    probes: Count = 5
    """Validation sentences whose translation is kept at every validation, to be read over time."""
    patience: Count = 0
    """Stop after this many validations without a better checkpoint.metric; 0: never."""


class Checkpoint(Section):
    """What is kept."""

    every: Positive = 4000
    """Steps between two checkpoints; the last step is always kept."""
    keep_last: Positive = 3
    """Newest checkpoints to keep."""
    keep_best: Count = 1
    """Best checkpoints to keep beside them."""
    keep_every: Count = 0
    """Checkpoints whose step is a multiple of this are kept for good; 0: none."""
    metric: Literal["bleu", "chrf", "loss", "nll", "perplexity", "train_slice_loss", "train_slice_nll"] = "bleu"
    """Which number of a validation makes a checkpoint the best; see docs/run-folder.md for what they are."""

    def most(self, steps: int) -> int:
        """How many are kept at the end of so many steps, at most."""
        kept_for_good = math.lcm(self.keep_every, self.every)
        return self.keep_last + self.keep_best + (steps // kept_for_good if kept_for_good else 0)


class Parallel(Section):
    """How several ranks share the work. One process has nobody to share with: nothing of this matters then."""

    strategy: Literal["ddp", "two_level", "fsdp", "hybrid", "local", "streaming"] = "ddp"
    """`ddp`: gradients averaged over all ranks at every step, while the backward pass runs. `two_level`: the same, inside each
    host first. `fsdp`: weights, gradients and moments cut into pieces, for models that do not fit; `hybrid`: cut inside a host
    only. `local`: every host trains by itself and they agree every inner_steps (DiLoCo), for slow networks; `streaming`: the same
    in fragments, while computing goes on. The first four make the same updates; the last two do not, and are for slow networks."""
    wire: Literal["fp32", "bf16", "int8"] = "fp32"
    """Numbers on the network: `bf16` half of the traffic, `int8` a quarter, where what rounding takes away is added the next time
    (ddp with several processes a host saves less in int8: take two_level). Not with fsdp and hybrid."""
    ranks_per_island: Count = 0
    """Ranks that are close to each other (two_level, hybrid, local, streaming); 0: those of one host."""
    compare_every: Count = 0
    """Steps between two comparisons of ranks that must hold the same weights, by a sum over them; 0: only before every validation and
    checkpoint."""
    inner_steps: Positive = 20
    """Steps between two agreements (local, streaming). The model is what was agreed on last: with local make train.max_steps a
    multiple of it, or the steps after the last agreement are in no model."""
    fragments: Positive = 4
    """Parts of the weights that take turns (streaming); must divide inner_steps."""
    outer_learning_rate: Annotated[float, Field(gt=0.0)] = 0.7
    """Of the outer step (local, streaming). 1 with outer_momentum = 0 is the plain mean of all weights."""
    outer_momentum: Share = 0.5
    """Of the outer step, Nesterov's kind (local, streaming)."""


class Translate(Section):
    """Search at translation time."""

    beam: Positive = 4
    """Hypotheses followed at once; 1 is greedy search."""
    length_penalty: NonNegative = 0.6
    """alpha in score / ((5 + length) / 6)^alpha; larger values favour longer translations."""
    extra_length: Positive = 50
    """A translation has at most this many subwords more than its source."""
    batch_tokens: Positive | Literal["auto"] = "auto"
    """Source slots translated at once, padding included. `auto`: 2,048 with CTranslate2, 8,192 with torch
    on a CPU, on a GPU what its memory has room for, up to 65,536; at most 2,048 sentences."""


class Monitor(Section):
    """What is written down about the machines."""

    telemetry: bool = True
    """Sample GPU, network, CPU, memory and disk once a second into telemetry/."""
    interval_seconds: Annotated[float, Field(gt=0.0)] = 1.0
    """Time between two samples."""
    tensorboard: bool = True
    """Write TensorBoard event files beside metrics.jsonl."""
    tensorboard_tags: Literal["own", "openseq2seq"] = "own"
    """Names in them: train/loss, valid/bleu and so on, or those of OpenSeq2Seq (train_loss, Eval_BLEU_Score from 0 to 1)."""
    wandb: str = ""
    """A project of Weights & Biases that gets the same numbers (extra `wandb`)."""
    mlflow: str = ""
    """An experiment of MLflow that gets the same numbers (extra `mlflow`)."""


class Config(Section):
    """All sections of a run file."""

    run: Run = Run()
    data: Data = Data()
    clean: Clean = Clean()
    subwords: Subwords = Subwords()
    model: Model = Model()
    train: Train = Train()
    schedule: Schedule = Schedule()
    validation: Validation = Validation()
    checkpoint: Checkpoint = Checkpoint()
    parallel: Parallel = Parallel()
    translate: Translate = Translate()
    monitor: Monitor = Monitor()


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation  # type: ignore[misc]  # every field of Config is a Section
    for name, field in Config.model_fields.items()
}


def broken_rules(config: Config) -> Iterator[str]:
    """Rules between keys: one line each with both values and the remedy."""
    yield from model_rules(config.model)
    yield from row_rules(config.train, config.data)
    yield from parallel_rules(config.parallel, config.train)
    yield from corpus_rules(config.data)
    yield from subword_rules(config)
    yield from schedule_rules(config.schedule)


def model_rules(model: Model) -> Iterator[str]:
    if model.d_model % model.heads:
        yield f"model.heads = {model.heads} does not divide model.d_model = {model.d_model}; choose a divisor"
    if model.d_model % 2:
        yield f"model.d_model = {model.d_model} is odd; sinusoidal positions need an even width"


def row_rules(train: Train, data: Data) -> Iterator[str]:
    widest = max(train.tile_width, train.wide_tile_width)
    if data.max_tokens >= widest:
        yield (
            f"data.max_tokens = {data.max_tokens} fits neither a row of train.tile_width = {train.tile_width} nor one of "
            f"train.wide_tile_width = {train.wide_tile_width} together with the end-of-sentence mark; lower data.max_tokens to "
            f"{widest - 1} or raise train.wide_tile_width"
        )
    sizes = {"batch_tokens": train.batch_tokens, "tokens_per_gpu": train.tokens_per_gpu}
    for key, size in sizes.items():
        if size == "auto":
            continue
        if size % train.tile_width:
            yield f"train.{key} = {size} is not a multiple of train.tile_width = {train.tile_width}"
        if train.tile_width <= data.max_tokens < train.wide_tile_width and size < train.wide_tile_width:
            yield (
                f"train.{key} = {size} does not hold one row of train.wide_tile_width = {train.wide_tile_width}, "
                f"which data.max_tokens = {data.max_tokens} needs; raise train.{key}"
            )


def parallel_rules(parallel: Parallel, train: Train) -> Iterator[str]:
    if train.precision == "fp16" and parallel.strategy not in ("ddp", "two_level"):
        yield f'train.precision = "fp16" scales one loss for all ranks, which parallel.strategy = "{parallel.strategy}" has not; use "bf16"'
    if parallel.strategy in ("fsdp", "hybrid") and parallel.wire != "fp32":
        yield f'parallel.wire = "{parallel.wire}" has no meaning with parallel.strategy = "{parallel.strategy}"; set it to "fp32"'
    if parallel.strategy == "streaming" and parallel.inner_steps % parallel.fragments:
        yield (
            f"parallel.fragments = {parallel.fragments} does not divide parallel.inner_steps = {parallel.inner_steps}; "
            "choose a divisor"
        )
    if train.average_decay and parallel.strategy not in ("ddp", "two_level"):
        yield (
            f'train.average_decay = {train.average_decay} needs parallel.strategy = "ddp" or "two_level", where all ranks hold '
            f'the same weights, not "{parallel.strategy}"; set it to 0.0, and average checkpoints afterwards'
        )


def corpus_rules(data: Data) -> Iterator[str]:
    for corpus in data.corpora:
        two_files = bool(corpus.source and corpus.target)
        if two_files == bool(corpus.pairs) or (corpus.pairs and (corpus.source or corpus.target)):
            yield f"data.corpora.{corpus.name} needs either source and target or pairs, and not both"
    names = [corpus.name for corpus in data.corpora]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"data.corpora.{name} occurs {names.count(name)} times; give each corpus a name of its own"
    if data.corpora and (data.train_source or data.train_target):
        yield "data.train_source and data.corpora exclude each other; make the files of data.train_source a corpus of their own"
    yield from broken_stages(data)
    if data.corpora and data.corpus != "files":
        yield f'data.corpora has no meaning with data.corpus = "{data.corpus}"; set it to "files"'


def subword_rules(config: Config) -> Iterator[str]:
    data, subwords = config.data, config.subwords
    if data.tokenized and not subwords.model:
        yield "data.tokenized = true needs subwords.model, the SentencePiece model the text was cut with"
    if data.tokenized and data.corpus != "files":
        yield f'data.tokenized = true has no meaning with data.corpus = "{data.corpus}"'
    if data.tokenized and subwords.dropout:
        yield f"subwords.dropout = {subwords.dropout} cannot cut text that data.tokenized = true says is cut; set one of them back"
    if subwords.model and not subwords.joint:
        yield "subwords.model is one vocabulary for both sides; subwords.joint = false learns two of its own"
    if subwords.variants > 1 and not subwords.dropout:
        yield f"subwords.variants = {subwords.variants} would all be the same; set subwords.dropout, 0.1 for example"
    if subwords.dropout and not subwords.model and subwords.kind not in ("bpe", "unigram"):
        yield f'subwords.dropout = {subwords.dropout} needs subwords.kind = "bpe" or "unigram", not "{subwords.kind}"'


def broken_stages(data: Data) -> Iterator[str]:
    names = {corpus.name for corpus in data.corpora}
    for stage in data.stages:
        for unknown in sorted(stage.weights.keys() - names):
            yield f"data.stages, from_step = {stage.from_step}: no corpus is called {unknown!r}; there are {sorted(names) or 'none'}"
        if names and not any(stage.weights.get(name, 1.0) for name in names):
            yield f"data.stages, from_step = {stage.from_step}: all weights are 0; give one corpus more"
    steps = [stage.from_step for stage in data.stages]
    if steps != sorted(set(steps)):
        yield f"data.stages: from_step = {steps} must rise"


def schedule_rules(schedule: Schedule) -> Iterator[str]:
    if schedule.policy == "transformer" and not schedule.warmup_steps:
        yield 'schedule.warmup_steps = 0 has no meaning with schedule.policy = "transformer"; set it to 1 or more'
    if schedule.policy == "piecewise":
        if len(schedule.boundaries) != len(schedule.factors) or not schedule.boundaries:
            yield (
                f"schedule.boundaries ({len(schedule.boundaries)} values) and schedule.factors ({len(schedule.factors)} values) "
                'must be of equal length, at least 1, with schedule.policy = "piecewise"'
            )
        if list(schedule.boundaries) != sorted(set(schedule.boundaries)):
            yield f"schedule.boundaries = {list(schedule.boundaries)} must rise"
    if schedule.policy == "inverse_polynomial" and not schedule.min_learning_rate:
        yield 'schedule.min_learning_rate = 0 is never reached with schedule.policy = "inverse_polynomial"; set it above 0'


def missing_files(data: Data) -> Iterator[str]:
    """Files that `prepare` cannot do without."""
    if data.corpus != "files":
        return
    for part in ("train", "valid", "test"):
        source, target = getattr(data, f"{part}_source"), getattr(data, f"{part}_target")
        if part == "train" and data.corpora:
            continue
        if not source and (target or part != "test"):
            yield f'data.{part}_source is empty; name a text file, or set data.corpus = "grammar" for the embedded corpus'
