"""The model: the reference's shapes, packed = padded, cached = uncached, rows that keep their pairs apart."""

import pytest
import torch

from dragoman.config import load_config
from dragoman.config.schema import Model
from dragoman.data.loader import tiles
from dragoman.data.subwords import BOS
from dragoman.model import loss as loss_module
from dragoman.model import ops
from dragoman.model.loss import SequenceLoss, loss_floor
from dragoman.model.size import checkpoint_bytes, parameters
from dragoman.model.transformer import Cache, Transformer


def eight_bit_layers(vocab, **options):
    model = Transformer(Model(heads=8, encoder_layers=1, decoder_layers=1, **options), vocab)
    used = model.use_eight_bits()
    return (
        used,
        model.eight_bits,
        {type(each).__name__ for each in model.modules() if each is not model and getattr(each, "eight_bits", False)},
    )


def test_eight_bits_are_for_wide_matrices():
    attention = {"SelfAttention", "CrossAttention"}
    assert eight_bit_layers(400, d_model=256, d_ff=512) == (True, True, set())
    assert eight_bit_layers(401, d_model=512, d_ff=512) == (True, False, {"FeedForward", "AddNorm"})
    assert eight_bit_layers(400, d_model=1024, d_ff=64) == (True, True, {"FeedForward", "AddNorm", *attention})
    assert eight_bit_layers(401, d_model=512, d_ff=64, activation="swish") == (False, False, set())


SMALL = Model(d_model=32, heads=4, encoder_layers=2, decoder_layers=2, d_ff=64)


@pytest.fixture(params=["tensor2tensor", "marian"])
def model(prepared, request):
    activation = {"tensor2tensor": "relu", "marian": "swish"}[request.param]
    section = SMALL.model_copy(update={"style": request.param, "activation": activation})
    model = Transformer(section, len(prepared.vocabulary))
    model.init_weights(1)
    return model.eval()


@pytest.mark.parametrize(("preset", "expected"), [("transformer-base", 60_880_896), ("transformer-big", 209_842_176)])
def test_parameters_of_the_reference(preset, expected):
    section = load_config(preset).model
    with torch.device("meta"):
        model = Transformer(section, 32_768)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected == parameters(section, 32_768)


def test_parameters_in_the_style_of_marian():
    section = SMALL.model_copy(update={"style": "marian"})
    model = Transformer(section, 100)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(section, 100)


def test_bytes_of_the_reference():
    assert checkpoint_bytes(60_880_896) == 730_570_768
    assert loss_floor(32_768, 0.1) == pytest.approx(1.3648, abs=5e-5)


def test_packed_rows_give_the_loss_of_padded_batches(prepared, model):
    data = prepared.encoded("valid")
    objective = SequenceLoss(model, 0.1)
    packed = tiles(data, [[0, 1, 2], [3, 4], [], [5, 6, 7]], 200)
    padded = tiles(data, [[index] for index in range(8)], 64)
    for together, alone in zip(objective(*packed.tensors()), objective(*padded.tensors()), strict=True):
        assert together.item() == pytest.approx(alone.item(), rel=1e-5)
    single = sum(objective(*tiles(data, [[index]], 64).tensors())[0].item() for index in range(8))
    assert objective(*packed.tensors())[0].item() == pytest.approx(single, rel=1e-5)


def test_packed_rows_give_the_gradient_of_padded_batches(prepared, model):
    data = prepared.encoded("valid")
    gradients = []
    for rows, width in (([[0, 1, 2, 3]], 256), ([[0], [1], [2], [3]], 64)):
        model.zero_grad()
        SequenceLoss(model, 0.1)(*tiles(data, rows, width).tensors())[0].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for packed, padded in zip(*gradients, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-4)


