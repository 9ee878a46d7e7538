"""What is made smaller on the wire is not lost, and the outer step is Nesterov's: by a group of one, and where numbers come in
pieces by three processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parallel.rounds import run_ranks
from safetensors.torch import load_file, save_file
from torch import nn

from dragoman.config.schema import Parallel
from dragoman.parallel import wire
from dragoman.parallel.courier import Courier
from dragoman.parallel.islands import Islands
from dragoman.parallel.local import Local
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.strategy import Strategy

RANKS, ROUNDS = 3, 4
MANY = 2 * wire.PIECE + 100_003  # three pieces, the last of them shorter; no equal part for each rank


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("count", [1, 1000, 1024, 5000])
def test_rounding_is_owed_and_paid_back(group, count):
    """What came out over many rounds differs from what went in by no more than one rounding."""
    torch.manual_seed(1)
    residual = torch.zeros(wire.padded_size(count, 1))
    given, taken = torch.zeros(count), torch.zeros(count)
    for _ in range(50):
        numbers = torch.randn(count) * torch.logspace(-6, 0, count)
        given += numbers
        wire.sum_over(numbers, None, "int8", residual)
        taken += numbers
    torch.testing.assert_close(taken + residual[:count], given, rtol=1e-4, atol=1e-5)
    assert residual.abs().max() < 0.1, "one rounding, not fifty"


def drawn(rank, number):
    """What a rank gives in a round."""
    return torch.randn(MANY, generator=torch.Generator().manual_seed(RANKS * number + rank))


def sum_drawn(folder):
    """One of the ranks: keeps what came out of every round, and what it owes at the end."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    residual, taken = torch.zeros(wire.padded_size(MANY, RANKS)), {}
    for number in range(ROUNDS):
        numbers = drawn(rank, number)
        wire.sum_over(numbers, None, "int8", residual)
        taken[f"taken.{number}"] = numbers
    save_file({"residual": residual, **taken}, Path(folder) / f"{rank}.safetensors")
    dist.destroy_process_group()


def test_three_ranks_take_the_same_bits_and_owe_the_rest(tmp_path):
    """What came out and what all of them owe is what went in, but for the rounding of fp32."""
    run_ranks(RANKS, [sys.executable, __file__, str(tmp_path)], tmp_path)
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(RANKS)]
    owed = sum(each.pop("residual").double() for each in found)
    assert all(each[name].equal(found[0][name]) for each in found for name in each)
    given = sum(drawn(rank, number).double() for rank in range(RANKS) for number in range(ROUNDS))
    taken = sum(numbers.double() for numbers in found[0].values())
    torch.testing.assert_close(taken + owed[:MANY], given, rtol=0, atol=1e-5)
    assert not owed[MANY:].any(), "nobody owes what nobody gave"
    assert 0.01 < owed.abs().max() < 0.2, "some roundings, not those of every round"


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_is_forgotten(group, bad):
    """One bad step, as every run in fp16 begins with, must not be added to all later ones."""
    residual = torch.zeros(wire.padded_size(5000, 1))
    numbers = torch.randn(5000)
    numbers[1500] = bad
    wire.sum_over(numbers, None, "int8", residual)
    assert not numbers[1024:2048].isfinite().all(), "this step is bad, and seen to be"
    assert residual.isfinite().all()
    numbers = torch.ones(5000)
    wire.sum_over(numbers, None, "int8", residual)
    torch.testing.assert_close(numbers, torch.ones(5000), rtol=0.1, atol=0.1)


def test_packed_numbers_are_a_quarter_and_unpack_to_within_a_step():
    rows = torch.randn(3, 4 * wire.BLOCK)
    packed = wire.pack(rows)
    assert packed.numel() * packed.element_size() == rows.numel() * wire.NUMBER_BYTES["int8"]
    steps = rows.view(3, 4, -1).abs().amax(2) / 127
    assert ((wire.unpack(packed) - rows).view(3, 4, -1).abs().amax(2) <= 0.51 * steps).all()
    assert wire.unpack(wire.pack(torch.zeros(1, wire.BLOCK))).eq(0).all()


def alone(section: Parallel, objective: nn.Module) -> Local:
    """The only island there is."""
    strategy = Local(section, Mesh(0, 1, 0, torch.device("cpu")))
    strategy.islands, strategy.courier = Islands([[0]], 0, None, None, None), Courier(torch.device("cpu"))
    strategy.shard(objective)
    return strategy


def test_the_outer_step_is_that_of_torch(group):
    objective = nn.Linear(7, 5)
    reference = [parameter.detach().clone().requires_grad_() for parameter in objective.parameters()]
    outer = torch.optim.SGD(reference, lr=0.7, momentum=0.5, nesterov=True)
    strategy = alone(Parallel(strategy="local", inner_steps=3), objective)
    for step in range(1, 13):
        with torch.no_grad():
            for parameter in objective.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
            for parameter, own in zip(reference, objective.parameters(), strict=True):
                parameter.grad = parameter.detach() - own
        strategy.after_step(step)
        if step % 3 == 0:
            outer.step()
            for own, expected in zip(objective.parameters(), reference, strict=True):
                torch.testing.assert_close(own, expected)


