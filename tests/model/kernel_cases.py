"""Every fused operation against its plain twin, outputs and gradients. Run by test_kernels in a process of its own:

TRITON_INTERPRET=1 python kernel_cases.py cpu     the kernels interpreted, in fp32: the mathematics
python kernel_cases.py cuda                       compiled, in bf16 and fp16: what a GPU really does
python kernel_cases.py cuda eight_bits            only cases with this in their names
"""

import sys

import torch
from torch import Tensor

from dragoman.model import eight_bits, fused, plain
from dragoman.model.loss import Output

DEVICE = torch.device(sys.argv[1])
TYPES = {"cpu": [torch.float32], "cuda": [torch.bfloat16, torch.float16]}[DEVICE.type]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
LOW = 2**32 - 1
# Slots of a row and width of a head; on a GPU those that models have too: other tiles, other registers.
SHAPES = {"cpu": [(32, 16)], "cuda": [(32, 16), (64, 64), (128, 64)]}[DEVICE.type]


def has_eight_bits() -> bool:
    return DEVICE.type == "cpu" or torch.cuda.get_device_capability() >= (8, 9)


torch.manual_seed(1)


def random(*shape, dtype=torch.float32, gradient=True):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(gradient)


def outputs_and_gradients(function, inputs: list[Tensor]) -> list[Tensor]:
    """With random, but always the same weights on the outputs."""
    for tensor in inputs:
        tensor.grad = None
    outputs = function()
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(output.shape, generator=generator).to(DEVICE) for output in outputs]
    sum((output.float() * weight).sum() for output, weight in zip(outputs, weights, strict=True)).backward()
    return [*outputs, *(tensor.grad for tensor in inputs)]


def same(name: str, dtype: torch.dtype, ours: list[Tensor], theirs: list[Tensor], slack: float = 1.0) -> None:
    assert len(ours) == len(theirs)
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), (name, number)
        error = ((mine.float() - other.float()).norm() / other.float().norm()).item()
        assert error < slack * TOLERANCE[dtype], f"{name} {dtype}, number {number}: relative error {error:.1e}"


def segments(rows: int, slots: int, *, pairs: int) -> Tensor:
    """Sorted segments from 1 to `pairs`, all present, with a few empty slots at the end of every row."""
    cuts = torch.rand(rows, slots).argsort(dim=1)[:, : pairs - 1].sort(dim=1).values.clamp(1, slots - 4)
    numbers = 1 + (torch.arange(slots)[None, :, None] >= cuts[:, None, :]).sum(-1)
    numbers[:, slots - 3 :] = 0
    return numbers.to(torch.int32).to(DEVICE)


def case_add_norm(dtype):
    add_norm_of_width(48, dtype)
    add_norm_of_width(512, dtype)
    add_norm_of_width(1024, dtype)
    add_norm_of_width(1100, dtype)
    add_norm_of_width(64, dtype, rows=32 * fused.processors(torch.device(DEVICE)) + 5)  # programs take a second turn


def add_norm_of_width(width, dtype, rows=6):
    inputs = [random(rows, 5, width, dtype=dtype), random(rows, 5, width, dtype=dtype), random(width), random(width)]
    ours = outputs_and_gradients(lambda: fused.add_norm(*inputs, 1e-5, 0.0), inputs)
    theirs = outputs_and_gradients(lambda: plain.add_norm(*inputs, 1e-5, 0.0), inputs)
    same(f"add_norm {width}", dtype, ours, theirs)


def case_self_attention(dtype):
    self_attention_of(16, 16, True, dtype)
    self_attention_of(128, 64, True, dtype)
    for slots, dim in SHAPES:
        self_attention_of(slots, dim, False, dtype)


def self_attention_of(slots, dim, causal, dtype):
    heads, rows = 2, 2
    packed, segment = random(rows, slots, 3 * heads * dim, dtype=dtype), segments(rows, slots, pairs=3)
    mask = plain.visible(segment, segment, causal=causal)
    ours = outputs_and_gradients(lambda: fused.self_attention(packed, segment, heads, 0.0, causal=causal), [packed])
    theirs = outputs_and_gradients(lambda: plain.self_attention(packed, mask, heads, 0.0), [packed])
    same(f"self attention {slots}", dtype, ours, theirs)


