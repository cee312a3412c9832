"""All faults, by name."""

from faults import activations, images, losses, moving, norms, products, sequences, sums
from faults.making import FAULTS, Fault

FAMILIES = (products, sums, norms, activations, losses, moving, images, sequences)

CATALOGUE: dict[str, Fault] = {each.name: each for each in FAULTS}
