"""A tiny model, trained for seconds, in a folder as training writes it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from dragoman import runs
from dragoman.config.schema import Model, Subwords, Translate
from dragoman.data.subwords import BOS, Vocabulary, learn
from dragoman.model.folder import Description, write_model
from dragoman.model.loss import SequenceLoss
from dragoman.model.transformer import Transformer
from dragoman.translate.torch_engine import padded

torch.set_num_threads(1)
SHAPE = Model(
    d_model=32,
    heads=4,
    encoder_layers=2,
    decoder_layers=2,
    d_ff=64,
    dropout=0.0,
    attention_dropout=0.0,
    relu_dropout=0.0,
)
WHO = {"the cat": "die Katze", "my brother": "mein Bruder", "a teacher": "eine Lehrerin", "nobody": "niemand"}
DOES = {"sees": "sieht", "paints": "malt", "forgets": "vergisst", "understands": "versteht", "buys": "kauft"}
WHAT = {
    "the small house": "das kleine Haus",
    "our letters": "unsere Briefe",
    "bread": "Brot",
    "every song": "jedes Lied",
}
PAIRS = [
    (" ".join(pair[0] for pair in row) + ".", " ".join(pair[1] for pair in row) + ".")
    for row in product(*(side.items() for side in (WHO, DOES, WHAT)))
]


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    return PAIRS


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return learn(
        map(pa.array, PAIRS), Subwords(vocab_size=120), tmp_path_factory.mktemp("vocabulary") / "vocabulary.model"
    )


@pytest.fixture(scope="session")
def checkpoint(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "step-00000400"
    with runs.new_folder(folder) as fresh:
        description = Description(SHAPE, len(vocabulary), "en", "de", Translate(extra_length=10))
        write_model(fresh, small_model(vocabulary).state_dict(), description, vocabulary.path)
        (fresh / "optimizer.safetensors").write_bytes(b"moments")
        (fresh / "training.json").write_text("{}")
        runs.write_manifest(fresh, {"step": 400, "time": 0.0, "scores": {"loss": 3.1, "bleu": 43.2}})
    return folder


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Some as learned from, one with letters that the vocabulary lacks, and a long one."""
    sources = [source for source, _ in PAIRS[::3]]
    return [*sources, "the ☃ buys ŽŽ bread.", " ".join(sources)]


def small_model(vocabulary: Vocabulary, steps: int = 40) -> Transformer:
    """Every tensor drawn, norms and biases too, then a little training: translations that differ, and that end."""
    model = Transformer(SHAPE, len(vocabulary))
    model.init_weights(seed=1)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            tensor.data += 0.2 * torch.randn(tensor.shape, generator=generator)
    source, source_segment = padded(vocabulary.encode([pair[0] for pair in PAIRS]), torch.device("cpu"))
    target, target_segment = padded(vocabulary.encode([pair[1] for pair in PAIRS]), torch.device("cpu"))
    shifted = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1)
    positions = [torch.arange(ids.shape[1]).expand_as(ids) for ids in (source, target)]
    objective, optimizer = SequenceLoss(model, 0.1), torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        loss, _ = objective(source, positions[0], source_segment, shifted, target, positions[1], target_segment)
        optimizer.zero_grad()
        (loss / target_segment.sum()).backward()
        optimizer.step()
    return model.eval()