def case_cross_attention(dtype):
    for slots, dim in SHAPES:
        cross_attention_of(slots, dim, dtype)


def cross_attention_of(slots, dim, dtype):
    heads, rows = 2, 3
    inputs = [random(rows, slots, heads * dim, dtype=dtype), random(rows, slots, 2 * heads * dim, dtype=dtype)]
    target = segments(rows, slots, pairs=3)
    source = target.flip(1).clone().where(target.flip(1) > 0, torch.ones_like(target)).sort(dim=1).values
    source[:, -2:] = 0
    source[:, -5:-2] = 3
    mask = plain.visible(target, source, causal=False)
    sees = mask.any(-1).view(rows, slots, 1)  # a short pair may have lost its source above
    ours = outputs_and_gradients(lambda: fused.cross_attention(*inputs, target, source, heads, 0.0) * sees, inputs)
    theirs = outputs_and_gradients(lambda: plain.cross_attention(*inputs, mask, heads, 0.0) * sees, inputs)
    same(f"cross attention {slots}", dtype, ours, theirs)


def case_search(dtype):
    """At the first position, within the first tile of keys, and beyond it; with one hypothesis, with as many as fill a tile of
    queries, and with one more."""
    for hypotheses, position in ((4, 0), (4, 3), (4, 60), (1, 5), (16, 9), (17, 9), (3, 47)):
        search_of(hypotheses, position, dtype)


def search_of(hypotheses, position, dtype):
    rows, heads, dim, slots, width = 3, 2, 32, 64, 48
    here = {"device": DEVICE, "dtype": dtype}
    packed = torch.randn(rows, hypotheses, 3 * heads * dim, **here)
    past = [torch.randn(rows, heads, slots, hypotheses, dim, **here) for _ in range(2)]
    for kept in past:
        kept[:, :, position + 1 :] = float("nan")  # nobody may look there
    ancestry = torch.randint(hypotheses, (rows, hypotheses, slots), device=DEVICE, dtype=torch.int8)
    ancestry[:, :, position] = torch.arange(hypotheses)
    ancestry[:, :, position + 1 :] = -1
    at, theirs = torch.tensor([position], device=DEVICE), [kept.clone().nan_to_num() for kept in past]
    mask = plain.ancestors(ancestry, slots, dtype)
    same(
        f"search_self {hypotheses} {position}", dtype,
        [fused.search_self(packed, tuple(past), ancestry, at, heads)],
        [plain.search_self(packed, tuple(theirs), mask, at, heads)],
    )  # fmt: skip
    for ours, plainly in zip(past, theirs, strict=True):
        assert torch.equal(ours[:, :, : position + 1], plainly[:, :, : position + 1])  # the new ones are kept
    query, memory = (
        packed[:, :, : heads * dim].contiguous(),
        [torch.randn(rows, heads, width, dim, **here) for _ in "kv"],
    )
    lengths = torch.tensor([1, 33, 48], device=DEVICE)
    mask = torch.zeros(rows, 1, 1, width, **here)
    mask.masked_fill_((torch.arange(width, device=DEVICE) >= lengths[:, None])[:, None, None], float("-inf"))
    ours, plainly = (way.search_cross(query, tuple(memory), mask, heads) for way in (fused, plain))
    same(f"search_cross {hypotheses}", dtype, [ours], [plainly])


def case_feed_forward(dtype):
    inputs = [random(10, 48, dtype=dtype), random(64, 48), random(48, 64), random(64), random(48)]
    x, inner, outer, inner_bias, outer_bias = inputs
    arguments = (x, (inner, outer), (inner_bias, outer_bias), 0.0)
    ours = outputs_and_gradients(lambda: fused.feed_forward(*arguments), inputs)
    with torch.autocast(DEVICE.type, dtype=dtype, enabled=DEVICE.type == "cuda"):
        theirs = outputs_and_gradients(lambda: plain.feed_forward(*arguments), inputs)
    same("feed-forward", dtype, ours, theirs)


