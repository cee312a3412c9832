/**
 * The points of the chart: a trace for each judgement, errors on a logarithmic scale.
 * @module run_points
 */
import { errorOf, errorsOf, judgementOf } from "calls";
import { hasWebgl } from "plotting";
import { JUDGEMENTS, SYMBOLS, color, judgementColor } from "theme";

/**
 * What stands where on the scale: zero has a line of its own below the smallest error, what cannot be measured one
 * above the largest.
 * @typedef {{zero: number, beyond: number, of: (error: number) => number}} Heights
 */

/**
 * @param {import("data").Table} pairs @param {Record<string, number>} rounding of one number, by dtype
 * @returns {Heights}
 */
export function heights(pairs, rounding) {
  let [least, most] = [Math.min(...Object.values(rounding), Infinity), 0];
  for (const error of errorsOf(pairs)) {
    if (error > 0 && error < least) least = error;
    if (error > most && error < Infinity) most = error;
  }
  least = Math.min(least, 1e-8);
  most = Math.max(most, 1e-2);
  const zero = 10 ** (Math.floor(Math.log10(Math.max(least, 1e-30))) - 1);
  const beyond = 10 ** (Math.ceil(Math.log10(most)) + 1);
  return {
    zero,
    beyond,
    of: (error) => (error === 0 ? zero : error > 0 && error < Infinity ? Math.max(error, zero) : beyond),
  };
}

/** How points are drawn, how many before they are thinned out, and what then counts as near, in pixels. */
const BY_WEBGL = { type: "scattergl", most: 12000, near: 3 };
const BY_SVG = { type: "scatter", most: 2000, near: 6 };
/** @type {typeof BY_WEBGL | null} */
let drawing = null;

function howDrawn() {
  drawing ??= hasWebgl() ? BY_WEBGL : BY_SVG;
  return drawing;
}

/**
 * What of the chart is in sight: places in the run, decades of error, and its size in pixels.
 * @typedef {{left: number, right: number, low: number, high: number, width: number, height: number}} Sight
 */

/**
 * @param {import("data").Table} pairs @param {Int32Array} rows @param {Heights} height @param {Sight} sight
 * @returns {{judgement: string, rows: Int32Array, total: number, plot: any}[]} the worst last: it is drawn above
 */
export function judgementTraces(pairs, rows, height, sight) {
  const codes = pairs.codes("judgement");
  const words = pairs.words("judgement");
  const errors = errorsOf(pairs);
  const high = (/** @type {number} */ row) => height.of(errors[row]);
  return JUDGEMENTS.filter((name) => words.includes(name))
    .reverse()
    .map((judgement) => {
      const code = words.indexOf(judgement);
      const all = rows.filter((row) => codes[row] === code);
      const mine = rows.length > howDrawn().most ? thinned(all, high, sight) : all;
      return {
        judgement,
        rows: mine,
        total: all.length,
        plot: points(judgement, mine, Float64Array.from(mine, high), rows.length),
      };
    });
}

/**
 * Of points that lie on each other one; none far out of sight.
 * @param {Int32Array} rows @param {(row: number) => number} high @param {Sight} sight
 */
function thinned(rows, high, sight) {
  const { near } = howDrawn();
  const [across, up] = [Math.ceil(sight.width / near), Math.ceil(sight.height / near)];
  // As much again on either side is there, for moving it.
  const taken = new Uint8Array(3 * across * up);
  return rows.filter((row) => {
    const x = Math.floor(across * (1 + (row - sight.left) / (sight.right - sight.left)));
    const share = (Math.log10(high(row)) - sight.low) / (sight.high - sight.low);
    if (x < 0 || x >= 3 * across || share < -0.2 || share > 1.2) return false;
    const cell = Math.max(0, Math.min(up - 1, Math.floor(up * share))) * 3 * across + x;
    if (taken[cell]) return false;
    taken[cell] = 1;
    return true;
  });
}

/** @param {string} judgement @param {Int32Array} x @param {Float64Array} y @param {number} total */
function points(judgement, x, y, total) {
  const size = (total > 50000 ? 4 : total > 5000 ? 5 : 6) + (judgement === "made_here" ? 4 : 0);
  return {
    type: howDrawn().type,
    mode: "markers",
    name: judgement,
    x,
    y,
    hoverinfo: "none",
    marker: {
      size,
      symbol: SYMBOLS[/** @type {"rounding"} */ (judgement)],
      color: judgementColor(judgement),
      opacity: judgement === "made_here" ? 1 : total > 20000 ? 0.55 : 0.8,
    },
  };
}

/**
 * A ring around the selected point.
 * @param {import("data").Table} pairs @param {number | null} row @param {Heights} height
 */
export function selectedTrace(pairs, row, height) {
  const drawn = row !== null && judgementOf(pairs, row) !== "not_compared";
  return {
    type: "scatter",
    mode: "markers",
    name: "selected",
    x: drawn ? [row] : [],
    y: drawn ? [height.of(errorOf(pairs, /** @type {number} */ (row)))] : [],
    hoverinfo: "skip",
    marker: { size: 16, symbol: "circle-open", color: color("text"), line: { width: 2.5 } },
  };
}
