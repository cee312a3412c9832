"""Which calls belong to the model and which only prepare data."""

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.records.enums import (
    BACKWARD_KIND,
    BUFFER_ROLE,
    COLLECTIVE_KIND,
    COMPILED_KIND,
    MODULE_BACKWARD_KIND,
    MODULE_KIND,
    OPTIMIZER_KIND,
    PARAMETER_ROLE,
    SETUP_PHASE,
)

ALWAYS_MODEL = (
    BACKWARD_KIND,
    MODULE_KIND,
    MODULE_BACKWARD_KIND,
    OPTIMIZER_KIND,
    COLLECTIVE_KIND,
    COMPILED_KIND,
)
OWNED_ROLES = (PARAMETER_ROLE, BUFFER_ROLE)


def model_pairs(evidence: RankEvidence, model_storages: set[int]) -> list[bool]:
    """For each pair of calls whether it computes with the model; all of them in a run without modules.

    `model_storages` is where parameters and their gradients lie.
    """
    calls = evidence.calls
    if not any(module is not None for module in calls["module"]):
        return [phase != SETUP_PHASE for phase in calls["phase"]]
    storages = evidence.sides.target.storage.tolist()
    from_model = [False] * len(storages)
    # One more, for what no pair of calls made (-1).
    reading = [False] * (len(calls["id"]) + 1)
    found = [False] * len(calls["id"])
    for pair in evidence.order:
        slots = evidence.slots_of[pair]
        inside = calls["kind"][pair] in ALWAYS_MODEL or calls["module"][pair] is not None
        reads = any(
            from_model[s.values] or storages[s.values] in model_storages or reading[evidence.makers[s.values]]
            for s in slots
            if not s.makes
        )
        reading[pair] = inside or reads
        found[pair] = inside or (reads and calls["phase"][pair] != SETUP_PHASE)
        if inside or reads:
            for slot in slots:
                if slot.makes:
                    from_model[slot.values] = True
    return found