def test_a_pair_does_not_see_its_neighbours(prepared, model):
    data = prepared.encoded("valid")
    objective = SequenceLoss(model, 0.0)

    def hidden(row):
        batch = tiles(data, [row], 200)
        memory = model.encode(batch.source, batch.source_position, batch.source_segment)
        x = model.decode(batch.target_in, batch.target_position, batch.target_segment, memory, batch.source_segment)
        return x[0][batch.target_segment[0] == 1]

    torch.testing.assert_close(hidden([0, 1, 2]), hidden([0, 5, 6]), rtol=1e-4, atol=1e-5)
    assert objective(*tiles(data, [[], []], 16).tensors())[0].item() == 0.0


def test_cached_decoding_gives_the_logits_of_the_whole_pass(prepared, model):
    data = prepared.encoded("valid")
    batch = tiles(data, [[index] for index in range(6)], 64)
    memory = model.encode(batch.source, batch.source_position, batch.source_segment)
    hidden = model.decode(batch.target_in, batch.target_position, batch.target_segment, memory, batch.source_segment)
    whole = model.logits(hidden)
    slots = int((batch.target_segment > 0).sum(1).min())
    shape = (6, SMALL.heads, slots, 1, SMALL.d_model // SMALL.heads)
    past = [(torch.zeros(shape), torch.zeros(shape)) for _ in model.decoder]
    cache = Cache(*model.start(batch.source, batch.source_segment), past)
    for position in range(slots):
        ancestry = (torch.arange(slots) > position).to(torch.int8).neg().expand(6, 1, -1)  # -1: not there yet
        seen = ops.descent(torch.tensor([position]), ancestry, slots, memory, SMALL.d_model // SMALL.heads)
        step = model.step(batch.target_in[:, position, None], cache, seen)
        torch.testing.assert_close(step[:, 0], whole[:, position], rtol=1e-4, atol=1e-4)
    assert batch.target_in[0, 0] == BOS


def test_loss_in_pieces_is_the_whole_loss(prepared, model, monkeypatch):
    batch = tiles(prepared.encoded("valid"), [[0, 1], [2, 3]], 128)
    objective = SequenceLoss(model, 0.1)

    def loss_and_gradient():
        model.zero_grad()
        loss, nll = objective(*batch.tensors())
        loss.backward()
        return loss.item(), nll.item(), model.embedding.weight.grad.clone()

    whole = loss_and_gradient()
    monkeypatch.setitem(loss_module.PIECE_ELEMENTS, "cpu", 10_000)
    pieces = loss_and_gradient()
    assert pieces[:2] == pytest.approx(whole[:2], rel=1e-6)
    torch.testing.assert_close(pieces[2], whole[2], rtol=1e-4, atol=1e-5)


def test_loss_is_torchs_label_smoothing(prepared, model):
    batch = tiles(prepared.encoded("valid"), [[0, 1], [2, 3]], 128)
    memory = model.encode(batch.source, batch.source_position, batch.source_segment)
    hidden = model.decode(batch.target_in, batch.target_position, batch.target_segment, memory, batch.source_segment)
    real = batch.target_segment > 0
    expected = torch.nn.functional.cross_entropy(
        model.logits(hidden)[real], batch.target_out[real], label_smoothing=0.1, reduction="sum"
    )
    assert SequenceLoss(model, 0.1)(*batch.tensors())[0].item() == pytest.approx(expected.item(), rel=1e-5)


def test_gradient_is_torchs_too(model):
    hidden, labels = torch.randn(40, 32, requires_grad=True), torch.randint(0, len(model.embedding.weight), (40,))
    labels[::7] = loss_module.IGNORED
    weight = model.embedding.weight
    loss, nll = loss_module.smoothed_sums(hidden, weight, labels, 0.1)
    assert not nll.requires_grad
    loss.backward()
    ours = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    logits = hidden @ weight.t()
    torch.nn.functional.cross_entropy(
        logits, labels, label_smoothing=0.1, reduction="sum", ignore_index=-100
    ).backward()
    torch.testing.assert_close(ours[0], hidden.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[1], weight.grad, rtol=1e-4, atol=1e-5)


def test_weights_follow_from_the_seed():
    def weights(seed):
        model = Transformer(SMALL, 50)
        model.init_weights(seed)
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))
