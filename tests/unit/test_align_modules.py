"""Modules of two runs that bear other names."""

from ulpscope.align.mapping import map_modules

MODEL = {
    "model": "GPT",
    "model.tok": "Embedding",
    "model.layers.0": "Block",
    "model.layers.0.norm": "LayerNorm",
    "model.layers.0.mlp": "Linear",
    "model.layers.1": "Block",
    "model.layers.1.norm": "LayerNorm",
    "model.layers.1.mlp": "Linear",
    "model.head": "Linear",
}


def renamed(classes: dict[str, str], old: str, new: str) -> dict[str, str]:
    """The same modules with one path changed, and those below it."""
    below = f"{old}."
    return {
        new + path[len(old) :] if path == old or path.startswith(below) else path: name
        for path, name in classes.items()
    }


def inverted(classes: dict[str, str], target: dict[str, str]) -> dict[str, str]:
    return dict(zip(target, classes, strict=True))


def of_modules(mapped: dict[str, str], classes: dict[str, str]) -> dict[str, str]:
    """Without the containers that are only part of a path."""
    return {path: name for path, name in mapped.items() if path in classes}


def test_equal_names_map_to_themselves() -> None:
    assert of_modules(map_modules(MODEL, MODEL), MODEL) == {path: path for path in MODEL}


def test_a_data_parallel_prefix_is_stepped_through() -> None:
    wrapped = {"model": "DistributedDataParallel"} | renamed(MODEL, "model", "model.module")
    mapped = map_modules(MODEL, wrapped)
    inside = {path: path.replace("model.module", "model", 1) for path in wrapped if path != "model"}
    assert of_modules(mapped, wrapped) == inside
    unwrapped = of_modules(map_modules(wrapped, MODEL), MODEL)
    assert unwrapped == {path: "model.module" + path[len("model") :] for path in MODEL}


def test_a_renamed_root_is_the_only_one_left() -> None:
    target = renamed(MODEL, "model", "net")
    assert of_modules(map_modules(MODEL, target), target) == inverted(MODEL, target)


def test_a_wrapper_around_one_layer_is_stepped_through() -> None:
    wrapper = {"model.layers.1": "CheckpointWrapper"}
    inner = renamed(MODEL, "model.layers.1", "model.layers.1._wrapped")
    target = {**{p: c for p, c in MODEL.items() if not p.startswith("model.layers.1")}, **wrapper, **inner}
    mapped = map_modules(MODEL, target)
    assert mapped["model.layers.1._wrapped"] == "model.layers.1"
    assert mapped["model.layers.1._wrapped.norm"] == "model.layers.1.norm"
    assert "model.layers.1" not in mapped
    assert mapped["model.layers.0.norm"] == "model.layers.0.norm"


def test_two_wrappers_are_stepped_through() -> None:
    target = {"m": "OptimizedModule", "m._orig_mod": "DataParallel"} | renamed(MODEL, "model", "m._orig_mod.module")
    mapped = map_modules(MODEL, target)
    assert mapped["m._orig_mod.module.head"] == "model.head"
    assert not {"m", "m._orig_mod"} & set(mapped)


def test_a_renamed_child_takes_the_place_of_the_one_left() -> None:
    target = renamed(MODEL, "model.layers.0.mlp", "model.layers.0.ffn")
    assert of_modules(map_modules(MODEL, target), target) == inverted(MODEL, target)


def test_renamed_children_are_told_apart_by_class() -> None:
    target = renamed(renamed(MODEL, "model.tok", "model.wte"), "model.head", "model.lm_head")
    assert of_modules(map_modules(MODEL, target), target) == inverted(MODEL, target)
    target = renamed(
        renamed(MODEL, "model.layers.0.norm", "model.layers.0.ln"), "model.layers.0.mlp", "model.layers.0.fc"
    )
    assert of_modules(map_modules(MODEL, target), target) == inverted(MODEL, target)


def test_a_renamed_list_of_layers_keeps_its_numbers() -> None:
    target = renamed(MODEL, "model.layers", "model.blocks")
    assert of_modules(map_modules(MODEL, target), target) == inverted(MODEL, target)


def test_a_missing_child_maps_to_nothing() -> None:
    target = {path: name for path, name in MODEL.items() if path != "model.layers.1.norm"}
    mapped = map_modules(MODEL, target)
    assert of_modules(mapped, target) == {path: path for path in target}
    assert "model.layers.1.norm" not in mapped.values()
    extra = map_modules(target, MODEL)
    assert "model.layers.1.norm" not in extra


def test_a_missing_child_of_renamed_ones_is_found_by_class() -> None:
    reference = {"m": "M", "m.a": "Linear", "m.b": "Dropout", "m.c": "LayerNorm"}
    target = {"m": "M", "m.x": "Linear", "m.z": "LayerNorm"}
    assert map_modules(reference, target) == {"m": "m", "m.x": "m.a", "m.z": "m.c"}


def test_a_class_is_known_by_its_last_name() -> None:
    reference = {"m": "M", "m.a": "torch.nn.Linear", "m.b": "torch.nn.ReLU"}
    target = {"m": "M", "m.y": "other.ReLU", "m.x": "other.Linear"}
    mapped = map_modules(reference, target)
    # In order of appearance only one of the two can keep its place.
    assert mapped in ({"m": "m", "m.x": "m.a"}, {"m": "m", "m.y": "m.b"})


def test_nothing_maps_to_nothing() -> None:
    assert map_modules({}, {}) == {}
    assert map_modules(MODEL, {}) == {}
