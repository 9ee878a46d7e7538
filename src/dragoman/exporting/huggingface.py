"""Models in the formats of Hugging Face transformers, out and in.

    style tensor2tensor <-> PegasusForConditionalGeneration   norms before sublayers, positions stored in the file
    style marian        <-> MarianMTModel                     what OPUS-MT publishes

Both have the same names inside, and MarianTokenizer reads the vocabulary of either: source.spm, target.spm, vocab.json, and for a
Marian model whose sides have vocabularies of their own target_vocab.json. Their attention always has biases; where ours has none
they are zero. Nothing here needs transformers itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sentencepiece import sentencepiece_model_pb2 as pieces_format
from torch import Tensor

from dragoman import runs
from dragoman.config.load import check
from dragoman.config.schema import Model, Translate
from dragoman.data.subwords import BOS, EOS, LANGUAGE, PAD, UNK, Vocabulary
from dragoman.errors import RunError
from dragoman.exporting import vacant
from dragoman.exporting.card import licence_of, write_card
from dragoman.model import folder as model_folder
from dragoman.model.layers import is_marian, waves
from dragoman.model.transformer import Transformer
from dragoman.translate.models import read_whole

POSITIONS = 1024
SPECIAL = {PAD: "<pad>", EOS: "</s>", BOS: "<s>", UNK: "<unk>"}
MARKS = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS, "decoder_start_token_id": BOS}
# What the matrix of embeddings may be called: the one of both sides, or where each has its own that of the target or the source.
SHARED = ("model.shared.weight", "model.encoder.embed_tokens.weight", "lm_head.weight")
OF_TARGET = ("model.decoder.embed_tokens.weight", "lm_head.weight")
OF_SOURCE = ("model.encoder.embed_tokens.weight",)
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish"}  # theirs, and ours
SHAPE = {
    "d_model": "d_model",
    "heads": "encoder_attention_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "d_ff": "encoder_ffn_dim",
}  # our keys, and theirs
POSITION_NAMES = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]

# --- names -------------------------------------------------------------------------------------------------


def names(section: Model) -> Iterator[tuple[str, list[str]]]:
    """Our modules, and the modules of theirs that each is made of."""
    for side, layers in (("encoder", section.encoder_layers), ("decoder", section.decoder_layers)):
        for layer in range(layers):
            ours, theirs = f"{side}.{layer}", f"model.{side}.layers.{layer}"
            yield f"{ours}.attention.query_key_value", [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
            yield f"{ours}.attention.output", [f"{theirs}.self_attn.out_proj"]
            yield f"{ours}.attention_norm", [f"{theirs}.self_attn_layer_norm"]
            if side == "decoder":
                yield f"{ours}.cross.query", [f"{theirs}.encoder_attn.q_proj"]
                yield f"{ours}.cross.key_value", [f"{theirs}.encoder_attn.{part}_proj" for part in "kv"]
                yield f"{ours}.cross.output", [f"{theirs}.encoder_attn.out_proj"]
                yield f"{ours}.cross_norm", [f"{theirs}.encoder_attn_layer_norm"]
            yield f"{ours}.feed_forward.inner", [f"{theirs}.fc1"]
            yield f"{ours}.feed_forward.outer", [f"{theirs}.fc2"]
            yield f"{ours}.feed_forward_norm", [f"{theirs}.final_layer_norm"]
        if not is_marian(section):
            yield f"{side}_norm", [f"model.{side}.layer_norm"]


# --- out ---------------------------------------------------------------------------------------------------


def write_huggingface(folder: Path, fresh: Path) -> None:
    model, description, vocabulary = read_whole(folder)
    if description.source_vocab_size and not is_marian(description.model):
        raise RunError(
            f"{folder}: has a vocabulary for each side, which transformers knows of Marian only; style {description.model.style} "
            "becomes Pegasus there, with one matrix for both. Export ctranslate2 or dragoman"
        )
    model_folder.write_tensors(fresh / "model.safetensors", their_tensors(model), {"format": "pt"})
    runs.write_json(fresh / "config.json", their_config(description))
    runs.write_json(fresh / "generation_config.json", generation(description.translate))
    write_tokenizer(fresh, description, vocabulary)


def their_tensors(model: Transformer) -> dict[str, Tensor]:
    ours = model.state_dict()
    table = waves(torch.arange(POSITIONS), model.section)
    bias = torch.zeros(len(model.embedding.weight)) if model.output_bias is None else model.output_bias
    found = {"final_logits_bias": bias[None].clone(), **{name: table.clone() for name in POSITION_NAMES}}
    if model.source_embedding:
        found |= {OF_TARGET[0]: model.embedding.weight, OF_SOURCE[0]: model.source_embedding.weight}
    else:
        found[SHARED[0]] = model.embedding.weight
    for mine, theirs in names(model.section):
        weight, count = ours[f"{mine}.weight"], len(theirs)
        bias = ours.get(f"{mine}.bias", torch.zeros(len(weight)))
        for name, its_weight, its_bias in zip(theirs, weight.chunk(count), bias.chunk(count), strict=True):
            found[f"{name}.weight"], found[f"{name}.bias"] = its_weight.clone(), its_bias.clone()
    return found


def their_config(description: model_folder.Description) -> dict[str, Any]:
    section, marian = description.model, is_marian(description.model)
    both = {"attention_heads": section.heads, "ffn_dim": section.d_ff, "layerdrop": 0.0}
    return {
        "architectures": ["MarianMTModel" if marian else "PegasusForConditionalGeneration"],
        "model_type": "marian" if marian else "pegasus",
        "vocab_size": description.source_vocab_size or description.vocab_size,
        "decoder_vocab_size": description.vocab_size,
        "d_model": section.d_model,
        "encoder_layers": section.encoder_layers,
        "decoder_layers": section.decoder_layers,
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in both.items()},
        "activation_function": section.activation,
        "dropout": section.dropout,
        "attention_dropout": section.attention_dropout,
        "activation_dropout": section.relu_dropout,
        "scale_embedding": True,
        "max_position_embeddings": POSITIONS,
        "is_encoder_decoder": True,
        "share_encoder_decoder_embeddings": not description.source_vocab_size,
        "tie_word_embeddings": True,
        **MARKS,
        "forced_eos_token_id": None,
    }


def generation(section: Translate) -> dict[str, Any]:
    """transformers divides by length^alpha, ours by ((5 + length) / 6)^alpha: the nearest there is, not the same."""
    limits = {"max_length": POSITIONS // 2, "bad_words_ids": [[PAD], [BOS]]}
    search = {"num_beams": section.beam, "length_penalty": section.length_penalty}
    return {**search, **limits, **MARKS, "forced_eos_token_id": None}


def write_tokenizer(fresh: Path, description: model_folder.Description, vocabulary: Vocabulary) -> None:
    for name, side in (("source.spm", vocabulary.source), ("target.spm", vocabulary)):
        (fresh / name).write_bytes(side.path.read_bytes())
    apart = bool(description.source_vocab_size)
    for name, side in {"vocab.json": vocabulary.source, **({"target_vocab.json": vocabulary} if apart else {})}.items():
        runs.write_json(fresh / name, {piece: index for index, piece in enumerate(side.pieces())})
    languages = {"source_lang": description.source_lang, "target_lang": description.target_lang}
    tokens = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "model_max_length": POSITIONS // 2}
    runs.write_json(
        fresh / "tokenizer_config.json",
        {"tokenizer_class": "MarianTokenizer", "separate_vocabs": apart, **languages, **tokens},
    )


# --- in ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pieces:
    """Those of a side, in our order."""

    numbers: list[int]  # theirs of every one
    listed: list[str]  # all but the marks


def read_huggingface(folder: Path) -> tuple[dict[str, Tensor], model_folder.Description, list[Any]]:
    """Weights, description, and the SentencePiece models of both sides."""
    config = read_table(folder / "config.json")
    section = our_section(config, folder)
    theirs = read_tensors(folder)
    check_positions(theirs, section, folder)
    target, source = read_pieces(folder, config)
    weights = our_tensors(theirs, section, target, source, folder)
    tokenizer = folder / "tokenizer_config.json"
    languages = read_table(tokenizer) if tokenizer.is_file() else {}
    description = model_folder.Description(
        section,
        len(target.numbers),
        str(languages.get("source_lang") or "en"),
        str(languages.get("target_lang") or ""),
        Translate(beam=4),
        len(source.numbers) if source else 0,
    )
    sides = {"source.spm": source or target, "target.spm": target}
    return weights, description, [sided(folder / name, pieces.listed) for name, pieces in sides.items()]


def read_table(path: Path) -> dict[str, Any]:
    table = runs.read_json(path)
    if not isinstance(table, dict):
        raise RunError(f"{path}: is no JSON object")
    return table


def our_section(config: dict[str, Any], folder: Path) -> Model:
    """Refuses, in one line with all reasons, what our model cannot be."""
    wrong = reasons_against(config)
    if not wrong:
        found = {
            **{ours: config[theirs] for ours, theirs in SHAPE.items()},
            "dropout": config.get("dropout", 0.1),
            "attention_dropout": config.get("attention_dropout", 0.0),
            "relu_dropout": config.get("activation_dropout", 0.0),
            "style": "marian" if config["model_type"] == "marian" else "tensor2tensor",
            "activation": ACTIVATIONS[config["activation_function"]],
        }
        checked, wrong = check({"model": found})
    if wrong:
        raise RunError(f"{folder}: cannot be imported: {'; '.join(wrong)}")
    return checked.model


def reasons_against(config: dict[str, Any]) -> list[str]:
    kind, activation = config.get("model_type"), config.get("activation_function")
    wrong = [] if kind in ("marian", "pegasus") else [f"model_type = {kind!r} (marian and pegasus can be)"]
    expected = {"scale_embedding": True, "tie_word_embeddings": True, "normalize_embedding": False}
    wrong += [f"{key} = {config[key]}" for key, value in expected.items() if config.get(key, value) != value]
    if kind == "marian":
        wrong += [f"{key} = true" for key in ("normalize_before", "add_final_layer_norm") if config.get(key)]
    if kind == "pegasus" and not shares(config):
        wrong.append("share_encoder_decoder_embeddings = False (of Marian only)")
    if activation not in ACTIVATIONS:
        wrong.append(f"activation_function = {activation!r}")
    wrong += [f"{key} is missing" for key in SHAPE.values() if key not in config]
    for key in ("attention_heads", "ffn_dim"):
        encoder, decoder = config.get(f"encoder_{key}"), config.get(f"decoder_{key}")
        wrong += [f"different {key}: {encoder} and {decoder}"] if encoder != decoder else []
    return wrong


def read_tensors(folder: Path) -> dict[str, Tensor]:
    try:
        if (folder / "model.safetensors").is_file():
            found = load_file(folder / "model.safetensors")
        else:  # the format of older repositories; nothing but tensors is unpacked
            found = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    except Exception as error:  # a border: whatever torch and safetensors say about a broken file
        raise RunError(f"{folder}: model.safetensors or pytorch_model.bin is missing or damaged ({error})") from None
    return {name: tensor.float() for name, tensor in found.items()}


def check_positions(theirs: dict[str, Tensor], section: Model, folder: Path) -> None:
    """Pegasus computes waves of its own where none are stored; Marian's are ours. What is stored may be in 16 bits."""
    for name in POSITION_NAMES:
        stored = theirs.get(name)
        if stored is None and not is_marian(section):
            raise RunError(
                f"{folder}: cannot be imported: {name} is missing, and the positions of Pegasus itself are not ours"
            )
        if stored is None:
            continue
        ours = waves(torch.arange(len(stored)), section)
        if stored.shape != ours.shape or not torch.allclose(stored, ours, atol=0.01):
            raise RunError(
                f"{folder}: cannot be imported: {name} are other positions than the waves of style {section.style}"
            )


