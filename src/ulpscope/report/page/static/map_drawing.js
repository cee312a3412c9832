/**
 * The heat map and the trend of one of its lines, as charts.
 * @module map_drawing
 */
import { visible } from "dom";
import { OUTSIDE, distinct, otherThan, trendsOf } from "map_cells";
import { errorText } from "numbers";
import { escaped, plotly } from "plotting";
import { color, plotConfig, plotLayout } from "theme";

/**
 * @typedef {import("map_cells").Wanted} Wanted
 * @typedef {import("views").Context["word"]} Word
 */

/** A line's height where each has its name; more lines are lower, and some of them have names. */
const ROW_HEIGHT = 18;
const [MOST_NAMED, SOME_NAMED, LEAST_HEIGHT] = [120, 50, 5];
const LONGEST_LABEL = 48;
const LETTER_WIDTH = 7;
/** Above and below the lines, in pixels. */
const MARGINS = 70;
/** More cells than this have no room for their numbers. */
const [MOST_WITH_TEXT, LINES_WITH_TEXT] = [12, 80];
const MOST_TICKS = 30;
const MOST_TRENDS = 64;
/** The bar of colours is at the top, where it is in sight beside many lines, and no longer than this. */
const LONGEST_BAR = 260;
/** How far zero and infinity lie beyond the other colours, of their span. */
const BEYOND = 0.12;

/** The name of a line. @param {string} module @param {Word} word */
export function lineName(module, word) {
  return module === OUTSIDE ? word("map.outside") : module;
}

/** @param {string} module @param {Word} word */
function label(module, word) {
  const name = visible(lineName(module, word));
  return escaped(name.length > LONGEST_LABEL ? `…${name.slice(1 - LONGEST_LABEL)}` : name);
}

/** What a cell holds. @param {number} value @param {Word} word */
export function cellText(value, word) {
  return value === Infinity ? word("run.beyond") : errorText(value);
}

/** @param {HTMLElement} node @param {import("map_cells").Cells} cells @param {Wanted} wanted @param {Word} word */
export async function drawMap(node, cells, wanted, word) {
  const Plotly = await plotly();
  const { modules, columns, values } = cells;
  const { measure } = wanted;
  const scale = colourScale(values, measure.log, word);
  const layout = plotLayout();
  const high = Math.max(LEAST_HEIGHT, Math.min(ROW_HEIGHT, (ROW_HEIGHT * MOST_NAMED) / modules.length));
  const height = Math.max(160, modules.length * high + MARGINS);
  const hasText = columns.length <= MOST_WITH_TEXT && modules.length <= LINES_WITH_TEXT;
  const data = {
    type: "heatmap",
    z: values.map((line) => Array.from(line, scale.shade)),
    x: columns.map((_, at) => at),
    y: modules.map((_, at) => at),
    text: hasText ? values.map((line) => Array.from(line, (value) => cellText(value, word))) : undefined,
    texttemplate: hasText ? "%{text}" : undefined,
    hoverinfo: "none",
    colorscale: [[0, color("map-low")], [0.5, color("map-middle")], [1, color("map-high")]],
    reversescale: measure.together === "smallest",
    zmin: scale.low,
    zmax: scale.high,
    colorbar: {
      title: { text: word(`measure.${measure.name}`), side: "right" },
      thickness: 12,
      lenmode: "pixels",
      len: Math.min(LONGEST_BAR, height - MARGINS),
      y: 1,
      yanchor: "top",
      tickvals: scale.ticks.map(([shade]) => shade),
      ticktext: scale.ticks.map(([, text]) => text),
    },
    xgap: 1,
    ygap: modules.length > MOST_NAMED ? 0 : 1,
  };
  const shown = ticks(columns.length, MOST_TICKS);
  const named = ticks(modules.length, modules.length > MOST_NAMED ? SOME_NAMED : MOST_NAMED);
  const names = named.map((at) => label(modules[at], word));
  // The place has the height, not the layout: the library forgets the latter as soon as the window changes.
  node.style.height = `${height}px`;
  // The library finds room for names by drawing all several times, which would take seconds.
  layout.margin.l = 24 + LETTER_WIDTH * names.reduce((most, name) => Math.max(most, name.length), 4);
  layout.xaxis = {
    ...layout.xaxis,
    automargin: false,
    title: { text: word(`map.${wanted.across}`) },
    tickvals: shown,
    ticktext: shown.map((at) => String(columns[at])),
  };
  layout.yaxis = {
    ...layout.yaxis,
    automargin: false,
    autorange: "reversed",
    tickvals: named,
    ticktext: names,
  };
  await Plotly.react(node, [data], layout, plotConfig());
}

