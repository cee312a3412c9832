"""Results of `ulpscope compare` as they would be of a transformer, of any size, made without a run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ulpscope.records.pairs import PAIR_COLUMNS

OPS = ("layer_norm", "linear", "linear", "linear", "scaled_dot_product_attention", "linear", "dropout", "layer_norm")
OPS_MLP = ("linear", "gelu", "linear", "dropout")
ROWS_PER_LAYER = 6 * (len(OPS) + len(OPS_MLP)) + 4
"""Of one step: three tensors a call, forward and backward, and four of its optimizer's."""
FAULTY_LAYER = 1
TEXTS = ("phase", "kind", "op", "module", "call_reference", "call_target", "role", "place", "dtype_reference",
         "dtype_target", "measured", "judgement", "reason")  # fmt: skip
WHOLE = ("rank", "step", "id_reference", "id_target", "value_reference", "value_target", "mismatched",
         "not_finite_reference", "not_finite_target")  # fmt: skip
SHAPES = ("shape_reference", "shape_target")


@dataclass(frozen=True, slots=True)
class Names:
    """What the made run calls its things; tests put markup here."""

    model: str = "model"
    function: str = "torch.nn.functional"
    sentence: str = "{call} in {module} makes an error of 0.5 out of 1e-7."
    reference: str = "runs/ref"
    target: str = "runs/target"


def layers_for(tensors: int, *, steps: int) -> int:
    """How many layers give about that many tensors."""
    return max(FAULTY_LAYER + 1, round(tensors / steps / ROWS_PER_LAYER))


