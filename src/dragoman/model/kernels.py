"""Triton kernels of training and search: each replaces several passes over memory by one.

    add_norm      x + dropout(update), and its layer norm, in one pass; backward in one pass, weight gradients included
    attention     a whole row of slots and one head in one program: no mask, no copies, dropout drawn in place
    activate      relu and dropout in place; `relu_backward` undoes them and sums up the bias gradient
    shrink        a matrix in 8 bits, as it stands and turned; `shrink_active` and `shrink_relu_backward` beside relu, `turn` alone
    loss          softmax, smoothed cross-entropy and its gradient, which takes the place of the logits or is written in 8 bits
    search_self   attention of one new slot of every hypothesis of a search over its own ancestors, which are not gathered first
    search_cross  the same over the source that the hypotheses of a sentence share
    peaks, best   normalizer of a row of logits, the largest of every chunk of it, and from these its best few

Nothing here is differentiable or knows autograd: `model.fused` makes operators of it. What a kernel computes is said by the
plain functions in `model.plain`; tests compare the two. Dropout is a hash of (seed, index): the backward pass draws the
same numbers again instead of reading a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

IGNORED: tl.constexpr = tl.constexpr(-100)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)  # scores are counted in log 2: exp2 is one instruction
FAR: tl.constexpr = tl.constexpr(-1.0e30)  # the score of what is not seen


@triton.jit
def kept(index, seed, threshold):
    """Whether dropout keeps an element: 31 random bits against probability * 2^31. The mixer is lowbias32, keyed twice."""
    bits = index.to(tl.uint32) ^ seed.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = bits ^ (seed >> 32).to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = bits ^ (bits >> 16)
    return (bits >> 1).to(tl.int32) >= threshold


# --- residual, dropout and layer norm ---


@triton.jit
def add_norm_forward(
    x_ptr, update_ptr, weight_ptr, bias_ptr, seed_ptr, sum_ptr, normed_ptr,
    rows, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, EPSILON: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    update = tl.load(update_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        update = tl.where(kept(at, tl.load(seed_ptr), THRESHOLD), update * GAIN, 0.0)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) + update
    x = x.to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + at, x, mask=inside)
    x = x.to(tl.float32)  # the norm of what was stored: the backward pass sees no more than that
    centred = tl.where(inside, x - (tl.sum(x, axis=1) / WIDTH)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + EPSILON)
    weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0)
    bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0)
    tl.store(normed_ptr + at, centred * scale[:, None] * weight[None, :] + bias[None, :], mask=inside)


@triton.jit
def add_norm_backward(
    sum_ptr, weight_ptr, seed_ptr, sum_gradient_ptr, normed_gradient_ptr,
    x_gradient_ptr, update_gradient_ptr, partial_ptr,
    rows, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, EPSILON: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """A small program (a warp for 512 columns) walks over many rows and sums up the gradients of weight and bias itself."""
    column = tl.arange(0, BLOCK)
    wide = column < WIDTH
    weight = tl.load(weight_ptr + column, mask=wide, other=0.0)
    weight_gradient = tl.zeros([BLOCK], tl.float32)
    bias_gradient = tl.zeros([BLOCK], tl.float32)
    for turn in range(TURNS):
        row = turn * tl.num_programs(0) + tl.program_id(0)
        inside = wide & (row < rows)
        at = row * WIDTH + column
        gradient = tl.load(normed_gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(sum_ptr + at, mask=inside, other=0.0).to(tl.float32)
        from_sum = tl.load(sum_gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(wide, x - tl.sum(x, axis=0) / WIDTH, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / WIDTH + EPSILON)
        normed = centred * scale
        weight_gradient += gradient * normed
        bias_gradient += gradient
        gradient = gradient * weight
        along = tl.sum(gradient * normed, axis=0) / WIDTH
        gradient = (gradient - normed * along - tl.sum(gradient, axis=0) / WIDTH) * scale + from_sum
        tl.store(x_gradient_ptr + at, gradient, mask=inside)
        if DROPOUT:
            gradient = tl.where(kept(at, tl.load(seed_ptr), THRESHOLD), gradient * GAIN, 0.0)
            tl.store(update_gradient_ptr + at, gradient, mask=inside)
    partial_ptr += tl.program_id(0) * (2 * WIDTH)
    tl.store(partial_ptr + column, weight_gradient, mask=wide)
    tl.store(partial_ptr + WIDTH + column, bias_gradient, mask=wide)


# --- attention over one row of slots ---
# Heads lie side by side in a slot: [row, slot, part, head, dim]. TOGETHER: the parts of one tensor are query, key and value;
# otherwise the query has a tensor of its own and the parts are key and value. Forward and backward spell out the masked scores
# each for itself: a function that also loads the segments took 180 registers in the forward kernel, this takes 127.


@triton.jit
def tiles_of(row, head, slot, HEADS: tl.constexpr, DIM: tl.constexpr, TOGETHER: tl.constexpr):
    """Where query, key, value and output of one row and head lie, [slots, dim] each."""
    slots = (row.to(tl.int64) * slot.shape[0] + slot)[:, None] * (HEADS * DIM)
    inner = head * DIM + tl.arange(0, DIM)[None, :]
    parts: tl.constexpr = 3 if TOGETHER else 2
    key = slots * parts + inner + (HEADS * DIM if TOGETHER else 0)
    query = slots * 3 + inner if TOGETHER else slots + inner
    return query, key, key + HEADS * DIM, slots + inner


@triton.jit
def visible(query_segment, key_segment, slot, CAUSAL: tl.constexpr):
    """[queries, keys]: whether a query sees a key. Queries of empty slots see everything, as in model.plain."""
    seen = query_segment[:, None] == key_segment[None, :]
    if CAUSAL:
        seen = seen & (slot[:, None] >= slot[None, :])
    else:
        seen = seen | (query_segment == 0)[:, None]
    return seen


@triton.jit
def weight_index(slot, WIDTH: tl.constexpr):
    """A number for every attention weight of the whole batch, for dropout."""
    return tl.program_id(0) * (WIDTH * WIDTH) + slot[:, None] * WIDTH + slot[None, :]


@triton.jit
def attention_forward(
    query_ptr, key_value_ptr, query_segment_ptr, key_segment_ptr, seed_ptr, out_ptr, normalizer_ptr,
    SCALE: tl.constexpr, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    DIM: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    row, head, slot = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS, tl.arange(0, WIDTH)
    query_tile, key_tile, value_tile, out_tile = tiles_of(row, head, slot, HEADS, DIM, TOGETHER)
    query = tl.load(query_ptr + query_tile)
    key = tl.load(key_value_ptr + key_tile)
    value = tl.load(key_value_ptr + value_tile)
    query_segment = tl.load(query_segment_ptr + row * WIDTH + slot)
    key_segment = tl.load(key_segment_ptr + row * WIDTH + slot)
    scores = tl.dot(query, tl.trans(key)) * (SCALE * LOG2E)
    scores = tl.where(visible(query_segment, key_segment, slot, CAUSAL), scores, FAR)
    highest = tl.max(scores, axis=1)
    weights = tl.exp2(scores - highest[:, None])
    total = tl.sum(weights, axis=1)
    if DROPOUT:
        weights = tl.where(kept(weight_index(slot, WIDTH), tl.load(seed_ptr), THRESHOLD), weights * GAIN, 0.0)
    out = tl.dot(weights.to(value.dtype), value) / total[:, None]
    tl.store(out_ptr + out_tile, out)
    tl.store(normalizer_ptr + tl.program_id(0) * WIDTH + slot, highest + tl.log2(total))


@triton.jit
def attention_backward(
    query_ptr, key_value_ptr, query_segment_ptr, key_segment_ptr, seed_ptr, normalizer_ptr, out_gradient_ptr,
    query_gradient_ptr, key_value_gradient_ptr,
    SCALE: tl.constexpr, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    DIM: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """The scores are computed again: reading them would take longer. TOGETHER: all gradients go to `query_gradient_ptr`."""
    row, head, slot = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS, tl.arange(0, WIDTH)
    query_tile, key_tile, value_tile, out_tile = tiles_of(row, head, slot, HEADS, DIM, TOGETHER)
    query = tl.load(query_ptr + query_tile)
    key = tl.load(key_value_ptr + key_tile)
    value = tl.load(key_value_ptr + value_tile)
    out_gradient = tl.load(out_gradient_ptr + out_tile)
    query_segment = tl.load(query_segment_ptr + row * WIDTH + slot)
    key_segment = tl.load(key_segment_ptr + row * WIDTH + slot)
    scores = tl.dot(query, tl.trans(key)) * (SCALE * LOG2E)
    scores = tl.where(visible(query_segment, key_segment, slot, CAUSAL), scores, FAR)
    weights = tl.exp2(scores - tl.load(normalizer_ptr + tl.program_id(0) * WIDTH + slot)[:, None])
    gradient = tl.dot(out_gradient, tl.trans(value))
    used = weights
    if DROPOUT:
        keep = kept(weight_index(slot, WIDTH), tl.load(seed_ptr), THRESHOLD)
        used = tl.where(keep, weights * GAIN, 0.0)
        gradient = tl.where(keep, gradient * GAIN, 0.0)
    value_gradient = tl.dot(tl.trans(used.to(query.dtype)), out_gradient)
    gradient = weights * (gradient - tl.sum(weights * gradient, axis=1)[:, None]) * SCALE
    gradient = gradient.to(query.dtype)
    query_gradient = tl.dot(gradient, key)
    key_gradient = tl.dot(tl.trans(gradient), query)
    tl.store(query_gradient_ptr + query_tile, query_gradient)
    if TOGETHER:
        tl.store(query_gradient_ptr + key_tile, key_gradient)
        tl.store(query_gradient_ptr + value_tile, value_gradient)
    else:
        tl.store(key_value_gradient_ptr + key_tile, key_gradient)
        tl.store(key_value_gradient_ptr + value_tile, value_gradient)


# --- attention in a search: few queries, all of one sentence ---


@triton.jit
def look(query, key, value, seen, highest, total, summed, SCALE: tl.constexpr):
    """A tile of keys and values more: the softmax so far is kept as its highest score, its denominator and its sum of values."""
    scores = tl.where(seen, tl.dot(query, tl.trans(key)) * (SCALE * LOG2E), FAR)
    higher = tl.maximum(highest, tl.max(scores, axis=1))
    weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
    shrink = tl.exp2(highest - higher)
    summed = summed * shrink[:, None] + tl.dot(weights.to(value.dtype), value)
    return higher, total * shrink + tl.sum(weights, axis=1), summed


@triton.jit
def search_self(
    packed_ptr, key_ptr, value_ptr, ancestry_ptr, position_ptr, out_ptr, slots,
    SCALE: tl.constexpr, HEADS: tl.constexpr, HYPOTHESES: tl.constexpr, QUERIES: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Puts the new keys and values into the cache [B, heads, slots, HYPOTHESES, DIM] and attends to what is there. Only slots
    before the position are read, and of these only hypotheses that somebody descends from."""
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    hypothesis, dim = tl.arange(0, QUERIES), tl.arange(0, DIM)
    real = hypothesis < HYPOTHESES
    packed = (row * HYPOTHESES + hypothesis)[:, None] * (3 * HEADS * DIM) + head * DIM + dim[None, :]
    query = tl.load(packed_ptr + packed, mask=real[:, None], other=0.0)
    own_key = tl.load(packed_ptr + packed + HEADS * DIM, mask=real[:, None], other=0.0)
    own_value = tl.load(packed_ptr + packed + 2 * HEADS * DIM, mask=real[:, None], other=0.0)
    position = tl.load(position_ptr).to(tl.int32)
    first = tl.program_id(0).to(tl.int64) * slots * (HYPOTHESES * DIM)
    own = first + (position * HYPOTHESES + hypothesis)[:, None] * DIM + dim[None, :]
    tl.store(key_ptr + own, own_key, mask=real[:, None])
    tl.store(value_ptr + own, own_value, mask=real[:, None])
    # Every hypothesis sees itself: the softmax begins with that.
    highest = tl.sum(query.to(tl.float32) * own_key.to(tl.float32), axis=1) * (SCALE * LOG2E)
    total = tl.full([QUERIES], 1.0, tl.float32)
    summed = own_value.to(tl.float32)
    start = 0
    while start < position * HYPOTHESES:
        column = start + tl.arange(0, TILE)
        inside = real[:, None] & (column < position * HYPOTHESES)[None, :]
        at = (row * HYPOTHESES + hypothesis)[:, None] * slots + (column // HYPOTHESES)[None, :]
        ancestor = tl.load(ancestry_ptr + at, mask=inside, other=-1).to(tl.int32)
        seen = inside & (ancestor == (column % HYPOTHESES)[None, :])
        wanted = (tl.max(seen.to(tl.int32), axis=0) > 0)[:, None]
        kept = first + column[:, None] * DIM + dim[None, :]
        key = tl.load(key_ptr + kept, mask=wanted, other=0.0)
        value = tl.load(value_ptr + kept, mask=wanted, other=0.0)
        highest, total, summed = look(query, key, value, seen, highest, total, summed, SCALE)
        start += TILE
    out = (row * HYPOTHESES + hypothesis)[:, None] * (HEADS * DIM) + head * DIM + dim[None, :]
    tl.store(out_ptr + out, summed / total[:, None], mask=real[:, None])


@triton.jit
def search_cross(
    query_ptr, key_ptr, value_ptr, mask_ptr, out_ptr, slots,
    SCALE: tl.constexpr, HEADS: tl.constexpr, HYPOTHESES: tl.constexpr, QUERIES: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Over keys and values of the source, [B, heads, slots, DIM]; slots whose mask is not 0 are not read."""
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    hypothesis, dim = tl.arange(0, QUERIES), tl.arange(0, DIM)
    real = hypothesis < HYPOTHESES
    at = (row * HYPOTHESES + hypothesis)[:, None] * (HEADS * DIM) + head * DIM + dim[None, :]
    query = tl.load(query_ptr + at, mask=real[:, None], other=0.0)
    first = tl.program_id(0).to(tl.int64) * slots * DIM
    highest = tl.full([QUERIES], FAR, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, DIM], tl.float32)
    start = 0
    while start < slots:
        column = start + tl.arange(0, TILE)
        wanted = tl.load(mask_ptr + row * slots + column, mask=column < slots, other=FAR) == 0.0
        kept = first + column[:, None] * DIM + dim[None, :]
        key = tl.load(key_ptr + kept, mask=wanted[:, None], other=0.0)
        value = tl.load(value_ptr + kept, mask=wanted[:, None], other=0.0)
        seen = wanted[None, :] & (hypothesis >= 0)[:, None]
        highest, total, summed = look(query, key, value, seen, highest, total, summed, SCALE)
        start += TILE
    tl.store(out_ptr + at, summed / total[:, None], mask=real[:, None])


# --- feed-forward ---


@triton.jit
def activate(
    x_ptr, seed_ptr, elements, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Dropout of what relu has left, in place."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < elements, other=0.0).to(tl.float32)
    x = tl.where(kept(at, tl.load(seed_ptr), THRESHOLD), x * GAIN, 0.0)
    tl.store(x_ptr + at, x, mask=at < elements)


@triton.jit
def relu_backward(
    hidden_ptr, gradient_ptr, out_ptr, bias_gradient_ptr, rows, GAIN: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """`hidden` is dropout(relu(...)): an element that is 0 was negative or dropped. Partial sums of the bias gradient."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    bias_gradient = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        at = row[:, None].to(tl.int64) * WIDTH + column[None, :]
        hidden = tl.load(hidden_ptr + at, mask=inside, other=0.0)
        gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.where(hidden > 0.0, gradient * GAIN, 0.0)
        tl.store(out_ptr + at, gradient, mask=inside)
        bias_gradient += gradient
    bias_gradient = tl.sum(bias_gradient, axis=0)
    tl.store(bias_gradient_ptr + tl.program_id(0) * WIDTH + column, bias_gradient, mask=column < WIDTH)


# --- 8 bits ---
# Products in 8 bits want both matrices with the summed side last. A matrix is a factor of two or three products, so it is
# written twice: as it stands, and turned.


@triton.jit
def in_eight_bits(x, GRADIENT: tl.constexpr):
    """The nearest number of e4m3, too large ones become its largest; of e5m2, which is coarser and reaches further, for gradients.
    What is not finite is NaN: it must not look like a number, or nobody notices a broken step."""
    x = tl.where(tl.abs(x) < float("inf"), x, float("nan"))
    if GRADIENT:
        return x.to(tl.float8e5)
    else:
        return tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


@triton.jit
def store_both(x, small_ptr, turned_ptr, row, column, rows, columns, GRADIENT: tl.constexpr):
    """A tile of a matrix [rows, columns]. It is turned in 16 bits: Triton 3.6 gets some tiles of 8 bits wrong."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(small_ptr + at, in_eight_bits(x, GRADIENT), mask=inside)
    turned = tl.trans(x.to(tl.bfloat16)).to(tl.float32)
    inside = (column < columns)[:, None] & (row < rows)[None, :]
    at = column[:, None].to(tl.int64) * rows + row[None, :]
    tl.store(turned_ptr + at, in_eight_bits(turned, GRADIENT), mask=inside)


@triton.jit
def scale_of(peak_ptr, inverse_ptr):
    """The power of two that takes the peak to about 512: far below the largest number of e5m2, 57,344, and 2^23 above where its
    precision ends. The first program writes down its inverse."""
    power = tl.floor(9.0 - tl.log2(tl.maximum(tl.load(peak_ptr).to(tl.float32), 1e-30)))
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse_ptr, tl.exp2(-power))
    return tl.exp2(power)


@triton.jit
def shrink(
    x_ptr, peak_ptr, small_ptr, turned_ptr, inverse_ptr, rows, columns,
    SCALE: tl.constexpr, GRADIENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """x times SCALE; of a GRADIENT, times what its peak asks for."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row[:, None].to(tl.int64) * columns + column[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x *= scale_of(peak_ptr, inverse_ptr) if GRADIENT else SCALE
    store_both(x, small_ptr, turned_ptr, row, column, rows, columns, GRADIENT)


@triton.jit
def shrink_active(
    x_ptr, seed_ptr, small_ptr, turned_ptr, rows, columns, THRESHOLD: tl.constexpr, GAIN: tl.constexpr,
    SCALE: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dropout(relu(x)) times SCALE."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row[:, None].to(tl.int64) * columns + column[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) * SCALE
    if DROPOUT:
        x = tl.where(kept(at, tl.load(seed_ptr), THRESHOLD), x * GAIN, 0.0)
    store_both(x, small_ptr, turned_ptr, row, column, rows, columns, False)


@triton.jit
def shrink_relu_backward(
    hidden_ptr, gradient_ptr, peak_ptr, small_ptr, turned_ptr, inverse_ptr, bias_gradient_ptr, rows, columns,
    GAIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """See relu_backward; `hidden` is in 8 bits."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    bias_gradient = tl.zeros([ROWS, COLUMNS], tl.float32)
    scale = scale_of(peak_ptr, inverse_ptr)
    for tile in range(TILES):
        row = (tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row[:, None].to(tl.int64) * columns + column[None, :]
        hidden = tl.load(hidden_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.where(hidden > 0.0, gradient * GAIN, 0.0)
        bias_gradient += gradient
        store_both(gradient * scale, small_ptr, turned_ptr, row, column, rows, columns, True)
    at = tl.program_id(0) * columns + column
    tl.store(bias_gradient_ptr + at, tl.sum(bias_gradient, axis=0), mask=column < columns)


@triton.jit
def turn(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    x = tl.load(x_ptr + row[:, None].to(tl.int64) * columns + column[None, :], mask=inside, other=0)
    tl.store(out_ptr + column[:, None].to(tl.int64) * rows + row[None, :], tl.trans(x), mask=tl.trans(inside))


@triton.jit
def rounded_by_chance(x, index):
    """To the two bits of mantissa that e5m2 has, up or down so that the mean is right: most gradients of logits are nearly the
    same number, and rounded to the nearest they would all be wrong by the same."""
    bits = index.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = (x.to(tl.uint32, bitcast=True) + ((bits ^ (bits >> 16)) & 0x1FFFFF)) & 0xFFE00000
    return tl.where(tl.abs(x) < float("inf"), bits.to(tl.float32, bitcast=True), x)


# --- loss ---


@triton.jit
def loss(
    logits_ptr, labels_ptr, losses_ptr, likelihoods_ptr, small_ptr,
    SMOOTHING: tl.constexpr, GAIN: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """One slot a program: its logits are read twice, the second time from the cache, and overwritten by their gradient
    times GAIN; SMALL: that goes elsewhere, in 8 bits. Logarithms are to base 2."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * WIDTH
    small_ptr += row.to(tl.int64) * WIDTH
    label = tl.load(labels_ptr + row)
    real = label != IGNORED
    wanted = tl.load(logits_ptr + tl.maximum(label, 0)).to(tl.float32) * LOG2E
    column = tl.arange(0, BLOCK)
    highest = FAR
    shares = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        inside = start + column < WIDTH
        logits = tl.load(logits_ptr + start + column, mask=inside, other=FAR).to(tl.float32) * LOG2E
        higher = tl.maximum(highest, tl.max(logits, axis=0))
        shares = shares * tl.exp2(highest - higher) + tl.exp2(logits - higher)
        total += tl.where(inside, logits, 0.0)
        highest = higher
    normalizer = highest + tl.log2(tl.sum(shares, axis=0))
    nll = (normalizer - wanted) / LOG2E
    spread = (normalizer - tl.sum(total, axis=0) / WIDTH) / LOG2E
    tl.store(losses_ptr + row, tl.where(real, (1.0 - SMOOTHING) * nll + SMOOTHING * spread, 0.0))
    tl.store(likelihoods_ptr + row, tl.where(real, nll, 0.0))
    for start in range(0, WIDTH, BLOCK):
        inside = start + column < WIDTH
        logits = tl.load(logits_ptr + start + column, mask=inside, other=FAR).to(tl.float32) * LOG2E
        gradient = tl.exp2(logits - normalizer) - SMOOTHING / WIDTH
        gradient = tl.where(start + column == label, gradient - (1.0 - SMOOTHING), gradient)
        gradient = tl.where(real, gradient * GAIN, 0.0)
        if SMALL:
            gradient = rounded_by_chance(gradient, row * WIDTH + start + column)
            tl.store(small_ptr + start + column, in_eight_bits(gradient, True), mask=inside)
        else:
            tl.store(logits_ptr + start + column, gradient, mask=inside)


# --- the best of many logits ---


@triton.jit
def peaks(
    logits_ptr, normalizer_ptr, peak_ptr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One row of logits, read once. Two columns count for the normalizer, but are never the largest."""
    row = tl.program_id(0).to(tl.int64)
    chunks: tl.constexpr = (WIDTH + CHUNK - 1) // CHUNK
    highest = FAR
    total = 0.0
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * WIDTH + column, mask=column < WIDTH, other=float("-inf")).to(tl.float32)
        new = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp2((highest - new) * LOG2E) + tl.sum(tl.exp2((x - new) * LOG2E), axis=0)
        highest = new
        x = tl.where((column == FIRST) | (column == SECOND), float("-inf"), x)
        chunk = start // CHUNK + tl.arange(0, BLOCK // CHUNK)
        best = tl.max(tl.reshape(x, (BLOCK // CHUNK, CHUNK)), axis=1)
        tl.store(peak_ptr + row * chunks + chunk, best, mask=chunk < chunks)
    tl.store(normalizer_ptr + row, highest + tl.log2(total) / LOG2E)


@triton.jit
def best(
    logits_ptr, normalizer_ptr, peak_ptr, value_ptr, column_ptr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, MOST: tl.constexpr,
    COUNT: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """The largest COUNT of a row lie in the COUNT chunks with the largest peaks: all else is not looked at again."""
    row = tl.program_id(0).to(tl.int64)
    chunk, place = tl.arange(0, MOST), tl.arange(0, PLACES)
    peak = tl.load(peak_ptr + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
    chosen = tl.zeros([PLACES], tl.int32)
    for turn in range(COUNT):
        highest = tl.argmax(peak, axis=0)
        chosen = tl.where(place == turn, highest, chosen)
        peak = tl.where(chunk == highest, float("-inf"), peak)
    column = chosen[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    wanted = (place < COUNT)[:, None] & (column < WIDTH) & (column != FIRST) & (column != SECOND)
    x = tl.load(logits_ptr + row * WIDTH + column, mask=wanted, other=float("-inf")).to(tl.float32)
    normalizer = tl.load(normalizer_ptr + row)
    for turn in range(COUNT):
        value = tl.max(tl.max(x, axis=1), axis=0)
        where = tl.min(tl.min(tl.where(x == value, column, WIDTH - 1), axis=1), axis=0)  # NaN is nowhere
        tl.store(value_ptr + row * COUNT + turn, value - normalizer)
        tl.store(column_ptr + row * COUNT + turn, where.to(tl.int64))
        x = tl.where(column == where, float("-inf"), x)