def case_loss(dtype):
    for width in (50, 5000):
        logits, labels = random(6, width, dtype=dtype, gradient=False) * 3, torch.tensor([3, -100, 0, width - 1, 7, 8])
        ours = fused.loss_and_gradient(logits.clone(), labels.to(DEVICE), 0.1, 2.0)
        theirs = plain.loss_and_gradient(logits.clone(), labels.to(DEVICE), 0.1, 2.0)
        same(f"loss {width}", dtype, list(ours), list(theirs))


def case_embedding(dtype):
    """Frequent ids, rare ones, ids that nobody has; more slots than a program looks at, and parts of that."""
    for slots, width in ((100, 48), (64, 1040)):
        table = random(40, width)
        ids = (torch.rand(4, slots, device=DEVICE) ** 3 * 39).long()
        weights = random(4, slots, width, dtype=dtype, gradient=False)
        found, expected = (
            torch.autograd.grad((way(ids, table).to(dtype) * weights).sum(), table)[0]
            for way in (fused.embed, torch.nn.functional.embedding)
        )
        same("embedding", dtype, [found], [expected])
        assert not found[39].any()


def case_best_of(dtype):
    """The same columns in the same order; logits are all different, so that there is one order only."""
    for width in (1300, 9000):
        logits = (torch.randperm(6 * width).view(2, 3, width) / 64).to(DEVICE).to(dtype)
        logits[0, 0, 0] = logits[0, 1, 2] = 999.0  # what is never chosen counts for the normalizer all the same
        ours, theirs = (way.best_of(logits.contiguous(), 7, (0, 2)) for way in (fused, plain))
        same("best_of", dtype, list(ours[:2]), list(theirs[:2]))
        if dtype == torch.float32:
            assert torch.equal(ours[2], theirs[2])
        assert not torch.isin(ours[2], torch.tensor([0, 2], device=DEVICE)).any()


def case_dropout_is_drawn_again_in_the_backward_pass(dtype):
    """Where an update was dropped its gradient is zero, elsewhere it is scaled; and another call drops others."""
    x, update = torch.zeros(64, 64, device=DEVICE, dtype=dtype), torch.ones(64, 64, device=DEVICE, dtype=dtype)
    update.requires_grad_()
    norm = torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE)
    total, _ = fused.add_norm(x, update, *norm, 1e-5, 0.3)
    total.sum().backward()
    assert torch.equal(total, update.grad)
    kept = (total > 0).float().mean().item()
    assert abs(kept - 0.7) < 0.03, kept
    assert not torch.equal(total, fused.add_norm(x, update, *norm, 1e-5, 0.3)[0])


def kept(index: Tensor, seed: int, dropout: float) -> Tensor:
    """The kernels' own random numbers, once more in 64 bits."""
    bits, low = index ^ (seed & LOW), LOW
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & low
    bits = bits ^ (seed >> 32)
    bits = (bits ^ (bits >> 15)) & low
    bits = (bits * (0x846CA68B >> 16) << 16 & low) + (
        bits * (0x846CA68B & 0xFFFF) & low
    ) & low  # no overflow of 63 bits
    bits = bits ^ (bits >> 16)
    return (bits >> 1) >= int(dropout * 2**31)


def case_attention_dropout_is_the_mask_of_the_seed(dtype):
    """Outputs and gradients against plain attention with that very mask, which keeps as many weights as it should."""
    for slots, dim in SHAPES:
        self_attention_with_dropout(slots, dim, dtype)