def write_result(
    out: Path, *, layers: int, steps: int = 1, names: Names | None = None, faulty: bool = True
) -> dict[str, Any]:
    """Write summary.json, plan.json and pairs.parquet; give the summary."""
    names = names or Names()
    out.mkdir(parents=True, exist_ok=True)
    made = _Run(names, faulty=faulty)
    for step in range(steps):
        made.add_step(step, layers)
    pairs = made.table()
    summary = _summary(pairs, names, steps, faulty=faulty)
    pairs.write_parquet(out / "pairs.parquet")
    (out / "plan.json").write_text(json.dumps(_plan(names)), encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return summary


@dataclass(slots=True)
class _Run:
    """Rows of pairs, in execution order."""

    names: Names
    faulty: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0
    values: int = 0
    counted: dict[tuple[int, str, str], int] = field(default_factory=dict)

    def add_step(self, step: int, layers: int) -> None:
        forwards = [
            (layer, f"{self.names.model}.blocks.{layer}.{part}", op)
            for layer in range(layers)
            for part, ops in (("attention", OPS), ("mlp", OPS_MLP))
            for op in ops
        ]
        value = self._value()
        for layer, module, op in forwards:
            value = self._call(step, "forward", layer, module, op, value)
        for layer, module, op in reversed(forwards):
            value = self._call(step, "backward", layer, module, op, value)
        self._update(step, layers)

    def _call(self, step: int, phase: str, layer: int, module: str, op: str, value: int) -> int:
        out, weight = self._value(), self._value()
        ins = ("input", "parameter", "output") if phase == "forward" else ("grad_output", "gradient", "grad_input")
        places = ("args.0", "weight", "output.0") if phase == "forward" else ("output.0", "weight", "args.0")
        call = self._name(step, phase, op)
        made = self.faulty and step == 0 and phase == "forward" and layer == FAULTY_LAYER and op == "gelu"
        after = self.faulty and (step > 0 or phase == "backward" or layer > FAULTY_LAYER)
        kind = "api" if phase == "forward" else "backward"
        for role, place, number in zip(ins, places, (value, weight, out), strict=True):
            judgement = "made_here" if made and role == "output" else "inherited" if after else "rounding"
            self._row(step, phase, kind, op, module, call, role, place, number, judgement)
        self.calls += 1
        return out

    def _update(self, step: int, layers: int) -> None:
        for layer in range(layers):
            for role in ("gradient", "parameter", "parameter_after", "state_after"):
                place = f"{self.names.model}.blocks.{layer}.mlp.weight"
                judgement = "inherited" if self.faulty else "identical"
                self._row(step, "update", "optimizer", "AdamW", None, "AdamW.0", role, place, self._value(), judgement)
        self.calls += 1

    def _row(
        self, step: int, phase: str, kind: str, op: str, module: str | None, call: str, role: str, place: str,
        value: int, judgement: str,
    ) -> None:  # fmt: skip
        self.rows.append(
            {"rank": 0, "step": step, "phase": phase, "kind": kind, "op": f"{self.names.function}.{op}",
             "module": module, "call_reference": call, "call_target": call, "id_reference": self.calls,
             "id_target": self.calls, "role": role, "place": place, "value_reference": value, "value_target": value,
             "judgement": judgement}
        )  # fmt: skip

    def _name(self, step: int, phase: str, op: str) -> str:
        key = (step, phase, op)
        self.counted[key] = self.counted.get(key, -1) + 1
        return f"{self.names.function}.{op}.{self.counted[key]}"

    def _value(self) -> int:
        self.values += 1
        return self.values

    def table(self) -> pl.DataFrame:
        """With measures that compress as badly as real ones."""
        numbers = np.random.default_rng(0)
        table = pl.DataFrame(self.rows, infer_schema_length=None)
        sizes = {"identical": 0.0, "rounding": 1e-7, "inherited": 1e-3, "made_here": 0.5, None: 0.0}
        scale = np.array([sizes[word] for word in table["judgement"]])
        columns = [pl.Series("error", scale * np.exp(numbers.normal(size=table.height)))]
        for name in PAIR_COLUMNS:
            if name not in table.columns and name not in (*TEXTS, *WHOLE, *SHAPES, "error"):
                columns.append(pl.Series(name, np.exp(numbers.normal(size=table.height)) * np.maximum(scale, 1e-3)))
        texts = {"dtype_reference": "float32", "dtype_target": "bfloat16", "measured": "sketch"}
        shape = pl.Series("shape", [[8, 128, 768]] * table.height)
        whole = [pl.lit(0).alias(name) for name in WHOLE if name not in table.columns]
        return table.with_columns(
            *columns, *whole, *(pl.lit(text).alias(name) for name, text in texts.items()),
            *(shape.alias(name) for name in SHAPES), pl.lit(None, pl.String).alias("reason"),
        ).select(list(PAIR_COLUMNS))  # fmt: skip


def _summary(pairs: pl.DataFrame, names: Names, steps: int, *, faulty: bool) -> dict[str, Any]:
    judged = dict(pairs["judgement"].value_counts().iter_rows())
    words = ("identical", "rounding", "inherited", "made_here", "after_choice")
    calls = pairs["id_target"].n_unique()
    entries = list(_findings(pairs, names)) if faulty else []
    return {
        "schema": 1,
        "command": "compare",
        "verdict": "diverged" if faulty else "agree",
        "findings": entries,
        "notes": [],
        "counts": {
            "calls_reference": calls + 1, "calls_target": calls + 1, "matched": calls,
            "unmatched_reference": 1, "unmatched_target": 1, "tensors_compared": pairs.height,
            **{word: judged.get(word, 0) for word in words},
        },
        "reference": names.reference,
        "target": names.target,
        "scope": {"ranks": [0], "steps": list(range(steps)), "levels": {"reference": "api", "target": "api"},
                  "measured": {"sketch": pairs.height}, "not_compared": [], "standard": "rounding"},
        "anchor": [{"what": "inputs", "compared": 1, "identical": 1, "worst": None}],
        "neighbours": [_neighbour(entry) for entry in entries],
        "advice": [{"kind": "raise_precision", "subject": entry["call"], "sentence": f"Look at {entry['call']}."}
                   for entry in entries],
        "missing": [],
        "ledger": None,
    }  # fmt: skip


def _findings(pairs: pl.DataFrame, names: Names) -> Iterator[dict[str, Any]]:
    born = pairs.filter(pl.col("judgement") == "made_here").row(0, named=True)
    evidence = {
        "measured": "sketch", "error_in": 1e-7, "error_out": 0.5, "expected": 4e-7, "dtype": "bfloat16", "gain": 5e6,
        "arguments": [{"place": "kwargs.approximate", "reference": "'none'", "target": "'tanh'"}],
    }  # fmt: skip
    place = {name: born[name] for name in ("rank", "step", "phase", "op", "module")}
    yield {
        "kind": "computation", **place, "call": born["call_target"], "tensor": born["place"], "source": "model.py:57",
        "evidence": evidence, "next": f"ulpscope show {names.target} {born['call_target']}",
        "sentence": names.sentence.format(call=born["call_target"], module=born["module"]),
    }  # fmt: skip


def _neighbour(entry: dict[str, Any]) -> dict[str, Any]:
    place = {name: entry[name] for name in ("call", "op", "module")}
    return {"nearness": "here", **place, "error_in": 1e-7, "error_out": 0.5, "judgement": "made_here"}


def _plan(names: Names) -> dict[str, Any]:
    lone = {"id": 0, "step": 0, "name": f"{names.function}.silu.0", "module": f"{names.model}.blocks.0.mlp"}
    sides = {f"unmatched_{side}": [{**lone, "phase": "forward"}] for side in ("reference", "target")}
    return {"schema": 1, "steps": [0], "ranks": [{"rank": 0, "modules": {}, "pairs": {}, "replaced": [], **sides}]}
