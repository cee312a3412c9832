"""Everything that capture is tried on, by name: `SCENARIOS["gpt"].run(Setting())`."""

from importlib import import_module

from models import FUNCTIONS, SCENARIOS, Scenario, Setting

for _part in ("networks", "layers", "training", "writing", "kinds", "transforms", "compiled"):
    import_module(f"scenarios.{_part}")

__all__ = ["FUNCTIONS", "SCENARIOS", "Scenario", "Setting"]
