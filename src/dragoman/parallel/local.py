"""Islands that train by themselves and agree now and then (DiLoCo), for slow networks.

Every `parallel.inner_steps` steps the mean of how far the islands went from the agreed weights is taken as a gradient, and an
outer Nesterov step moves the agreed weights by it. `streaming` cuts the weights into fragments that take turns, and lets an
exchange run while the islands go on computing: when it lands, an island keeps the way it went since it was sent.

    sent             landed
      |--- flight ---|          fragment 0
             |--- flight ---|   fragment 1 ...

The outer step is made where the exchange is, beside the computing; landing only adds to the weights. Exactly the same agreed
weights on every rank. Between two agreements each island has weights and moments of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.futures import Future

from dragoman.config.schema import Parallel
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.strategy import Strategy, Tensors, holding

# Mean difference, and what follows from it: agreed weights, momentum, and the way from where this island was when it was sent.
Arrival = tuple[Tensor, Tensor, Tensor, Tensor]


class Local(Strategy):
    drifts = True

    def __init__(self, section: Parallel, mesh: Mesh):
        super().__init__(section, mesh)
        self.flights: dict[int, tuple[Tensor, Future[Arrival]]] = {}  # by fragment: weights when sent, what comes back
        streams = section.strategy == "streaming"
        fragments = section.fragments if streams else 1
        apart = section.inner_steps // fragments  # steps from one fragment to the next
        self.delay = apart if streams else 0
        self.sent_at = [(number + 1) * apart % section.inner_steps for number in range(fragments)]
        self.landed_at = [(sent + self.delay) % section.inner_steps for sent in self.sent_at]

    def needs_islands(self) -> bool:
        return True

    @property
    def seat(self) -> int | None:
        assert self.islands
        return self.islands.own if self.islands.leads else None

    @property
    def seat_to_read(self) -> int:
        assert self.islands
        return self.islands.own

    def shard(self, objective: nn.Module) -> None:
        self.parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        self.restart()

    def restart(self) -> None:
        """The weights as they are now are what is agreed on. What is on its way arrives first: its memory is still written to."""
        for _, future in self.flights.values():
            future.wait()
        fragments = len(self.sent_at)
        self.size = -(-sum(parameter.numel() for parameter in self.parameters) // fragments)
        self.weights = [torch.cat([piece for piece, _ in self.pieces(fragment)]) for fragment in range(fragments)]
        self.momentum = [torch.zeros_like(part) for part in self.weights]
        # What is on its way lies in memory of its own: on a CPU fresh memory costs more than what is put there.
        self.spare = [torch.empty_like(self.weights[0]) for _ in range(5)]
        self.flights.clear()
        self.residuals.clear()

    def wrap(self, objective: nn.Module) -> nn.Module:
        assert self.islands
        return self.with_ddp(objective, self.islands.gradients) if self.islands.size > 1 else objective

    # --- fragments ---

    def pieces(self, fragment: int) -> Iterator[tuple[Tensor, slice]]:
        """Stretches of parameters that lie in a fragment, and where they lie in it."""
        start = fragment * self.size
        end, begin = start + self.size, 0
        for parameter in self.parameters:
            low, high = max(begin, start), min(begin + parameter.numel(), end)
            if low < high:
                flat = parameter.detach().view(-1)
                yield flat[low - begin : high - begin], slice(low - start, high - start)
            begin += parameter.numel()

    def forgive(self, refused: Tensor) -> None:
        """What is owed is of weights, which a refused gradient did not change."""

    def after_step(self, step: int) -> None:
        phase = step % self.section.inner_steps
        for fragment, due in enumerate(self.landed_at):
            if phase == due and fragment in self.flights:
                self.land(fragment)
        for fragment, due in enumerate(self.sent_at):
            if phase == due:
                self.send(fragment)
                if not self.delay:
                    self.land(fragment)

    def send(self, fragment: int) -> None:
        """One fragment at a time is on its way, so that all of them can leave from the same memory and come back to it."""
        sent = self.memory(fragment)[0]
        torch.cat([piece for piece, _ in self.pieces(fragment)], out=sent)
        self.flights[fragment] = sent, self.courier.hand_in(lambda: self.agree(fragment, sent))

    def memory(self, fragment: int) -> list[Tensor]:
        """For the weights that are sent and for the four of an arrival."""
        return [each[: len(self.weights[fragment])] for each in self.spare]

    def agree(self, fragment: int, sent: Tensor) -> Arrival:
        assert self.islands
        share = self.islands.size / self.mesh.world  # an island counts as much as it has ranks
        difference = torch.sub(self.weights[fragment], sent, out=self.memory(fragment)[1]).mul_(share)
        return self.outer_step(fragment, sent, self.sum_over_islands(difference, fragment))

    def outer_step(self, fragment: int, sent: Tensor, difference: Tensor) -> Arrival:
        """Nothing of ours changes before it lands: a checkpoint between is the same, however fast the network is."""
        decay, (_, _, weights, momentum, way) = self.section.outer_momentum, self.memory(fragment)
        torch.mul(self.momentum[fragment], decay, out=momentum).add_(difference)
        step = torch.add(difference, momentum, alpha=decay, out=way)
        torch.sub(self.weights[fragment], step, alpha=self.section.outer_learning_rate, out=weights)
        return difference, weights, momentum, torch.sub(weights, sent, out=way)

    def land(self, fragment: int) -> None:
        _, arrival = self.flights.pop(fragment)
        _, weights, momentum, way = arrival.wait()
        if len(weights) == self.size:
            self.spare[2:4] = self.weights[fragment], self.momentum[fragment]
            self.weights[fragment], self.momentum[fragment] = weights, momentum
        else:  # the last one: what it has is too short for the others
            self.weights[fragment].copy_(weights)
            self.momentum[fragment].copy_(momentum)
        for piece, place in self.pieces(fragment):
            if self.delay:  # what the others and the outer step add to where this island is by now
                piece.add_(way[place])
            else:
                piece.copy_(self.weights[fragment][place])

    # --- what is agreed on, and what is not ---

    def agreed(self, model: nn.Module) -> Tensors:
        """What is frozen is the same everywhere, and never exchanged."""
        parts = iter(self.agreed_parts())
        return {
            name: next(parts).view(parameter.shape) if parameter.requires_grad else parameter.detach()
            for name, parameter in model.named_parameters()
        }

    def held_alike(self, model: nn.Module) -> list[tuple[list[list[int]], Tensors]]:
        """Ranks of an island also take the same steps between two agreements."""
        assert self.islands
        return [*super().held_alike(model), (self.islands.ranks, dict(model.named_parameters()))]

    def agreed_parts(self) -> Sequence[Tensor]:
        """Of every parameter that learns."""
        return torch.split(torch.cat(self.weights), [parameter.numel() for parameter in self.parameters])

    @contextmanager
    def looking(self, objective: nn.Module) -> Iterator[nn.Module]:
        with holding(self.parameters, self.agreed_parts()):
            yield objective

    def own_state(self) -> Tensors:
        """Flights are waited for, but not landed before their time."""
        sent = {f"sent.{fragment}": flight[0] for fragment, flight in self.flights.items()}
        result = {f"difference.{fragment}": flight[1].wait()[0] for fragment, flight in self.flights.items()}
        return super().own_state() | sent | result | {"momentum": torch.cat(self.momentum)}

    def load_own(self, tensors: Tensors) -> None:
        """After the agreed weights were put into the model, and before its own are."""
        self.restart()
        momentum = tensors.get("momentum")
        if momentum is None or len(momentum) != sum(map(len, self.weights)):
            return
        super().load_own(tensors)
        self.momentum = [part.to(self.mesh.device, copy=True) for part in torch.split(momentum, self.size)]
        for fragment, weights in enumerate(self.weights if self.delay else ()):
            sent = tensors.get(f"sent.{fragment}")
            if sent is not None and len(sent) == len(weights):  # that of another number of fragments is lost
                sent, difference = (each.to(self.mesh.device) for each in (sent, tensors[f"difference.{fragment}"]))
                arrived: Future[Arrival] = Future()
                arrived.set_result(self.outer_step(fragment, sent, difference))
                self.flights[fragment] = sent, arrived