def self_attention_with_dropout(slots, dim, dtype):
    heads, dropout, seed = 2, 0.3, 1234567890123
    segment = segments(3, slots, pairs=2)
    packed = random(3, slots, 3 * heads * dim, dtype=dtype)
    index = torch.arange(3 * heads * slots * slots).view(3, heads, slots, slots)
    keep = kept(index, seed, dropout).to(DEVICE)
    assert abs(keep.float().mean().item() - 0.7) < 0.02
    given = torch.tensor([seed], device=DEVICE)

    def ours():
        return fused.attention_op(packed, None, segment, segment, given, heads, True, dropout)[0]

    def theirs():
        query, key, value = (plain.split_heads(part, heads).float() for part in packed.chunk(3, dim=-1))
        scores = (query @ key.transpose(2, 3) * dim**-0.5).masked_fill(
            ~plain.visible(segment, segment, causal=True), -1e30
        )
        weights = scores.softmax(-1) * keep / (1.0 - dropout)
        return (weights @ value).transpose(1, 2).flatten(2).to(dtype)

    results = (outputs_and_gradients(each, [packed]) for each in (ours, theirs))
    same(f"attention with dropout {slots}", dtype, *results, slack=3.0)  # the other side never rounds to 16 bits


def case_dropout_of_the_hidden_layer_is_the_mask_of_the_seed(dtype):
    rows = 600  # more than one program sums up
    inputs = [random(rows, 48, dtype=dtype), random(64, 48, dtype=dtype), random(64, dtype=dtype),
              random(48, 64, dtype=dtype), random(48, dtype=dtype)]  # fmt: skip
    x, inner, inner_bias, outer, outer_bias = inputs
    dropout, seed = 0.3, 987654321012
    keep = kept(torch.arange(rows * 64).view(rows, 64), seed, dropout).to(DEVICE)

    def ours():
        return fused.feed_forward_op(*inputs, torch.tensor([seed], device=DEVICE), dropout)[0]

    def theirs():
        hidden = torch.relu(torch.addmm(inner_bias, x, inner.t())) * keep / (1.0 - dropout)
        return torch.addmm(outer_bias, hidden.to(dtype), outer.t())

    same("hidden dropout", dtype, *(outputs_and_gradients(each, inputs) for each in (ours, theirs)), slack=3.0)


def case_cross_attention_dropout_is_the_mask_of_the_seed(dtype):
    for slots, dim in SHAPES:
        cross_attention_with_dropout(slots, dim, dtype)


def cross_attention_with_dropout(slots, dim, dtype):
    heads, rows, dropout, seed = 2, 3, 0.3, 55555555555
    inputs = [random(rows, slots, heads * dim, dtype=dtype), random(rows, slots, 2 * heads * dim, dtype=dtype)]
    segment = segments(rows, slots, pairs=2)
    keep = kept(torch.arange(rows * heads * slots * slots).view(rows, heads, slots, slots), seed, dropout).to(DEVICE)
    given = torch.tensor([seed], device=DEVICE)

    def ours():
        return fused.attention_op(*inputs, segment, segment, given, heads, False, dropout)[0]

    def theirs():
        parts = inputs[0], *inputs[1].chunk(2, dim=-1)
        query, key, value = (plain.split_heads(part, heads).float() for part in parts)
        scores = (query @ key.transpose(2, 3) * dim**-0.5).masked_fill(
            ~plain.visible(segment, segment, causal=False), -1e30
        )
        return ((scores.softmax(-1) * keep / (1.0 - dropout)) @ value).transpose(1, 2).flatten(2).to(dtype)

    real = (segment > 0)[:, :, None]  # what empty slots look at is nobody's business
    results = (outputs_and_gradients(lambda way=way: way() * real, inputs) for way in (ours, theirs))
    same(f"cross attention with dropout {slots}", dtype, *results, slack=3.0)


def case_norm_after_dropout(dtype):
    """Its gradient reaches the update through the mask that the sum shows."""
    inputs = [random(8, 64, dtype=dtype), random(8, 64, dtype=dtype), random(64), random(64)]
    x, update, weight, bias = inputs
    torch.manual_seed(3)
    keep = (fused.add_norm(torch.zeros_like(x), torch.ones_like(update), weight, bias, 1e-5, 0.3)[0] > 0).to(
        dtype
    ) / 0.7

    def ours():
        torch.manual_seed(3)
        return fused.add_norm(*inputs, 1e-5, 0.3)

    def theirs():
        return plain.add_norm(x, update * keep, weight, bias, 1e-5, 0.0)

    same("norm after dropout", dtype, *(outputs_and_gradients(each, inputs) for each in (ours, theirs)), slack=3.0)


