"""Compiled = eager."""

import shutil

import pytest
import torch

from dragoman.config.schema import Model
from dragoman.data.loader import tiles
from dragoman.model.loss import SequenceLoss
from dragoman.model.transformer import Transformer

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "relu_dropout": 0.0}


@pytest.mark.skipif(not shutil.which("g++"), reason="compiling for the CPU needs g++")
def test_compiled_is_eager(prepared):
    section = Model(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16, **NO_DROPOUT)
    batch = tiles(prepared.encoded("valid"), [[0], [1]], 64)
    results = []
    for compiled in (False, True):
        model = Transformer(section, len(prepared.vocabulary))
        model.init_weights(1)
        objective = SequenceLoss(model, 0.1)
        run = torch.compile(objective, dynamic=False) if compiled else objective
        loss, _ = run(*batch.tensors())
        loss.backward()
        results.append((loss.item(), model.embedding.weight.grad))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)
