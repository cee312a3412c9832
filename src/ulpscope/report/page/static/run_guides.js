/**
 * What lies behind the points: the rounding band, what is explained, phases and steps, axes.
 * @module run_guides
 */
import { answerPlace } from "lone_calls";
import { escaped } from "plotting";
import { PHASES, color, plotLayout } from "theme";

const BINS = 600;
const MOST_TICKS = 14;
const MOST_STEP_MARKS = 40;

/** @param {any} content @param {import("run_points").Heights} height @returns {any[]} */
export function guides(content, height) {
  const { pairs } = content.tables;
  const bins = binned(pairs.length);
  return [...band(content, bins, height), explained(pairs, bins, height), phases(pairs, bins)];
}

/** The run in pieces of equal length: where each begins. @param {number} length */
function binned(length) {
  const number = Math.max(1, Math.min(BINS, length));
  return Array.from({ length: number + 1 }, (_, at) => Math.round((at * length) / number));
}

/** The largest of a piece. @param {number[]} bins @param {(row: number) => number} value */
function largest(bins, value) {
  return bins.slice(0, -1).map((begin, at) => {
    let most = 0;
    for (let row = begin; row < bins[at + 1]; row++) {
      const number = value(row);
      if (number > most && number < Infinity) most = number;
    }
    return most;
  });
}

/** Heights of pieces as those of a line that has a step where each begins. @template T @param {T[]} tops */
function toTheEnd(tops) {
  return [...tops, tops[tops.length - 1]];
}

/**
 * What one rounding of the dtypes makes.
 * @param {any} content @param {number[]} bins @param {import("run_points").Heights} height
 */
function band({ tables, rounding }, bins, height) {
  const { pairs } = tables;
  const sides = ["dtype_reference", "dtype_target"].map((name) => ({
    codes: pairs.codes(name),
    sizes: pairs.words(name).map((/** @type {string} */ dtype) => rounding[dtype] ?? 0),
  }));
  const tops = largest(bins, (row) =>
    Math.max(...sides.map(({ codes, sizes }) => (codes[row] < 0 ? 0 : sizes[codes[row]]))),
  );
  const x = bins;
  const below = {
    type: "scatter",
    mode: "lines",
    x,
    y: x.map(() => height.zero / 3),
    line: { width: 0 },
    hoverinfo: "skip",
  };
  const above = {
    ...below,
    y: toTheEnd(tops.map((top) => Math.max(top, height.zero / 3))),
    line: { width: 0, shape: "hv" },
    fill: "tonexty",
    fillcolor: color("band"),
  };
  return [below, above];
}

/**
 * What rounding and inputs explain of outputs' errors.
 * @param {import("data").Table} pairs @param {number[]} bins @param {import("run_points").Heights} height
 */
function explained(pairs, bins, height) {
  const expected = pairs.columns.expected?.numbers;
  const tops = largest(bins, (row) => (expected ? expected[row] : 0));
  return {
    type: "scatter",
    mode: "lines",
    x: bins,
    y: toTheEnd(tops.map((top) => (top > height.zero ? Math.min(top, height.beyond) : null))),
    line: { width: 1, dash: "dot", color: color("muted"), shape: "hv" },
    connectgaps: false,
    hoverinfo: "skip",
  };
}

/** A strip that tells phases apart. @param {import("data").Table} pairs @param {number[]} bins */
function phases(pairs, bins) {
  const codes = pairs.codes("phase");
  const numbers = pairs.words("phase").map((word) => PHASES.indexOf(word));
  const z = bins.slice(0, -1).map((row) => (codes[row] < 0 ? null : numbers[codes[row]]));
  const colors = PHASES.map((phase) => color(`phase-${phase}`));
  const colorscale = colors.flatMap((each, at) => [
    [at / colors.length, each],
    [(at + 1) / colors.length, each],
  ]);
  return {
    type: "heatmap",
    x: bins,
    y: [0, 1],
    z: [z],
    yaxis: "y2",
    colorscale,
    zmin: -0.5,
    zmax: PHASES.length - 0.5,
    showscale: false,
    hoverinfo: "skip",
  };
}

/**
 * The whole run.
 * @param {any} content @param {import("run_points").Heights} height @param {import("views").Context["word"]} word
 */
