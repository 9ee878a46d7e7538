"""What learning on a CPU does in its own way, against the plain functions: outputs and gradients."""

import pytest
import torch

from dragoman.model import cpu, plain

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def outputs_and_gradients(function, inputs):
    for tensor in inputs:
        tensor.grad = None
    output = function(*inputs)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(7))
    (output.float() * weights).sum().backward()
    return [output, *(tensor.grad for tensor in inputs)]


def same(ours, theirs, dtype):
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.shape == other.shape
        error = (mine.float() - other.float()).norm() / other.float().norm()
        assert error < TOLERANCE[dtype], f"number {number}: relative error {error:.1e}"


def random(*shape, dtype):
    return torch.randn(*shape).to(dtype).requires_grad_()


@TYPES
def test_feed_forward(dtype):
    """Twice with other sizes: the memory that is lent is used again, larger and smaller."""
    torch.manual_seed(1)
    for rows, hidden in ((6, 40), (3, 24), (7, 64)):
        inputs = [
            random(*shape, dtype=dtype) for shape in ((2, rows, 16), (hidden, 16), (hidden,), (16, hidden), (16,))
        ]
        ours = outputs_and_gradients(lambda x, w, b, v, c: cpu.feed_forward(x, (w, v), (b, c)), inputs)
        theirs = outputs_and_gradients(lambda x, w, b, v, c: plain.feed_forward(x, (w, v), (b, c), 0.0), inputs)
        same(ours, theirs, dtype)


def test_two_layers_do_not_share_what_they_keep():
    torch.manual_seed(1)
    inputs = [random(*shape, dtype=torch.float32) for shape in ((5, 16), (32, 16), (32,), (16, 32), (16,))]

    def twice(way):
        def both(x, w, b, v, c):
            x = way(x, (w, v), (b, c))
            return way(x, (w, v), (b, c))

        return both

    ours = outputs_and_gradients(twice(cpu.feed_forward), inputs)
    theirs = outputs_and_gradients(
        twice(lambda x, weights, biases: plain.feed_forward(x, weights, biases, 0.0)), inputs
    )
    same(ours, theirs, torch.float32)


@TYPES
def test_adding_and_norming_with_dropout_is_that_of_its_mask(dtype):
    """The seed of the mask comes from torch's generator: drawn again, it is the same."""
    torch.manual_seed(1)
    inputs = [random(4, 6, 32, dtype=torch.float32), random(4, 6, 32, dtype=dtype)]
    inputs += [random(32, dtype=torch.float32), random(32, dtype=torch.float32)]

    def same_mask(way):
        torch.manual_seed(2)
        return outputs_and_gradients(lambda *given: torch.cat([part.float() for part in way(*given)]), inputs)

    def plainly(x, update, weight, bias):
        return plain.add_norm(x, update.float() * cpu.keep_mask(x, 0.3), weight, bias, 1e-5, 0.0)

    same(same_mask(lambda *given: cpu.add_norm(*given, 1e-5, 0.3)), same_mask(plainly), dtype)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_a_mask_keeps_the_mean_and_drops_as_many_as_it_should(dropout):
    torch.manual_seed(1)
    mask = cpu.keep_mask(torch.empty(500, 401), dropout)  # no multiple of four
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - dropout)], rel=1e-4)
    assert (mask == 0).float().mean().item() == pytest.approx(dropout, abs=0.005)
    assert not torch.equal(mask, cpu.keep_mask(mask, dropout)), "another call drops others"


@TYPES
def test_attention(dtype):
    torch.manual_seed(1)
    query, key, value = (random(3, 2, 12, 8, dtype=dtype) for _ in range(3))
    segment = torch.arange(12) // 5
    mask = (segment[:, None] == segment[None]).expand(3, 1, -1, -1)
    ours = outputs_and_gradients(lambda *parts: cpu.attend(*parts, mask, 0.0), [query, key, value])
    theirs = outputs_and_gradients(lambda *parts: plain.attend(*parts, mask, 0.0), [query, key, value])
    same(ours, theirs, dtype)
