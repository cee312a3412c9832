"""Whether a gradient holds an earlier one is told from sketches, whichever run kept it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ulpscope.diagnose.detectors.parameters import StaleGradient
from ulpscope.diagnose.flow.evidence import Slot

RNG = np.random.default_rng(0)
EARLIER, OWN, NOISE = (RNG.standard_normal(61) for _ in range(3))
SHOWN = [Slot(row, row, "gradient", "weight", row, False) for row in range(2)]


def leftovers(reference: list[Any], target: list[Any], *, steps: tuple[int, int] = (0, 1), elements: int = 500) -> Any:
    """One parameter's gradient in two steps, as the sketches of either run."""
    sides = [SimpleNamespace(summaries=SimpleNamespace(sketch=np.array(side))) for side in (reference, target)]
    errors = [float(np.linalg.norm(t - r) / np.linalg.norm(r)) for r, t in zip(reference, target, strict=True)]
    evidence: Any = SimpleNamespace(
        sides=SimpleNamespace(reference=sides[0], target=sides[1]),
        calls={"step": steps, "module": ["model", "model"]},
        operands=[SimpleNamespace(error=error, elements=elements) for error in errors],
        by_role={"gradient": SHOWN},
    )
    return StaleGradient(SimpleNamespace(evidence=evidence, gaps=None)).leftover(SHOWN[1])  # type: ignore[arg-type]


def test_the_run_that_kept_it_is_named() -> None:
    assert leftovers([EARLIER, OWN], [EARLIER, OWN + EARLIER]) == ("target", 0)
    assert leftovers([EARLIER, OWN + EARLIER], [EARLIER, OWN]) == ("reference", 0)


def test_noise_of_another_dtype_does_not_hide_it() -> None:
    assert leftovers([EARLIER, OWN], [EARLIER + 0.01 * NOISE, OWN + EARLIER + 0.03 * NOISE]) == ("target", 0)
    assert leftovers([EARLIER, OWN], [EARLIER, OWN + EARLIER + 0.5 * NOISE]) is None


@pytest.mark.parametrize("surplus", [0.5 * EARLIER, 2 * EARLIER, NOISE])
def test_another_surplus_is_none(surplus: Any) -> None:
    assert leftovers([EARLIER, OWN], [EARLIER, OWN + surplus]) is None


def test_what_differs_itself_is_not_what_is_left() -> None:
    """Both runs keep theirs, and the target's is next to nothing: the difference looks like the reference's."""
    assert leftovers([EARLIER, 0.01 * OWN + EARLIER], [0.01 * EARLIER, 0.01 * OWN]) is None


def test_of_a_few_numbers_much_could_be_chance() -> None:
    near = OWN + EARLIER + 0.03 * NOISE
    assert leftovers([EARLIER, OWN], [EARLIER, near], elements=2) is None
    assert leftovers([EARLIER, OWN], [EARLIER, OWN + EARLIER], elements=2) == ("target", 0)


def test_two_backwards_of_one_step_add_up_as_they_should() -> None:
    assert leftovers([EARLIER, OWN], [EARLIER, OWN + EARLIER], steps=(1, 1)) is None
