"""Islands that train by themselves and agree now and then (DiLoCo), for slow networks.

Every `parallel.inner_steps` steps the mean of how far the islands went from the agreed weights is taken as a gradient, and an
outer Nesterov step moves the agreed weights by it. `streaming` cuts the weights into fragments that take turns, and lets an
exchange run while the islands go on computing: when it lands, an island keeps the way it went since it was sent.

    sent             landed
      |--- flight ---|          fragment 0
             |--- flight ---|   fragment 1 ...

Exactly the same agreed weights on every rank. Between two agreements each island has weights and moments of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from dragoman.config.schema import Parallel
from dragoman.parallel import wire
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.strategy import Strategy, Tensors, holding


class Local(Strategy):
    drifts = True

    def __init__(self, section: Parallel, mesh: Mesh):
        super().__init__(section, mesh)
        self.flights: dict[int, tuple[Tensor, Future[Tensor]]] = {}  # by fragment: weights when sent, mean difference
        fragments = section.fragments if section.strategy == "streaming" else 1
        self.sent_at = [
            (number + 1) * section.inner_steps // fragments % section.inner_steps for number in range(fragments)
        ]
        delay = section.inner_steps // fragments if section.strategy == "streaming" else 0
        self.landed_at = [(sent + delay) % section.inner_steps for sent in self.sent_at]
        self.delay = delay

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
        self.weights = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.momentum = torch.zeros_like(self.weights)
        self.flights.clear()
        self.residuals.clear()

    def wrap(self, objective: nn.Module, *, compiled: bool) -> nn.Module:
        assert self.islands
        wrapped = self.with_ddp(objective, self.islands.gradients) if self.islands.size > 1 else objective
        return torch.compile(wrapped, dynamic=False) if compiled else wrapped  # type: ignore[return-value]

    # --- fragments ---

    def bounds(self, fragment: int) -> tuple[int, int]:
        size = -(-self.weights.numel() // len(self.sent_at))
        return fragment * size, min((fragment + 1) * size, self.weights.numel())

    def pieces(self, fragment: int) -> Iterator[tuple[Tensor, slice]]:
        """Stretches of parameters that lie in a fragment, and where they lie in it."""
        start, end = self.bounds(fragment)
        begin = 0
        for parameter in self.parameters:
            low, high = max(begin, start), min(begin + parameter.numel(), end)
            if low < high:
                flat = parameter.detach().view(-1)
                yield flat[low - begin : high - begin], slice(low - start, high - start)
            begin += parameter.numel()

    def after_step(self, step: int) -> None:
        phase = step % self.section.inner_steps
        for fragment, due in enumerate(self.landed_at):
            if self.delay and phase == due and fragment in self.flights:
                self.land(fragment)
        for fragment, due in enumerate(self.sent_at):
            if phase == due:
                self.send(fragment)
                if not self.delay:
                    self.land(fragment)

    def send(self, fragment: int) -> None:
        start, end = self.bounds(fragment)
        sent = torch.cat([piece for piece, _ in self.pieces(fragment)])
        assert self.islands
        share = self.islands.size / self.mesh.world  # an island counts as much as it has ranks
        difference = torch.sub(self.weights[start:end], sent).mul_(share)
        self.flights[fragment] = sent, self.courier.hand_in(lambda: self.sum_over_islands(difference, fragment))

    def sum_over_islands(self, difference: Tensor, fragment: int) -> Tensor:
        """Between the first ranks of all islands, then to the others of each."""
        assert self.islands
        if self.islands.leads:
            residual = self.residual(fragment, difference, len(self.islands.ranks))
            wire.sum_over(difference, self.islands.between, self.section.wire, residual)
        if self.islands.size > 1:
            dist.broadcast(difference, self.islands.ranks[self.islands.own][0], group=self.islands.within)
        return difference

    def land(self, fragment: int) -> None:
        """The outer step, and back into the weights of the island."""
        sent, future = self.flights.pop(fragment)
        gradient = future.wait()
        start, end = self.bounds(fragment)
        weights, momentum, section = self.weights[start:end], self.momentum[start:end], self.section
        # In place: on a CPU every new tensor of this size costs more than the arithmetic.
        momentum.mul_(section.outer_momentum).add_(gradient)
        weights.sub_(gradient.add_(momentum, alpha=section.outer_momentum), alpha=section.outer_learning_rate)
        way = torch.sub(weights, sent, out=sent)  # what the others and the outer step add to where this island was
        for piece, place in self.pieces(fragment):
            if self.delay:
                piece.add_(way[place])
            else:
                piece.copy_(weights[place])

    def fits(self, fragment: int, tensor: Tensor) -> bool:
        if not self.delay or fragment >= len(self.sent_at):
            return False
        start, end = self.bounds(fragment)
        return tensor.numel() == end - start

    # --- what is agreed on, and what is not ---

    def agreed(self, model: nn.Module) -> Tensors:
        """What is frozen is the same everywhere, and never exchanged."""
        parts = iter(torch.split(self.weights, [parameter.numel() for parameter in self.parameters]))
        return {
            name: next(parts).view(parameter.shape) if parameter.requires_grad else parameter.detach()
            for name, parameter in model.named_parameters()
        }

    @contextmanager
    def looking(self, objective: nn.Module) -> Iterator[nn.Module]:
        agreed = torch.split(self.weights, [parameter.numel() for parameter in self.parameters])
        with holding(self.parameters, agreed):
            yield objective

    def own_state(self) -> Tensors:
        """Flights are waited for, but not landed before their time."""
        flights = {fragment: (sent, future.wait()) for fragment, (sent, future) in self.flights.items()}
        sent = {f"sent.{fragment}": flight[0] for fragment, flight in flights.items()}
        result = {f"difference.{fragment}": flight[1] for fragment, flight in flights.items()}
        return super().own_state() | sent | result | {"momentum": self.momentum}

    def load_own(self, tensors: Tensors) -> None:
        """After the agreed weights were put into the model, and before its own are."""
        self.restart()
        if "momentum" not in tensors or tensors["momentum"].shape != self.momentum.shape:
            return
        super().load_own(tensors)
        self.momentum.copy_(tensors["momentum"])
        for name, tensor in tensors.items():
            if name.startswith("sent."):
                fragment = int(name.removeprefix("sent."))
                if not self.fits(fragment, tensor):  # of another number of fragments: it is lost
                    continue
                arrived: Future[Tensor] = Future()
                arrived.set_result(tensors[f"difference.{fragment}"].to(self.mesh.device))
                self.flights[fragment] = tensor.to(self.mesh.device), arrived