def test_a_fragment_keeps_the_way_that_was_gone_while_it_was_on_its_way(group):
    """With the plain mean of one island the agreed weights are where it was when it sent; what came after stays its own."""
    objective = nn.Linear(8, 1, bias=False)
    plain = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
    strategy = alone(Parallel(strategy="streaming", inner_steps=4, fragments=2, **plain), objective)
    start = objective.weight.detach().clone()
    for step in range(1, 9):
        with torch.no_grad():
            objective.weight.add_(1.0)
        strategy.after_step(step)
    torch.testing.assert_close(objective.weight.detach(), start + 8)
    agreed = strategy.agreed(objective)["weight"].flatten() - start.flatten()
    torch.testing.assert_close(agreed, torch.tensor([6.0, 6, 6, 6, 4, 4, 4, 4]), rtol=0, atol=1e-5)
    with strategy.looking(objective):
        torch.testing.assert_close(objective.weight.detach().flatten() - start.flatten(), agreed)
    torch.testing.assert_close(objective.weight.detach(), start + 8)


def test_fragments_take_the_outer_step_each_by_itself(group):
    """Round after round, in memory that they share, though the last one is shorter than the others."""
    objective = nn.Linear(7, 1, bias=False)
    strategy = alone(Parallel(strategy="streaming", inner_steps=4, fragments=2), objective)
    places = [slice(0, 4), slice(4, 7)]
    reference = [objective.weight.detach()[0, place].clone().requires_grad_() for place in places]
    outers = [torch.optim.SGD([part], lr=0.7, momentum=0.5, nesterov=True) for part in reference]
    for step in range(1, 21):
        with torch.no_grad():
            objective.weight.add_(torch.randn(7) * 0.1)
        now = objective.weight.detach()[0].clone()
        strategy.after_step(step)
        for part, outer, place, sent, landed in zip(
            reference, outers, places, strategy.sent_at, strategy.landed_at, strict=True
        ):
            if step % 4 == landed and part.grad is not None:
                outer.step()
            if step % 4 == sent:
                part.grad = part.detach() - now[place]
        torch.testing.assert_close(strategy.agreed(objective)["weight"][0], torch.cat(reference).detach())


def test_what_is_frozen_is_not_exchanged_and_is_a_part_of_the_model(group):
    objective = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    objective[1].requires_grad_(False)
    strategy = alone(Parallel(strategy="local", inner_steps=1), objective)
    assert torch.cat(strategy.weights).numel() == torch.cat(strategy.momentum).numel() == 20 + 10
    with torch.no_grad():
        for parameter in strategy.parameters:
            parameter.add_(1.0)
    strategy.after_step(1)
    agreed = strategy.agreed(objective)
    assert agreed.keys() == objective.state_dict().keys()
    for name, tensor in objective.state_dict().items():
        torch.testing.assert_close(agreed[name], tensor)


def test_a_fragment_on_its_way_is_taken_up_where_it_fits(group):
    """The number of fragments may change between two starts: what is on its way is lost then, not put somewhere else."""
    streaming = Parallel(strategy="streaming", wire="bf16", inner_steps=4, fragments=4)
    torch.manual_seed(1)
    before = alone(streaming, nn.Linear(16, 16))
    before.after_step(1)
    state = {name: tensor.clone() for name, tensor in before.own_state().items()}
    assert [name for name in state if name.startswith("sent.")] == ["sent.0"]
    for section, flights in (
        (streaming, [0]),
        (Parallel(strategy="streaming", wire="bf16", inner_steps=4, fragments=2), []),
        (Parallel(strategy="local", wire="bf16", inner_steps=4), []),
    ):
        after = alone(section, nn.Linear(16, 16))
        after.load_own(state)
        assert list(after.flights) == flights
        for step in range(2, 10):
            after.after_step(step)


def test_a_gradient_that_is_refused_is_owed_to_no_later_one():
    """It changed nothing; what rounding took away from it would be as large as a usual gradient."""
    owing = Strategy(Parallel(wire="int8"), Mesh(0, 1, 0, torch.device("cpu")))
    owing.residuals = {0: torch.ones(4), 1: torch.ones(2)}
    owing.forgive(torch.tensor(False))
    assert owing.own_state()["residual.1"].tolist() == [1.0, 1.0]
    owing.forgive(torch.tensor(True))
    assert not any(tensor.any() for tensor in owing.own_state().values())


if __name__ == "__main__":
    sum_drawn(sys.argv[1])