def shares(config: dict[str, Any]) -> bool:
    return bool(config.get("share_encoder_decoder_embeddings", True))


def read_pieces(folder: Path, config: dict[str, Any]) -> tuple[Pieces, Pieces | None]:
    """Those of the target, and those of the source where it has others."""
    start = config.get("decoder_start_token_id")
    if start is not None and not isinstance(start, int):
        raise RunError(f"{folder}/config.json: decoder_start_token_id = {start!r} is no whole number")
    if shares(config):
        return in_order(folder / "vocab.json", start), None
    target, source = in_order(folder / "target_vocab.json", start), in_order(folder / "vocab.json", None)
    if target.listed == source.listed:
        raise RunError(
            f"{folder}: cannot be imported: two matrices for the same pieces; ours has two where the pieces differ"
        )
    return target, source


def in_order(path: Path, start: int | None) -> Pieces:
    """The first target slot holds their start mark, whatever it is; a source has none."""
    numbers = read_table(path)
    wrong = [piece for piece, number in numbers.items() if not isinstance(number, int)]
    if wrong:
        raise RunError(f"{path}: {wrong[0]!r} has no whole number")
    missing = [piece for piece in ("</s>", "<unk>", "<pad>") if piece not in numbers]
    if missing:
        raise RunError(f"{path}: has no {missing[0]}")
    listed = [piece for piece in sorted(numbers, key=numbers.__getitem__) if piece not in SPECIAL.values()]
    marks = [numbers["<pad>"], numbers["</s>"], numbers["<pad>"] if start is None else start, numbers["<unk>"]]
    return Pieces([*marks, *(numbers[piece] for piece in listed)], listed)


