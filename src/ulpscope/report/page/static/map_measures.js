/**
 * What a heat map can show: how a number is taken from a row, and how several rows become one cell.
 * @module map_measures
 */

import { errorsOf } from "calls";

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

/** @param {Table} table */
function error(table) {
  const errors = errorsOf(table);
  return (/** @type {number} */ row) => errors[row];
}

/**
 * A number of finite elements: infinite where there are nan beside them.
 * @param {string} column @returns {(table: Table) => (row: number) => number}
 */
function unlessNan(column) {
  return (table) => (row) => (table.number("nan", row) > 0 ? Infinity : table.number(column, row));
}

/** How many times what rounding and the inputs explain. @param {Table} table */
function share(table) {
  const errors = errorsOf(table);
  return (/** @type {number} */ row) => {
    const expected = table.number("expected", row);
    return expected > 0 ? errors[row] / expected : NaN;
  };
}

/** @param {Table} table */
function madeHere(table) {
  const code = table.words("judgement").indexOf("made_here");
  const codes = table.codes("judgement");
  return (/** @type {number} */ row) => (code >= 0 && codes[row] === code ? 1 : 0);
}

/**
 * @param {string} name also that of the column
 * @param {"largest" | "smallest" | "sum"} together @param {boolean} log
 * @returns {Measure}
 */
function plain(name, together, log) {
  return { name, needs: [name], of: number(name), together, log };
}

/** @param {"reference" | "target"} side @returns {Measure[]} */
function sizesOf(side) {
  const [min, max, mean] = [`min_${side}`, `max_${side}`, `mean_${side}`];
  return [
    plain(`not_finite_${side}`, "sum", false),
    plain(`norm_${side}`, "largest", true),
    { name: `size_${side}`, needs: [min, max], of: largerSize(min, max), together: "largest", log: true },
    { name: mean, needs: [mean], of: size(mean), together: "largest", log: true },
  ];
}

/** @type {Measure[]} */
const OF_PAIRS = [
  { name: "error", needs: ["error"], of: error, together: "largest", log: true },
  { name: "share", needs: ["error", "expected"], of: share, together: "largest", log: true },
  { name: "made_here", needs: ["judgement"], of: madeHere, together: "sum", log: false },
  plain("max_abs", "largest", true),
  plain("max_ulp", "largest", true),
  plain("cosine", "smallest", false),
  ...sizesOf("target"),
  ...sizesOf("reference"),
];

/** @type {Measure[]} */
const OF_TRACE = [
  ...["norm", "size", "mean"].map((name) => ({
    name,
    needs: [name],
    of: unlessNan(name),
    together: /** @type {const} */ ("largest"),
    log: true,
  })),
  plain("nan", "sum", false),
  plain("inf", "sum", false),
];

/** What can be shown of this content. @param {any} content @returns {{table: Table, measures: Measure[]}} */
export function measuresOf(content) {
  const [table, all] = content.kind === "trace" ? [content.tables.stats, OF_TRACE] : [content.tables.pairs, OF_PAIRS];
  return { table, measures: all.filter(({ needs }) => needs.every((name) => table.has(name))) };
}
