"""Names of the columns of pairs.parquet and tensors.csv: a row a tensor of a pair of calls.

Only names, meanings and kinds live here, so that judge, diagnose and report agree on them.
"""

PAIR_COLUMNS: dict[str, str] = {
    "rank": "rank of both calls",
    "step": "step of both calls",
    "phase": "setup, forward, backward, update or other",
    "kind": "api, backward, module, ...",
    "op": "operation, as the target names it",
    "module": "module path, as the target names it",
    "call_reference": "name of the call in the reference",
    "call_target": "name of the call in the target",
    "id_reference": "id of the call in the reference",
    "id_target": "id of the call in the target",
    "role": "input, output, parameter, grad_output, ...",
    "place": "args.0, kwargs.mask, output.0, a parameter's name",
    "value_reference": "id of the value in the reference",
    "value_target": "id of the value in the target",
    "dtype_reference": "",
    "dtype_target": "",
    "shape_reference": "",
    "shape_target": "",
    "measured": "what the difference was told from: data, sketch, stats or digest; null if not compared",
    "judgement": "identical, rounding, inherited, made_here, after_choice or unresolved; null if not compared",
    "reason": "why it was not compared, or cannot be resolved",
    "error": "relative L2 distance (estimated unless measured is data)",
    "error_in": "of an output: the largest error among the call's inputs",
    "expected": "of an output: the error that rounding and the inputs explain",
    "distance": "L2 norm of target - reference",
    "cosine": "cosine similarity",
    "max_abs": "largest absolute difference",
    "max_rel": "largest relative difference",
    "mean_rel": "mean relative difference",
    "accumulated_rel": "sum of relative differences",
    "relative_distance": "distance / norm of the reference",
    "rmse": "root of the mean squared difference",
    "mae": "mean absolute difference",
    "kl_divergence": "Kullback-Leibler divergence",
    "within_thousandth": "share of elements within 1/1000",
    "within_five_thousandths": "share of elements within 5/1000",
    "max_ulp": "largest difference in ULP of the coarser dtype",
    "mean_ulp": "mean difference in ULP",
    "std_reference": "standard deviation",
    "std_target": "",
    "mismatched": "places where inf or nan do not agree",
    "min_reference": "",
    "min_target": "",
    "max_reference": "",
    "max_target": "",
    "mean_reference": "",
    "mean_target": "",
    "norm_reference": "",
    "norm_target": "",
    "not_finite_reference": "count of nan and inf",
    "not_finite_target": "",
}

TEXTS = frozenset({
    "phase", "kind", "op", "module", "call_reference", "call_target", "role", "place", "dtype_reference",
    "dtype_target", "measured", "judgement", "reason",
})  # fmt: skip
COUNTS = frozenset({
    "rank", "step", "id_reference", "id_target", "value_reference", "value_target", "mismatched",
    "not_finite_reference", "not_finite_target",
})  # fmt: skip
SHAPES = frozenset({"shape_reference", "shape_target"})
ALWAYS_KNOWN = ("rank", "step", "phase", "op", "role", "place")
"""Every other column may be empty, and holds numbers where it is none of the above."""