/**
 * Which number has which colour. On a logarithmic scale zero lies below all others; infinity lies above them on any.
 * @param {Float64Array[]} values @param {boolean} log @param {Word} word
 * @returns {{shade: (value: number) => number | null, low: number, high: number, ticks: [number, string][]}}
 */
function colourScale(values, log, word) {
  const place = (/** @type {number} */ value) => (log ? Math.log10(value) : value);
  let [low, high, hasZero, hasMore] = [Infinity, -Infinity, false, false];
  for (const line of values) {
    for (const value of line) {
      if (log && value === 0) hasZero = true;
      else if (value === Infinity) hasMore = true;
      else if (Number.isFinite(value)) [low, high] = [Math.min(low, place(value)), Math.max(high, place(value))];
    }
  }
  const known = low <= high;
  if (!known) [low, high] = [0, 0];
  const beyond = BEYOND * (high - low || 1);
  const parts = high > low ? [0, 0.25, 0.5, 0.75, 1] : known ? [0] : [];
  const middle = parts.map((part) => low + part * (high - low));
  const [zero, more] = [low - beyond, high + beyond];
  return {
    shade: (value) => (value === Infinity ? more : log && value === 0 ? zero : finite(place(value))),
    low: hasZero || !(high > low) ? zero : low,
    high: hasMore || !(high > low) ? more : high,
    ticks: [
      ...(hasZero ? [/** @type {[number, string]} */ ([zero, "0"])] : []),
      ...middle.map((at) => /** @type {[number, string]} */ ([at, errorText(log ? 10 ** at : at)])),
      ...(hasMore ? [/** @type {[number, string]} */ ([more, word("run.beyond")])] : []),
    ],
  };
}

/** A number that a chart can show. @param {number} value */
function finite(value) {
  return Number.isFinite(value) ? value : null;
}

/** At most some places among so many. @param {number} count @param {number} most */
function ticks(count, most) {
  const step = Math.max(1, Math.ceil(count / most));
  return Array.from({ length: Math.ceil(count / step) }, (_, at) => at * step);
}

/** A frame around the chosen cell. @param {any} node @param {{line: number, column: number}} at */
export async function drawMark(node, { line, column }) {
  const Plotly = await plotly();
  if (!node.data) return;
  const shape = {
    type: "rect",
    x0: column - 0.5,
    x1: column + 0.5,
    y0: line - 0.5,
    y1: line + 0.5,
    line: { color: color("text"), width: 2 },
  };
  await Plotly.relayout(node, { shapes: [shape] });
}

/** What stands where no number can be drawn. @param {number} x @param {Word} word */
function brokenMark(x, word) {
  return { x, y: 1, yref: "paper", text: word("run.beyond"), showarrow: false, font: { color: color("made-here") } };
}

/**
 * One line a rank over the steps (or a step over the ranks).
 * @param {HTMLElement} node @param {import("data").Table} table @param {Wanted} wanted @param {string} module
 * @param {Word} word
 */
export async function drawTrend(node, table, wanted, module, word) {
  const Plotly = await plotly();
  const { measure, across } = wanted;
  const columns = distinct(table, across);
  const trends = [...trendsOf(table, wanted, module)].slice(0, MOST_TRENDS);
  const lines = trends.map(([number, values]) => ({
    type: "scatter",
    mode: "lines+markers",
    x: columns,
    y: Array.from(values, (value) => (measure.log && value <= 0 ? null : finite(value))),
    name: `${word(`map.${otherThan(wanted)}`)} ${number}`,
    marker: { size: 5 },
  }));
  const broken = columns.filter((_, at) => trends.some(([, values]) => values[at] === Infinity));
  const layout = plotLayout();
  layout.annotations = broken.slice(0, MOST_TICKS).map((x) => brokenMark(x, word));
  layout.showlegend = lines.length > 1;
  layout.title = { text: label(module, word), font: { size: 13 }, x: 0 };
  layout.margin.t = 30;
  layout.xaxis = {
    ...layout.xaxis,
    title: { text: word(`map.${across}`) },
    tickvals: ticks(columns.length, MOST_TICKS).map((at) => columns[at]),
  };
  layout.yaxis = {
    ...layout.yaxis,
    type: measure.log ? "log" : "linear",
    exponentformat: "power",
    title: { text: word(`measure.${measure.name}`), standoff: 12 },
  };
  await Plotly.react(node, lines, layout, plotConfig());
}