def our_tensors(
    theirs: dict[str, Tensor], section: Model, target: Pieces, source: Pieces | None, folder: Path
) -> dict[str, Tensor]:
    def take(name: str) -> Tensor:
        if name not in theirs:
            raise RunError(f"{folder}: has no tensor {name}")
        return theirs[name]

    def rows_of(possible: tuple[str, ...], pieces: Pieces) -> Tensor:
        name = next((name for name in possible if name in theirs), possible[0])
        beyond = [number for number in pieces.numbers if not 0 <= number < len(take(name))]
        if beyond:
            raise RunError(
                f"{folder}: has no row {beyond[0]} in {name}, which its vocabulary or decoder_start_token_id names"
            )
        return take(name)[torch.tensor(pieces.numbers)]

    found = {"embedding.weight": rows_of(OF_TARGET if source else SHARED, target)}
    if source:
        found["source_embedding.weight"] = rows_of(OF_SOURCE, source)
    for mine, parts in names(section):
        found[f"{mine}.weight"] = torch.cat([take(f"{name}.weight") for name in parts])
        bias = torch.cat([take(f"{name}.bias") for name in parts])
        if is_marian(section) or "norm" in mine or "feed_forward" in mine:
            found[f"{mine}.bias"] = bias
        elif bias.any():
            raise RunError(
                f"{folder}: cannot be imported: {parts[0]} has biases, which attention of this style has not"
            )
    rows = torch.tensor(target.numbers)
    bias = theirs["final_logits_bias"][0][rows] if "final_logits_bias" in theirs else torch.zeros(len(rows))
    if is_marian(section):
        found["output_bias"] = bias
    elif bias.any():
        raise RunError(f"{folder}: cannot be imported: final_logits_bias is not zero")
    return found