def case_matrices_in_eight_bits(dtype):
    """Both copies hold what fits into 8 bits as it is; on a GPU (the interpreter rounds wrongly) all else within half a step: one
    in 16 of e4m3, in 8 of e5m2."""
    if not has_eight_bits():
        return
    exact = torch.randint(-3, 4, (80, 144), device=DEVICE) / 2
    rounded = [random(80, 144, gradient=False, dtype=torch.bfloat16)] if DEVICE.type == "cuda" else []
    for x in (exact, exact.to(dtype), torch.ones(128, 512, device=DEVICE).cumsum(1).cumsum(0) % 8, *rounded):
        small, turned = eight_bits.shrunk(x, 4.0)
        assert torch.equal(small.float().t(), turned.float())
        assert ((small.float() / 4.0 - x.float()).abs() <= x.float().abs() / 16 + 2**-12).all()
        for size in (2.0**-40, 1.0, 2.0**40):
            gradient = (x.float() % 4 * size).to(torch.bfloat16 if DEVICE.type == "cuda" else dtype)
            small, turned, inverse = eight_bits.shrunk_gradient(gradient)
            assert torch.equal(small.float().t(), turned.float())
            apart = (small.float() * inverse - gradient.float()).abs()
            assert (apart <= gradient.float().abs() / 8 + size * 2**-24).all()
    assert torch.equal(eight_bits.shrunk(exact, 4.0)[0].float() / 4.0, exact)
    assert eight_bits.shrunk(exact * 1000, 4.0)[0].float().max() == 448.0  # too large: the largest there is


def case_hidden_layer_in_eight_bits(dtype):
    """relu and back, whole tiles and parts of them: both copies, and the sums for the bias; dropout is the mask of the seed."""
    if not has_eight_bits():
        return
    for rows, columns in ((80, 144), (1040, 512)):
        numbers, after = (torch.randint(-3, 4, (rows, columns)).float().to(DEVICE) for _ in range(2))
        before, after = (4.0 * numbers).to(eight_bits.VALUE), after.to(eight_bits.GRADIENT)
        hidden, turned = eight_bits.active(before, torch.zeros(1, dtype=torch.int64, device=DEVICE), 0.0)
        assert torch.equal(hidden.float(), 4.0 * numbers.relu())
        assert torch.equal(hidden.float().t(), turned.float())
        small, turned, bias = eight_bits.inactive(hidden, after)
        expected = after.float() * (numbers > 0)
        assert torch.equal(small.float(), expected)
        assert torch.equal(small.float().t(), turned.float())
        assert torch.equal(bias.sum(0), expected.sum(0))
        assert torch.equal(eight_bits.turned_over(hidden).float(), hidden.float().t())
        keep = kept(torch.arange(rows * columns).view(rows, columns), 987654321012, 0.5).to(DEVICE)
        dropped, _ = eight_bits.active(before, torch.tensor([987654321012], device=DEVICE), 0.5)
        assert torch.equal(dropped.float(), 4.0 * numbers.relu() * keep)
        assert torch.equal(eight_bits.inactive(dropped, after)[2].sum(0), (expected * keep).sum(0))
        before[3, 5] = float("nan")
        assert eight_bits.active(before, torch.zeros(1, dtype=torch.int64, device=DEVICE), 0.0)[1][5, 3].isnan()


def case_logit_gradients_in_eight_bits(dtype):
    """Each is one of its two neighbours in e5m2, and their mean is right: also that of the many that are nearly the same."""
    if not has_eight_bits():
        return
    width, labels = 4096, torch.randint(4096, (64,), device=DEVICE)
    logits = random(64, width, dtype=dtype, gradient=False)
    exact = plain.loss_and_gradient(logits.float(), labels, 0.1, 1.0)[1]
    small = torch.empty(64, width, dtype=eight_bits.GRADIENT, device=DEVICE)
    sums = fused.loss_sums(logits, labels, small, 0.1, eight_bits.LOGIT_GRADIENT_SCALE)
    same("loss", dtype, [sums], [plain.loss_and_gradient(logits.float(), labels, 0.1, 1.0)[0]])
    found = small.float() / eight_bits.LOGIT_GRADIENT_SCALE
    assert ((found - exact).abs() <= exact.abs() / 3.9 + 1e-8).all()
    without = exact.clone().scatter_(1, labels[:, None], 0.0)
    rest = found.clone().scatter_(1, labels[:, None], 0.0)
    assert abs(rest.sum() / without.sum() - 1).item() < 2e-3