export function wholeLayout(content, height, word) {
  const { pairs } = content.tables;
  const layout = plotLayout();
  const margin = Math.max(1, pairs.length * 0.01);
  const band = { ...layout.yaxis, domain: [0, 0.035], fixedrange: true, showticklabels: false, showgrid: false };
  return {
    ...layout,
    xaxis: {
      ...layout.xaxis,
      title: { text: word("run.order") },
      range: [-margin, pairs.length + margin],
      anchor: "y2",
      zeroline: false,
    },
    yaxis: {
      ...layout.yaxis,
      title: { text: word("run.error") },
      type: "log",
      range: [Math.log10(height.zero) - 0.4, Math.log10(height.beyond) + 0.3],
      domain: [0.06, 1],
      ...ticks(height, word),
    },
    yaxis2: { ...band, zeroline: false, ticks: "" },
    shapes: [...stepMarks(content), ...findingMark(content)],
    annotations: stepNames(content, word),
  };
}

/** A part of it: places in the run, then decades of error. @param {any} whole @param {any} range */
export function zoomed(whole, range) {
  const [left, right, low, high] = isRange(range) ? range : [...whole.xaxis.range, ...whole.yaxis.range];
  return { ...whole, xaxis: { ...whole.xaxis, range: [left, right] }, yaxis: { ...whole.yaxis, range: [low, high] } };
}

/** @param {any} range */
function isRange(range) {
  return Array.isArray(range) && range.length === 4 && range.every((number) => Number.isFinite(number));
}

/**
 * Powers of ten, not too many, zero and what is beyond measure.
 * @param {import("run_points").Heights} height @param {import("views").Context["word"]} word
 */
function ticks(height, word) {
  const [first, last] = [Math.round(Math.log10(height.zero)) + 1, Math.round(Math.log10(height.beyond)) - 1];
  const step = Math.max(1, Math.ceil((last - first) / MOST_TICKS));
  const powers = [];
  for (let power = last; power >= first; power -= step) powers.push(power);
  return {
    tickvals: [...powers.map((power) => 10 ** power), height.zero, height.beyond],
    ticktext: [
      ...powers.map((power) =>
        power >= -2 && power <= 2 ? String(10 ** power).replace(/^0\.0+1$/, "0.01") : `1e${power}`,
      ),
      word("run.zero"),
      word("run.beyond"),
    ],
  };
}

/** Where steps and ranks begin: the first row of each. @param {import("data").Table} pairs */
function beginnings(pairs) {
  const [ranks, steps] = ["rank", "step"].map((name) => pairs.columns[name]?.numbers ?? new Int32Array(pairs.length));
  const found = [];
  for (let row = 0; row < pairs.length; row++) {
    if (row === 0 || steps[row] !== steps[row - 1] || ranks[row] !== ranks[row - 1]) found.push(row);
  }
  return found.length <= MOST_STEP_MARKS ? found : [];
}

/** @param {any} content */
function stepMarks({ tables }) {
  return beginnings(tables.pairs)
    .slice(1)
    .map((row) => ({
      type: "line",
      x0: row,
      x1: row,
      y0: 0.06,
      y1: 1,
      yref: "paper",
      line: { color: color("line"), width: 1 },
      layer: "below",
    }));
}

/** @param {any} content @param {import("views").Context["word"]} word */
function stepNames({ tables, summary }, word) {
  const { pairs } = tables;
  const rows = beginnings(pairs);
  if (rows.length < 2) return [];
  const severalRanks = summary.scope.ranks.length > 1;
  return rows.map((row) => {
    const step = word("where.step", { step: String(pairs.number("step", row)) });
    const rank = word("where.rank", { rank: String(pairs.number("rank", row)) });
    const text = escaped(severalRanks ? `${rank}, ${step}` : step);
    return {
      x: row,
      y: 1,
      yref: "paper",
      text,
      showarrow: false,
      xanchor: "left",
      yanchor: "top",
      font: { size: 11, color: color("muted") },
    };
  });
}

/** @param {any} content */
function findingMark(content) {
  const row = answerPlace(content);
  if (row === null) return [];
  return [
    {
      type: "line",
      x0: row,
      x1: row,
      y0: 0,
      y1: 1,
      yref: "paper",
      line: { color: color("made-here"), width: 1.5, dash: "dash" },
    },
  ];
}