def sided(path: Path, listed: list[str]) -> Any:
    """All pieces of both languages in our order, with the scores of one of them; what only the other has is not used."""
    proto = pieces_format.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # a border: protobuf has no exception of its own that is public
        raise RunError(f"{path}: not a SentencePiece model ({error})") from None
    kind = pieces_format.ModelProto.SentencePiece
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == kind.NORMAL}
    lowest = min(scores.values(), default=0.0)
    del proto.pieces[:]
    for index, piece in sorted(SPECIAL.items()):
        proto.pieces.add(piece=piece, score=0.0, type=kind.UNKNOWN if index == UNK else kind.CONTROL)
    for piece in listed:
        known = kind.CONTROL if LANGUAGE.fullmatch(piece) else kind.UNUSED  # see Vocabulary.languages
        proto.pieces.add(
            piece=piece, score=scores.get(piece, lowest - 10.0), type=kind.NORMAL if piece in scores else known
        )
    spec = proto.trainer_spec
    spec.pad_id, spec.eos_id, spec.bos_id, spec.unk_id = PAD, EOS, BOS, UNK
    spec.vocab_size = len(proto.pieces)
    return proto


def import_model(path: str | Path, out: str | Path) -> Path:
    """A model of transformers (a folder on this disk) as a model folder at `out`, whole or not at all."""
    source, target = Path(path), vacant(Path(out))
    if not (source / "config.json").is_file():
        raise RunError(
            f"{path}: not a model of transformers (config.json is missing); download its files into a folder"
        )
    weights, description, sides = read_huggingface(source)
    with runs.new_folder(target) as fresh:
        model_folder.write_tensors(fresh / model_folder.WEIGHTS, weights)
        first, second = (side.SerializeToString() for side in sides)
        (fresh / model_folder.VOCABULARY).write_bytes(second)
        if first != second:
            (fresh / model_folder.SOURCE_VOCABULARY).write_bytes(first)
        runs.write_text(fresh / model_folder.DESCRIPTION, model_folder.describe(description))
        read_whole(fresh)  # refused now, not by whoever uses it
        origin = {"imported_from": str(source), "time": round(time.time(), 3)}
        write_card(fresh, fresh, None, origin, licence=licence_of(source / "README.md"))
        runs.write_manifest(fresh, origin)
    return Path(out)
