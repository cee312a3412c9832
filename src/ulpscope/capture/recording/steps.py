"""Which step, micro-step and phase a moment of the run belongs to.

A new step begins after an optimizer's (or GradScaler's) step, at the first outermost forward or when a DataLoader is
asked for a batch. In a run that has no optimizer, and without gradients before the first update, one begins whenever a
root module runs again; but a forward without gradients never parts another one from its backward, nor gradients from
the update that they wait for.
"""

import itertools
from typing import Any

from ulpscope.records.enums import Phase
from ulpscope.records.runs import Stepping

_PASSES = itertools.count()


class Steps:
    """The state of a run's iteration, of a framework that knows no gradients; others override what they know better."""

    def __init__(self) -> None:
        self.step = 0
        self.micro_step = 0
        self.manual = False
        self.optimizers_exist = False
        self.creates_graph = False
        """Whether the running backward builds a graph of its own."""
        self._between = Phase.SETUP
        self._updating = 0
        self._closures = 0
        self._backward = 0
        self.skipped = False
        """Whether a GradScaler has skipped an update of the running step."""
        self._updated = False
        self._ever_updated = False
        self._has_gradients = False
        """Whether the running step has left gradients in parameters."""
        self._pass: int | None = None
        self._roots: list[int] = []
        self._begun = dict.fromkeys(("update", "forward", "mark"), 0)
        self._updaters: set[int] = set()
        self.phase = Phase.SETUP

    @property
    def in_backward(self) -> bool:
        return self._backward > 0

    def begins_new_step(self, root: int) -> bool:
        """Whether an outermost forward of module `root` that is about to run opens another step."""
        if self.manual or self._closures or not self._roots:
            return False
        if self._updated:
            return True
        if self._ever_updated or root not in self._roots:
            return False
        if self.builds_graphs:
            return not self.optimizers_exist
        # A backward may still come of what this step has computed, or an update of its gradients.
        return not (self.optimizers_exist and self._has_gradients) and not self.any_graph_alive()

    def advance(self) -> None:
        """Go to the next step."""
        self._begun["mark" if self.manual else "update" if self._updated else "forward"] += 1
        self.step += 1
        self.micro_step = 0
        self._updated = self._has_gradients = self.skipped = False
        self._updating = 0
        self._roots.clear()
        self.forget_graphs()
        self._look_at_phase()

    @property
    def stepping(self) -> Stepping:
        """How the steps so far were told apart."""
        begun = self._begun
        return Stepping(
            updates=begun["update"], forwards=begun["forward"], marks=begun["mark"], optimizers=len(self._updaters)
        )

    def outermost_forward(self, root: int) -> None:
        """An outermost module call begins."""
        self._between = Phase.FORWARD
        if self._roots and root == self._roots[0]:
            self.micro_step += 1
        if root not in self._roots:
            self._roots.append(root)
        self._look_at_phase()

    @property
    def asks_for_graphs(self) -> bool:
        """Whether an outermost forward that ends now matters to what begins a step."""
        return not self._ever_updated and not self.manual and not self._backward and self.builds_graphs

    @property
    def builds_graphs(self) -> bool:
        """Whether gradients of what is computed now may be asked for."""
        return False

    def note_graph(self, result: Any) -> None:
        """What an outermost module call with gradients has given."""

    def any_graph_alive(self) -> bool:
        """Whether a backward may still come of what was noted."""
        return False

    def forget_graphs(self) -> None:
        """A backward has passed, or a step has ended."""

    def enter_backward(self) -> None:
        self._backward += 1
        self._look_at_phase()

    @property
    def backward_pass(self) -> int | None:
        """The pass that runs here: in the thread that has begun it, in those it uses, and in backwards inside of it."""
        return self._pass

    def begin_pass(self) -> int:
        self._pass = next(_PASSES)
        return self._pass

    def end_pass(self) -> None:
        self._pass = None

    def leave_backward(self, *, accumulates: bool, keeps_graph: bool) -> None:
        """`accumulates` gradients in parameters, as `torch.autograd.grad` does not; `keeps_graph` for another one."""
        self._backward -= 1
        if accumulates:
            self._has_gradients = True
            if not keeps_graph:
                self.forget_graphs()
        if not self._updating:
            self._between = Phase.OTHER
        self._look_at_phase()

    def enter_update(self, optimizer: int) -> None:
        self._updaters.add(optimizer)
        self._updating += 1
        self._look_at_phase()

    def leave_update(self) -> None:
        self.drop_update()
        self.note_update()

    def drop_update(self) -> None:
        """An update that was entered does not run."""
        self._updating = max(0, self._updating - 1)
        self._look_at_phase()

    def note_update(self) -> None:
        """Parameters were updated, or a GradScaler decided not to."""
        self.optimizers_exist = True
        self._updated = self._ever_updated = True
        self._between = Phase.OTHER
        self._look_at_phase()

    def begins_with_data(self) -> bool:
        """Whether a batch of data that is asked for opens another step."""
        return self._updated and not self.manual and not self._closures and not self._updating

    def begins_with_closure(self) -> bool:
        """Whether an optimizer's step that will run forwards itself opens another step."""
        return self._updated and not self.manual

    def enter_closure(self) -> int:
        """A closure begins inside an optimizer's step: its calls are forward and backward."""
        updating, self._updating = self._updating, 0
        self._between = Phase.FORWARD
        self._closures += 1
        self._look_at_phase()
        return updating

    def leave_closure(self, updating: int) -> None:
        self._updating = updating
        self._closures -= 1
        self._look_at_phase()

    def _look_at_phase(self) -> None:
        # Calls ask for it thousands of times a step, and it changes a few times.
        self.phase = Phase.BACKWARD if self._backward else Phase.UPDATE if self._updating else self._between
