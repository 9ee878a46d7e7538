"""Compiled = eager, and the piece of the loss really is compiled when the model around it is."""

import shutil

import pytest
import torch

from dragoman.config.schema import Model
from dragoman.data.loader import tiles
from dragoman.model import loss as loss_module
from dragoman.model.loss import SequenceLoss
from dragoman.model.transformer import Transformer


@pytest.mark.skipif(not shutil.which("g++"), reason="compiling for the CPU needs g++")
def test_compiled_is_eager(prepared, monkeypatch):
    compiling = []
    original = loss_module.sums_and_gradient

    def watched(*arguments):
        compiling.append(torch.compiler.is_compiling())
        return original(*arguments)

    monkeypatch.setattr(loss_module, "sums_and_gradient", watched)
    loss_module.compiled_piece.cache_clear()
    section = Model(
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        d_ff=16,
        dropout=0.0,
        attention_dropout=0.0,
        relu_dropout=0.0,
    )
    batch = tiles(prepared.encoded("valid"), [[0], [1]], 64)
    results = []
    for compiled in (False, True):
        model = Transformer(section, len(prepared.vocabulary))
        model.init_weights(1)
        objective = SequenceLoss(model, 0.1, compiled=compiled)
        run = torch.compile(objective, dynamic=False) if compiled else objective
        loss, _ = run(*batch.tensors())
        loss.backward()
        results.append((loss.item(), model.embedding.weight.grad))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)
    assert not any(compiling[: len(compiling) // 2])
    assert compiling[-1], "the piece ran uncompiled inside the compiled model"
    loss_module.compiled_piece.cache_clear()
