"""Triton kernels of training and search: each replaces several passes over memory by one.

    add_norm      x + dropout(update), and its layer norm, in one pass; backward in one pass, weight gradients included
    attention     a whole row of slots and one head in one program: no mask, no copies, dropout drawn in place
    activate      relu and dropout in place; `relu_backward` undoes them and sums up the bias gradient
    shrink        a matrix in 8 bits, as it stands and turned
    turn          what is in 8 bits, turned; `turn_active` and `turn_relu_backward` do that beside relu
    loss          softmax, smoothed cross-entropy and its gradient, which takes the place of the logits or is written in 8 bits
    embedding_backward  gradients of slots added to those of their ids
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


@triton.jit
def in_eight_bits(x, GRADIENT: tl.constexpr):
    """The nearest number of e4m3, too large ones become its largest; of e5m2, which is coarser and reaches further, for gradients.
    What is not finite is NaN: it must not look like a number, or nobody notices a broken step."""
    x = tl.where(tl.abs(x) < float("inf"), x, float("nan"))
    if GRADIENT:
        return x.to(tl.float8e5)
    else:
        return tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


# --- residual, dropout and layer norm ---


@triton.jit
def add_norm_forward(
    x_ptr, update_ptr, weight_ptr, bias_ptr, seed_ptr, sum_ptr, normed_ptr,
    rows, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, EPSILON: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """SMALL: the norm is written in 8 bits, times this."""
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
    normed = centred * scale[:, None] * weight[None, :] + bias[None, :]
    if SMALL > 0:
        normed = in_eight_bits(normed * SMALL, False)
    tl.store(normed_ptr + at, normed, mask=inside)


@triton.jit
def add_norm_backward(
    sum_ptr, weight_ptr, seed_ptr, sum_gradient_ptr, normed_gradient_ptr,
    x_gradient_ptr, update_gradient_ptr, partial_ptr,
    rows, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, EPSILON: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr, STAGES: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """A small program (a warp for 512 columns) walks over many rows, a few at a time, and sums up the gradients of weight and bias
    itself. STAGES: rows that come next are on their way meanwhile."""
    column = tl.arange(0, BLOCK)
    wide = (column < WIDTH)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0)[None, :]
    weight_gradient = tl.zeros([BLOCK], tl.float32)
    bias_gradient = tl.zeros([BLOCK], tl.float32)
    for turn in tl.range(TURNS, num_stages=STAGES):
        row = (turn * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        inside = wide & (row < rows)[:, None]
        at = row[:, None] * WIDTH + column[None, :]
        gradient = tl.load(normed_gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(sum_ptr + at, mask=inside, other=0.0).to(tl.float32)
        from_sum = tl.load(sum_gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(wide, x - (tl.sum(x, axis=1) / WIDTH)[:, None], 0.0)
        scale = (1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + EPSILON))[:, None]
        normed = centred * scale
        weight_gradient += tl.sum(gradient * normed, axis=0)
        bias_gradient += tl.sum(gradient, axis=0)
        gradient = gradient * weight
        along = (tl.sum(gradient * normed, axis=1) / WIDTH)[:, None]
        gradient = (gradient - normed * along - (tl.sum(gradient, axis=1) / WIDTH)[:, None]) * scale + from_sum
        tl.store(x_gradient_ptr + at, gradient, mask=inside)
        if DROPOUT:
            gradient = tl.where(kept(at, tl.load(seed_ptr), THRESHOLD), gradient * GAIN, 0.0)
            tl.store(update_gradient_ptr + at, gradient, mask=inside)
    partial_ptr += tl.program_id(0) * (2 * WIDTH)
    tl.store(partial_ptr + column, weight_gradient, mask=column < WIDTH)
    tl.store(partial_ptr + WIDTH + column, bias_gradient, mask=column < WIDTH)


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
    DIM: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, TOGETHER: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """SMALL: the output is written in 8 bits, times this."""
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
    if SMALL > 0:
        out = in_eight_bits(out * SMALL, False)
    tl.store(out_ptr + out_tile, out)
    tl.store(normalizer_ptr + tl.program_id(0) * WIDTH + slot, highest + tl.log2(total))


@triton.jit
def attention_backward(
    query_ptr, key_value_ptr, query_segment_ptr, key_segment_ptr, seed_ptr, normalizer_ptr, out_gradient_ptr,
    query_gradient_ptr, key_value_gradient_ptr, inverse_ptr,
    SCALE: tl.constexpr, THRESHOLD: tl.constexpr, GAIN: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    DIM: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, TOGETHER: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """The scores are computed again: reading them would take longer. TOGETHER: all gradients go to `query_gradient_ptr`. SMALL: they
    are written in 8 bits, in the scale whose inverse is given."""
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
    if SMALL:
        scale = 1.0 / tl.load(inverse_ptr)
        query_gradient = in_eight_bits(query_gradient * scale, True)
        key_gradient = in_eight_bits(key_gradient * scale, True)
        value_gradient = in_eight_bits(value_gradient * scale, True)
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
# Products in 8 bits want both factors with the summed side last. A matrix is a factor of two or three products, so it is needed
# as it stands and turned. Kernels see words of four numbers (columns) and turn four rows at a time: bytes change places inside
# words, and words are what is turned. Triton 3.6 gets some tiles of 8 bits wrong, and is slow with all of them.


@triton.jit
def byte_of(bits, scale, GRADIENT: tl.constexpr):
    """A number of 32 bits times the scale, in the lowest 8 of 32 bits."""
    return in_eight_bits(bits.to(tl.float32, bitcast=True) * scale, GRADIENT).to(tl.uint8, bitcast=True).to(tl.uint32)


@triton.jit
def word_of(four, scale, GRADIENT: tl.constexpr):
    """Four numbers of bf16 in 64 bits -> four of 8 bits in 32."""
    low, high = four.to(tl.uint32), (four >> 32).to(tl.uint32)
    word = byte_of(low << 16, scale, GRADIENT) | (byte_of(low & 0xFFFF0000, scale, GRADIENT) << 8)
    word |= byte_of(high << 16, scale, GRADIENT) << 16
    return word | (byte_of(high & 0xFFFF0000, scale, GRADIENT) << 24)


@triton.jit
def swapped(first, second):
    """Bytes 0 and 2 of both words, and bytes 1 and 3."""
    even = (first & 0x00FF00FF) | ((second & 0x00FF00FF) << 8)
    return even, ((first >> 8) & 0x00FF00FF) | (second & 0xFF00FF00)


@triton.jit
def tile_of(rows, columns, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The first of every four rows, words, and which of them are inside: tile number (row, column)."""
    quad, word = row * (ROWS // 4) + tl.arange(0, ROWS // 4), column * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
    inside = (quad < rows // 4)[:, None] & (word < columns // 4)[None, :]
    return quad, word, quad[:, None].to(tl.int64) * columns + word[None, :], inside


@triton.jit
def store_turned(first, second, third, fourth, turned_ptr, quad, word, rows, columns):
    """Words of four rows that follow each other, to the matrix [columns, rows]."""
    upper_even, upper_odd = swapped(first, second)
    lower_even, lower_odd = swapped(third, fourth)
    at = word[:, None].to(tl.int64) * rows + quad[None, :]
    inside = (word < columns // 4)[:, None] & (quad < rows // 4)[None, :]
    quads = rows // 4
    tl.store(turned_ptr + at, tl.trans((upper_even & 0xFFFF) | (lower_even << 16)), mask=inside)
    tl.store(turned_ptr + at + quads, tl.trans((upper_odd & 0xFFFF) | (lower_odd << 16)), mask=inside)
    tl.store(turned_ptr + at + 2 * quads, tl.trans((upper_even >> 16) | (lower_even & 0xFFFF0000)), mask=inside)
    tl.store(turned_ptr + at + 3 * quads, tl.trans((upper_odd >> 16) | (lower_odd & 0xFFFF0000)), mask=inside)


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
    """x, four numbers of bf16 at a time, times SCALE; of a GRADIENT, times what its peak asks for."""
    quad, word, at, inside = tile_of(rows, columns, tl.program_id(0), tl.program_id(1), ROWS, COLUMNS)
    words = columns // 4
    scale = scale_of(peak_ptr, inverse_ptr) if GRADIENT else SCALE
    first = word_of(tl.load(x_ptr + at, mask=inside, other=0), scale, GRADIENT)
    second = word_of(tl.load(x_ptr + at + words, mask=inside, other=0), scale, GRADIENT)
    third = word_of(tl.load(x_ptr + at + 2 * words, mask=inside, other=0), scale, GRADIENT)
    fourth = word_of(tl.load(x_ptr + at + 3 * words, mask=inside, other=0), scale, GRADIENT)
    tl.store(small_ptr + at, first, mask=inside)
    tl.store(small_ptr + at + words, second, mask=inside)
    tl.store(small_ptr + at + 2 * words, third, mask=inside)
    tl.store(small_ptr + at + 3 * words, fourth, mask=inside)
    store_turned(first, second, third, fourth, turned_ptr, quad, word, rows, columns)


@triton.jit
def turn(x_ptr, turned_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    quad, word, at, inside = tile_of(rows, columns, tl.program_id(0), tl.program_id(1), ROWS, COLUMNS)
    words = columns // 4
    first = tl.load(x_ptr + at, mask=inside, other=0)
    second = tl.load(x_ptr + at + words, mask=inside, other=0)
    third = tl.load(x_ptr + at + 2 * words, mask=inside, other=0)
    fourth = tl.load(x_ptr + at + 3 * words, mask=inside, other=0)
    store_turned(first, second, third, fourth, turned_ptr, quad, word, rows, columns)


@triton.jit
def kept_bytes(word, at, seed_ptr, THRESHOLD: tl.constexpr):
    """See kept; `at` is the number of the word."""
    seed, at = tl.load(seed_ptr), at * 4
    mask = tl.where(kept(at, seed, THRESHOLD), 0xFF, 0) | tl.where(kept(at + 1, seed, THRESHOLD), 0xFF00, 0)
    mask |= tl.where(kept(at + 2, seed, THRESHOLD), 0xFF0000, 0)
    return word & (mask.to(tl.uint32) | (tl.where(kept(at + 3, seed, THRESHOLD), 0xFF, 0).to(tl.uint32) << 24))


@triton.jit
def active_words(x_ptr, seed_ptr, small_ptr, at, inside, THRESHOLD: tl.constexpr, DROPOUT: tl.constexpr):
    """Negative numbers become 0, and so do dropped ones. NaN has no sign where products make it."""
    word = tl.load(x_ptr + at, mask=inside, other=0)
    word &= (((word >> 7) & 0x01010101) ^ 0x01010101) * 0xFF
    if DROPOUT:
        word = kept_bytes(word, at, seed_ptr, THRESHOLD)
    tl.store(small_ptr + at, word, mask=inside)
    return word


@triton.jit
def turn_active(
    x_ptr, seed_ptr, small_ptr, turned_ptr, rows, columns,
    THRESHOLD: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """relu(x) where dropout keeps it, as it stands and turned; x is in 8 bits, and what dropout asks for is in its scale."""
    quad, word, at, inside = tile_of(rows, columns, tl.program_id(0), tl.program_id(1), ROWS, COLUMNS)
    words = columns // 4
    first = active_words(x_ptr, seed_ptr, small_ptr, at, inside, THRESHOLD, DROPOUT)
    second = active_words(x_ptr, seed_ptr, small_ptr, at + words, inside, THRESHOLD, DROPOUT)
    third = active_words(x_ptr, seed_ptr, small_ptr, at + 2 * words, inside, THRESHOLD, DROPOUT)
    fourth = active_words(x_ptr, seed_ptr, small_ptr, at + 3 * words, inside, THRESHOLD, DROPOUT)
    store_turned(first, second, third, fourth, turned_ptr, quad, word, rows, columns)


@triton.jit
def inactive_words(hidden_ptr, gradient_ptr, small_ptr, at, inside):
    """Gradients of hidden numbers that are not 0: a byte of those has its first bit set once 0x7F is added."""
    hidden = tl.load(hidden_ptr + at, mask=inside, other=0)
    word = tl.load(gradient_ptr + at, mask=inside, other=0)
    word &= (((hidden + 0x7F7F7F7F) >> 7) & 0x01010101) * 0xFF
    tl.store(small_ptr + at, word, mask=inside)
    return word


@triton.jit
def number_in(word, PLACE: tl.constexpr):
    """The number of e5m2 in that byte of a word: the first half of one of fp16."""
    return (((word >> (8 * PLACE)) & 0xFF) << 8).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def sum_in(first, second, third, fourth, PLACE: tl.constexpr):
    return number_in(first, PLACE) + number_in(second, PLACE) + number_in(third, PLACE) + number_in(fourth, PLACE)


@triton.jit
def turn_relu_backward(
    hidden_ptr, gradient_ptr, small_ptr, turned_ptr, bias_gradient_ptr, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """See relu_backward; all in 8 bits, the bias gradient in the scale of the gradient."""
    bias_0 = tl.zeros([ROWS // 4, COLUMNS // 4], tl.float32)
    bias_1, bias_2, bias_3 = bias_0, bias_0, bias_0
    words = columns // 4
    for tile in range(TILES):
        quad, word, at, inside = tile_of(
            rows, columns, tl.program_id(0) * TILES + tile, tl.program_id(1), ROWS, COLUMNS
        )
        first = inactive_words(hidden_ptr, gradient_ptr, small_ptr, at, inside)
        second = inactive_words(hidden_ptr, gradient_ptr, small_ptr, at + words, inside)
        third = inactive_words(hidden_ptr, gradient_ptr, small_ptr, at + 2 * words, inside)
        fourth = inactive_words(hidden_ptr, gradient_ptr, small_ptr, at + 3 * words, inside)
        bias_0 += sum_in(first, second, third, fourth, 0)
        bias_1 += sum_in(first, second, third, fourth, 1)
        bias_2 += sum_in(first, second, third, fourth, 2)
        bias_3 += sum_in(first, second, third, fourth, 3)
        store_turned(first, second, third, fourth, turned_ptr, quad, word, rows, columns)
    column = tl.program_id(1) * COLUMNS + 4 * tl.arange(0, COLUMNS // 4)
    bias_gradient_ptr += tl.program_id(0).to(tl.int64) * columns + column
    tl.store(bias_gradient_ptr, tl.sum(bias_0, axis=0), mask=column < columns)
    tl.store(bias_gradient_ptr + 1, tl.sum(bias_1, axis=0), mask=column < columns)
    tl.store(bias_gradient_ptr + 2, tl.sum(bias_2, axis=0), mask=column < columns)
    tl.store(bias_gradient_ptr + 3, tl.sum(bias_3, axis=0), mask=column < columns)


@triton.jit
def rounded_both_ways(x, index):
    """To the two bits of mantissa that e5m2 has, up or down so that the mean of neighbours is right: most gradients of logits are
    nearly the same number, and rounded to the nearest they would all be wrong by the same. What decides are multiples of the golden
    ratio, which fill the space between two numbers evenly."""
    bits = x.to(tl.uint32, bitcast=True) + ((index.to(tl.uint32) * 0x9E3779B1) >> 11)
    return tl.where(tl.abs(x) < float("inf"), (bits & 0xFFE00000).to(tl.float32, bitcast=True), x)


# --- loss ---


@triton.jit
def loss(
    logits_ptr, labels_ptr, losses_ptr, likelihoods_ptr, small_ptr,
    SMOOTHING: tl.constexpr, GAIN: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """One slot a program: its logits are read three times, twice of these from the cache, and overwritten by their gradient
    times GAIN; SMALL: that goes elsewhere, in 8 bits. Logarithms are to base 2. The largest logit is looked for first: scaling
    sums anew whenever a larger one comes has all threads wait for each other at every block."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * WIDTH
    small_ptr += row.to(tl.int64) * WIDTH
    label = tl.load(labels_ptr + row)
    real = label != IGNORED
    wanted = tl.load(logits_ptr + tl.maximum(label, 0)).to(tl.float32) * LOG2E
    column = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], FAR, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        inside = start + column < WIDTH
        logits = tl.load(logits_ptr + start + column, mask=inside, other=FAR).to(tl.float32) * LOG2E
        largest = tl.maximum(largest, logits)
        total += tl.where(inside, logits, 0.0)
    highest = tl.max(largest, axis=0)
    shares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        inside = start + column < WIDTH
        logits = tl.load(logits_ptr + start + column, mask=inside, other=FAR).to(tl.float32) * LOG2E
        shares += tl.exp2(logits - highest)
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
            gradient = rounded_both_ways(gradient, row * WIDTH + start + column)
            tl.store(small_ptr + start + column, in_eight_bits(gradient, True), mask=inside)
        else:
            tl.store(logits_ptr + start + column, gradient, mask=inside)


# --- embeddings ---


@triton.jit
def embedding_backward(
    gradient_ptr, id_ptr, order_ptr, out_ptr, slots, WIDTH: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Adds the gradients of slots to those of their ids. Slots come in the order of their ids: what belongs to one id is summed up
    first, as thousands of programs that add to a frequent one would wait for each other."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    first = tl.program_id(0) * RUN
    current = tl.load(id_ptr + first)
    total = tl.zeros([BLOCK], tl.float32)
    for turn in range(RUN):
        exists = first + turn < slots
        own = tl.load(id_ptr + first + turn, mask=exists, other=-1)
        at = tl.load(order_ptr + first + turn, mask=exists, other=0) * WIDTH + column
        gradient = tl.load(gradient_ptr + at, mask=inside & exists, other=0.0).to(tl.float32)
        if exists & (own != current):
            tl.atomic_add(out_ptr + current * WIDTH + column, total, mask=inside, sem="relaxed")
            total = tl.zeros([BLOCK], tl.float32)
            current = own
        total += gradient
    tl.atomic_add(out_ptr + current * WIDTH + column, total, mask=inside, sem="relaxed")


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
