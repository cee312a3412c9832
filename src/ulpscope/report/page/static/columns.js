/**
 * The columns of the table: those that say where a tensor is, and the measures that are chosen.
 * @module columns
 */
import { judgementOf, shownNumber, shownText } from "calls";
import { el } from "dom";
import { errorText, valueText } from "numbers";

/**
 * @typedef {{name: string, label: string, width: string, numeric: boolean,
 *   text: (row: number) => string, full: (row: number) => string}} ShownColumn
 */

const PLACES = {
  rank: "52px",
  step: "52px",
  phase: "84px",
  call_target: "minmax(150px, 3fr)",
  place: "minmax(100px, 2fr)",
  judgement: "124px",
};
/** Behind the measures. */
const MORE_PLACES = {
  module: "minmax(130px, 3fr)",
  role: "118px",
  dtype_target: "78px",
  shape_target: "104px",
};
const WIDTHS = { ...PLACES, ...MORE_PLACES };
const ERRORS = ["error", "error_in", "expected"];
const METRICS = [
  ...ERRORS,
  "cosine",
  "distance",
  "relative_distance",
  "max_abs",
  "max_rel",
  "mean_rel",
  "accumulated_rel",
  "rmse",
  "mae",
  "max_ulp",
  "mean_ulp",
  "kl_divergence",
  "within_thousandth",
  "within_five_thousandths",
  "mismatched",
  "norm_reference",
  "norm_target",
  "min_reference",
  "min_target",
  "max_reference",
  "max_target",
  "mean_reference",
  "mean_target",
  "std_reference",
  "std_target",
  "not_finite_reference",
  "not_finite_target",
];
const TEXTS = ["call_reference", "dtype_reference", "shape_reference", "op", "kind", "measured", "reason"];

/** A long name without what all share. @param {string} name */
export function shortName(name) {
  return name.replace(/^torch\.(nn\.functional\.|nn\.modules\.\w+\.|optim\.\w+\.)?(?=.)/, "");
}

/** @param {import("views").Context} context @returns {ShownColumn[]} */
export function columnsShown(context) {
  const { content } = context;
  const { pairs } = content.tables;
  const { ranks, steps } = content.summary.scope;
  const several = { rank: ranks.length > 1, step: steps.length > 1, judgement: true };
  const isOffered = (/** @type {string} */ name) => several[/** @type {"rank"} */ (name)] ?? pairs.has(name);
  const names = [...Object.keys(PLACES), ...chosen(context), ...Object.keys(MORE_PLACES)];
  return names.filter(isOffered).map((name) => column(context, name));
}

/** Columns beside the usual ones that may be chosen. @param {import("data").Table} pairs */
function choosable(pairs) {
  return [...METRICS, ...TEXTS].filter((name) => pairs.has(name));
}

/** @param {import("views").Context} context @returns {string[]} */
function chosen({ content, store }) {
  const { metrics } = store.get();
  const there = choosable(content.tables.pairs);
  return Array.isArray(metrics)
    ? there.filter((name) => metrics.includes(name))
    : there.filter((name) => ERRORS.includes(name));
}

/** @param {import("views").Context} context @param {string} name @returns {ShownColumn} */
function column({ content, word }, name) {
  const { pairs } = content.tables;
  const numeric = !["words", "empty"].includes(pairs.columns[name]?.type);
  const full = (/** @type {number} */ row) => fullText(pairs, name, row, word);
  return {
    name,
    label: word(`column.${name}`),
    width: WIDTHS[/** @type {"rank"} */ (name)] ?? (numeric ? "minmax(84px, 1fr)" : "minmax(110px, 1fr)"),
    numeric,
    full,
    text: (row) =>
      ERRORS.includes(name)
        ? errorText(shownNumber(pairs, name, row))
        : name.startsWith("call_")
          ? shortName(full(row))
          : full(row),
  };
}

/**
 * @param {import("data").Table} pairs @param {string} name @param {number} row
 * @param {import("views").Context["word"]} word
 */
function fullText(pairs, name, row, word) {
  if (name === "judgement") return word(`judgement.${judgementOf(pairs, row)}`);
  const { type } = pairs.columns[name];
  if (type !== "words") return valueText(shownNumber(pairs, name, row));
  return shownText(pairs, name, row, word) ?? "";
}

/** The choice of measures. @param {import("views").Context} context */
export function metricChoice(context) {
  const { content, store, word } = context;
  const boxes = choosable(content.tables.pairs).map((name) => {
    const box = /** @type {HTMLInputElement} */ (
      el("input", { type: "checkbox", name, checked: chosen(context).includes(name) })
    );
    box.addEventListener("change", () => {
      const others = chosen(context).filter((other) => other !== name);
      store.set({ metrics: box.checked ? [...others, name] : others });
    });
    return el("label", {}, box, " ", word(`column.${name}`));
  });
  return el(
    "details",
    { class: "popup" },
    el("summary", {}, word("table.columns")),
    el("div", { class: "choices" }, boxes),
  );
}
