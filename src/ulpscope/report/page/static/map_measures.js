/**
 * What a heat map can show: how a number is taken from a row, and how several rows become one cell.
 * @module map_measures
 */

/**
 * @typedef {import("data").Table} Table
 * @typedef {{name: string, needs: string[], of: (table: Table) => (row: number) => number,
 *   together: "largest" | "smallest" | "sum", log: boolean}} Measure
 */

/** @param {string} column @returns {(table: Table) => (row: number) => number} */
function number(column) {
  return (table) => (row) => table.number(column, row);
}

/** @param {string} column @returns {(table: Table) => (row: number) => number} */
function size(column) {
  return (table) => (row) => Math.abs(table.number(column, row));
}

/** @param {string} one @param {string} other @returns {(table: Table) => (row: number) => number} */
function largerSize(one, other) {
  return (table) => (row) => Math.max(Math.abs(table.number(one, row)), Math.abs(table.number(other, row)));
}

/** How many times what rounding and the inputs explain. @param {Table} table */
function share(table) {
  return (/** @type {number} */ row) => {
    const expected = table.number("expected", row);
    return expected > 0 ? table.number("error", row) / expected : NaN;
  };
}

/** @param {Table} table */
function madeHere(table) {
  const code = table.words("judgement").indexOf("made_here");
  const codes = table.codes("judgement");
  return (/** @type {number} */ row) => (codes[row] === code ? 1 : 0);
}

/** @type {Measure[]} */
const OF_PAIRS = [
  { name: "error", needs: ["error"], of: number("error"), together: "largest", log: true },
  { name: "share", needs: ["error", "expected"], of: share, together: "largest", log: true },
  { name: "made_here", needs: ["judgement"], of: madeHere, together: "sum", log: false },
  { name: "max_abs", needs: ["max_abs"], of: number("max_abs"), together: "largest", log: true },
  { name: "max_ulp", needs: ["max_ulp"], of: number("max_ulp"), together: "largest", log: true },
  { name: "cosine", needs: ["cosine"], of: number("cosine"), together: "smallest", log: false },
  { name: "not_finite_target", needs: ["not_finite_target"], of: number("not_finite_target"), together: "sum", log: false },
  { name: "not_finite_reference", needs: ["not_finite_reference"], of: number("not_finite_reference"), together: "sum", log: false },
  { name: "norm_target", needs: ["norm_target"], of: number("norm_target"), together: "largest", log: true },
  { name: "norm_reference", needs: ["norm_reference"], of: number("norm_reference"), together: "largest", log: true },
  { name: "size_target", needs: ["min_target", "max_target"], of: largerSize("min_target", "max_target"), together: "largest", log: true },
  { name: "size_reference", needs: ["min_reference", "max_reference"], of: largerSize("min_reference", "max_reference"), together: "largest", log: true },
  { name: "mean_target", needs: ["mean_target"], of: size("mean_target"), together: "largest", log: true },
  { name: "mean_reference", needs: ["mean_reference"], of: size("mean_reference"), together: "largest", log: true },
];

/** @type {Measure[]} */
const OF_TRACE = [
  { name: "norm", needs: ["norm"], of: number("norm"), together: "largest", log: true },
  { name: "size", needs: ["size"], of: number("size"), together: "largest", log: true },
  { name: "mean", needs: ["mean"], of: number("mean"), together: "largest", log: true },
  { name: "nan", needs: ["nan"], of: number("nan"), together: "sum", log: false },
  { name: "inf", needs: ["inf"], of: number("inf"), together: "sum", log: false },
];

/** What can be shown of this content. @param {any} content @returns {{table: Table, measures: Measure[]}} */
export function measuresOf(content) {
  const [table, all] = content.kind === "trace" ? [content.tables.stats, OF_TRACE] : [content.tables.pairs, OF_PAIRS];
  return { table, measures: all.filter(({ needs }) => needs.every((name) => table.has(name))) };
}