def product_without_hardware(left, left_inverse, right, right_scale, bias, dtype):
    """What eight_bits.product asks a GPU for."""
    found = (left.float() * left_inverse) @ (right.float() / right_scale).t()
    return (found if bias is None else found + bias).to(dtype)


if DEVICE.type == "cpu":
    eight_bits.product = product_without_hardware
ROUNDING = 3.0 if DEVICE.type == "cpu" else 1.0  # the interpreter's is wrong for one number in eight


def error_of(mine, other):
    return ((mine - other).float().norm() / other.float().norm()).item()


def case_products_in_eight_bits(dtype):
    """Outputs as close as e4m3 is, gradients as e5m2 is, whatever their size."""
    if not has_eight_bits() or dtype == torch.float16:
        return
    x, inner, outer = random(256, 128, dtype=dtype), random(512, 128), random(128, 512)
    with torch.no_grad():
        inner *= 0.05
        outer *= 0.05
    biases = random(512), random(128)
    every = [x, inner, outer, *biases]
    ours, theirs = (
        outputs_and_gradients(lambda way=way: way.feed_forward(x, (inner, outer), biases, 0.0), every)
        for way in (eight_bits, fused)
    )
    errors = [error_of(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    # Units whose sign the rounding turns, one in a hundred, are a tenth of a gradient's norm.
    assert errors[0] < 0.05 * ROUNDING, errors
    assert all(error < 0.2 * ROUNDING for error in errors), errors
    for size in (1e-6, 1.0, 1e6):

        def ours(size=size):
            return size * eight_bits.linear(x, inner)

        def theirs(size=size):
            return size * torch.nn.functional.linear(x, inner.to(dtype))

        found = (outputs_and_gradients(each, [x, inner]) for each in (ours, theirs))
        errors = [error_of(mine, other) for mine, other in zip(*found, strict=True)]
        assert errors[0] < 0.05 * ROUNDING, errors
        assert all(error < 0.1 * ROUNDING for error in errors[1:]), errors


def case_products_of_small_numbers_are_exact(dtype):
    """Forward, of the input and of the weight: numbers that 8 bits hold, whose sums 16 bits hold."""
    if not has_eight_bits() or dtype == torch.float16:
        return
    x, weight, gradient = (
        torch.randint(-2, 3, shape, device=DEVICE).float() for shape in ((32, 64), (48, 64), (32, 48))
    )
    x, weight = (x / 4).to(dtype).requires_grad_(), (weight / 16).requires_grad_()
    out = eight_bits.linear(x, weight)
    out.backward(gradient.to(dtype))
    assert torch.equal(out.float(), x.detach().float() @ weight.detach().t())
    assert torch.equal(x.grad.float(), gradient @ weight.detach())
    assert torch.equal(weight.grad, gradient.t() @ x.detach().float())


def attention_matrices(slots, width, dtype):
    x, memory = random(4, slots, width, dtype=dtype), random(4, slots, width, dtype=dtype)
    into, query, key_value, out_of = (random(parts * width, width) for parts in (3, 1, 2, 1))
    with torch.no_grad():
        for matrix in (into, query, key_value, out_of):
            matrix *= width**-0.5
    return x, memory, into, query, key_value, out_of


def case_attention_in_eight_bits(dtype):
    """With the matrices around it, as close to products in 16 bits as e4m3 and e5m2 are."""
    if not has_eight_bits() or dtype == torch.float16:
        return
    for slots, dim in SHAPES:
        attention_in_eight_bits(slots, dim, dtype)


def attention_in_eight_bits(slots, dim, dtype):
    heads, segment = 4, segments(4, slots, pairs=3)
    x, memory, into, query, key_value, out_of = attention_matrices(slots, heads * dim, dtype)
    real = (segment > 0)[:, :, None]

    def in_sixteen(x, matrix):
        return torch.nn.functional.linear(x, matrix.to(dtype))

    def ours_self():
        seen = eight_bits.Segments(segment, segment, True)
        return eight_bits.attention(x, None, (into, None, out_of), seen, heads, 0.0) * real

    def theirs_self():
        return in_sixteen(fused.self_attention(in_sixteen(x, into), segment, heads, 0.0, causal=True), out_of) * real

    def ours_cross():
        seen = eight_bits.Segments(segment, segment, False)
        return eight_bits.attention(x, memory, (query, key_value, out_of), seen, heads, 0.0) * real

    def theirs_cross():
        parts = in_sixteen(x, query), in_sixteen(memory, key_value)
        return in_sixteen(fused.cross_attention(*parts, segment, segment, heads, 0.0), out_of) * real

    for ours, theirs, inputs in (
        (ours_self, theirs_self, [x, into, out_of]),
        (ours_cross, theirs_cross, [x, memory, query, key_value, out_of]),
    ):
        found = (outputs_and_gradients(each, inputs) for each in (ours, theirs))
        errors = [error_of(mine, other) for mine, other in zip(*found, strict=True)]
        assert errors[0] < 0.08 * ROUNDING, errors
        assert all(error < 0.15 * ROUNDING for error in errors[1:]), errors


def case_norms_in_eight_bits(dtype):
    """The stream is what it always is, to the bit; the norm is in 8 bits what the other is, and its gradient goes the same way."""
    if not has_eight_bits() or dtype == torch.float16:
        return
    inputs = [random(4, 16, 48, dtype=dtype), random(4, 16, 48, dtype=dtype), random(48), random(48)]
    for dropout in (0.0, 0.3):
        torch.manual_seed(3)
        total, normed = fused.add_norm(*inputs, 1e-5, dropout)
        torch.manual_seed(3)
        same_total, small = eight_bits.add_norm(*inputs, 1e-5, dropout)
        assert torch.equal(total, same_total)
        assert error_of(small.numbers.float() / eight_bits.ACTIVATION_SCALE, normed.flatten(0, 1)) < 0.04 * ROUNDING
        weights = random(4, 16, 48, dtype=dtype, gradient=False)
        expected = torch.autograd.grad((normed * weights).sum() + total.sum(), inputs)
        found = torch.autograd.grad((small.handle * weights).sum() + same_total.sum(), inputs)
        assert all(map(torch.equal, found, expected))


def case_what_a_norm_writes_is_what_a_layer_reads(dtype):
    """A norm in 8 bits, then a linear layer, feed-forward or attention: the same to the bit as that layer on what the norm holds."""
    if not has_eight_bits() or dtype == torch.float16:
        return
    inputs = [random(4, 32, 64, dtype=dtype), random(4, 32, 64, dtype=dtype), random(64), random(64)]
    _, small = eight_bits.add_norm(*inputs, 1e-5, 0.0)
    same_numbers = (small.numbers.float() / eight_bits.ACTIVATION_SCALE).view(small.handle.shape).to(dtype)
    weights, biases, out_of = (random(128, 64), random(64, 128)), (random(128), random(64)), random(64, 64)
    seen = eight_bits.Segments(*2 * [segments(4, 32, pairs=3)], True)
    layers = (
        lambda x: eight_bits.linear(x, weights[0]),
        lambda x: eight_bits.feed_forward(x, weights, biases, 0.0),
        lambda x: eight_bits.attention(x, None, (random(192, 64), None, out_of), seen, 4, 0.0),
    )
    for layer in layers:
        outputs = []
        for x in (small, same_numbers):
            torch.manual_seed(5)
            outputs.append(layer(x))
        assert torch.equal(*outputs)
    gradient = torch.autograd.grad(eight_bits.linear(small, weights[0]).sum(), small.handle)[0]
    assert gradient.isfinite().all()  # of the handle, which has no numbers itself


def case_operators_of_eight_bits_are_what_a_compiler_is_told(dtype):
    """Shapes and types of what comes out."""
    if not has_eight_bits() or dtype == torch.float16:
        return
    x, weight, outer = random(2, 16, 64, dtype=dtype), random(48, 64), random(64, 48)
    told = {"test_utils": ("test_faketensor",)}
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    small = eight_bits.shrink_op(x.flatten(0, 1))
    torch.library.opcheck(eight_bits.shrink_op, (x.flatten(0, 1),), **told)
    torch.library.opcheck(eight_bits.add_norm_op, (x, x, random(64), random(64), seed, 1e-5, 0.0), **told)
    torch.library.opcheck(eight_bits.linear_op, (x, small, weight), **told)
    _, turned = eight_bits.linear_op(x, small, weight)
    gradient = random(32, 48, dtype=dtype, gradient=False)
    torch.library.opcheck(eight_bits.linear_backward, (gradient, small, turned), **told)
    inputs = (x, small, weight, random(48), outer, random(64), seed, 0.0)
    torch.library.opcheck(eight_bits.feed_forward_op, inputs, **told)
    _, *kept_of_layer = eight_bits.feed_forward_op(*inputs)
    gradient = random(32, 64, dtype=dtype, gradient=False)
    torch.library.opcheck(eight_bits.feed_forward_backward, (gradient, small, *kept_of_layer, 0.0), **told)
    segment, options = segments(2, 16, pairs=2), (4, False, 0.0)
    for other, matrices in (
        ((None, None), (random(192, 64), None, random(64, 64))),
        ((x, small), (random(64, 64), random(128, 64), random(64, 64))),
    ):
        inputs = (x, small, *other, *matrices, segment, segment, seed, *options)
        torch.library.opcheck(eight_bits.attention_op, inputs, **told)
        _, *kept_of_layer = eight_bits.attention_op(*inputs)
        kept_of_layer = (small, other[1], segment, segment, seed, *kept_of_layer)
        torch.library.opcheck(eight_bits.attention_backward, (x.detach(), *kept_of_layer, *options), **told)


def case_output_in_eight_bits(dtype):
    if not has_eight_bits() or dtype == torch.float16:
        return
    hidden, weight = random(512, 128, dtype=dtype, gradient=False), random(4096, 128, gradient=False) * 0.1
    labels = torch.randint(4096, (512,), device=DEVICE)
    labels[5] = -100
    ours, theirs = (
        way(weight, None, dtype).loss_and_gradients(hidden, labels, 0.1, learning=True)
        for way in (eight_bits.Output, Output)
    )
    errors = [error_of(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    assert errors[0] < 0.01 * ROUNDING, errors
    assert all(error < 0.15 * ROUNDING for error in errors[1:]), errors


def case_what_is_broken_stays_broken(dtype):
    """Or nobody would notice: such a step is refused. (The interpreter knows no NaN of 8 bits.)"""
    if DEVICE.type == "cpu" or not has_eight_bits() or dtype == torch.float16:
        return
    x, weight = random(64, 128, dtype=dtype), random(128, 128)
    for bad in (float("nan"), float("inf")):
        for row in (0, 7):  # one that is looked at for the scale, one that is not
            gradient = torch.ones(64, 128, device=DEVICE, dtype=dtype)
            gradient[row, 3] = bad
            x.grad = weight.grad = None
            eight_bits.linear(x, weight).backward(gradient)
            assert not (x.grad.isfinite().all() and weight.grad.isfinite().all()), (bad, row)
        hidden, labels = torch.ones(64, 128, device=DEVICE, dtype=dtype), torch.zeros(64, device=DEVICE).long()
        hidden[5] = bad
        found = eight_bits.Output(weight, None, dtype).loss_and_gradients(hidden, labels, 0.1, learning=True)
        assert not any(each.isfinite().all() for each in found), bad


if __name__ == "__main__":
    for name, case in list(globals().items()):
        if name.startswith("case_") and all(word in name for word in sys.argv[2:]):
            for dtype in TYPES:
                case(dtype)
            print(name, "ok", flush=True)
