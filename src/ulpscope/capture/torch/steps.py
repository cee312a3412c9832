"""Which step, micro-step and phase a moment of the run belongs to.

A new step begins at the first outermost forward after an optimizer's (or GradScaler's) step. In a run that has no
optimizer, and without gradients before the first update, one begins whenever a root module runs again.
"""

import gc

import torch

from ulpscope.records.enums import Phase


class Steps:
    """The state of a run's iteration."""

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
        self._updated = False
        self._ever_updated = False
        self._roots: list[int] = []
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
        if self._ever_updated or (self.optimizers_exist and torch.is_grad_enabled()):
            return False
        return root in self._roots

    def advance(self) -> None:
        """Go to the next step."""
        self.step += 1
        self.micro_step = 0
        self._updated = False
        self._updating = 0
        self._roots.clear()
        self._look_at_phase()

    def outermost_forward(self, root: int) -> None:
        """An outermost module call begins."""
        self._between = Phase.FORWARD
        if self._roots and root == self._roots[0]:
            self.micro_step += 1
        if root not in self._roots:
            self._roots.append(root)
        self._look_at_phase()

    def enter_backward(self) -> None:
        self._backward += 1
        self._look_at_phase()

    def leave_backward(self) -> None:
        self._backward -= 1
        if not self._updating:
            self._between = Phase.OTHER
        self._look_at_phase()

    def enter_update(self) -> None:
        self._updating += 1
        self._look_at_phase()

    def leave_update(self) -> None:
        self._updating = max(0, self._updating - 1)
        self.note_update()

    def note_update(self) -> None:
        """Parameters were updated, or a GradScaler decided not to."""
        self.optimizers_exist = True
        self._updated = self._ever_updated = True
        self._between = Phase.OTHER
        self._look_at_phase()

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


def optimizer_exists() -> bool:
    """Whether the process has made an optimizer already."""
    return any(issubclass(type(item), torch.optim.Optimizer) for item in gc.get_objects())
