/**
 * A measure over modules, steps and ranks: a heat map, and the trend of the module that is chosen in it.
 * @module heat_map
 */
import { el, fill, visible } from "dom";
import { cellsOf, deepest, distinct, OUTSIDE } from "map_cells";
import { measuresOf } from "map_measures";
import { errorText } from "numbers";
import { escaped, keepSize, plotly } from "plotting";
import { color, plotConfig, plotLayout } from "theme";

const ROW_HEIGHT = 18;
const LONGEST_LABEL = 48;
const USUAL_DEPTH = 3;

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { store, word } = context;
  const { table, measures } = measuresOf(context.content);
  const bar = el("div", { class: "map-bar" });
  const map = el("div", { class: "map-plot", tabindex: "0", role: "application", "aria-label": word("map.keys") });
  const status = el("p", { class: "map-status", "aria-live": "polite" });
  const trend = el("div", { class: "map-trend" });
  const element = el("div", { class: "map" }, bar, el("section", { class: "card" }, map), status, el("section", { class: "card" }, trend));
  /** @type {import("map_cells").Cells | null} */
  let cells = null;

  const choices = () => chosen(store.get(), table, measures);

  function draw() {
    const wanted = choices();
    fill(bar, controls(context, table, measures, wanted));
    cells = cellsOf(table, wanted);
    drawMap(map, cells, wanted, word, choose);
    mark();
  }

  /** @param {number} line @param {number} column */
  function choose(line, column) {
    if (cells === null) return;
    store.set({ "map.module": cells.modules[line], "map.column": cells.columns[column] });
    const row = cells.rows[line][column];
    if (context.content.kind === "compare" && row >= 0) context.select(row);
  }

  function place() {
    const state = store.get();
    if (cells === null || !cells.modules.length) return null;
    const line = cells.modules.indexOf(state["map.module"]);
    if (line < 0) return worstCell(cells, choices().measure);
    return { line, column: Math.max(0, cells.columns.indexOf(state["map.column"])) };
  }

  function mark() {
    const at = place();
    fill(status, at === null ? word("map.empty") : told(context, /** @type {any} */ (cells), at, choices()));
    if (at === null) return;
    drawMark(map, at);
    drawTrend(trend, table, choices(), /** @type {any} */ (cells).modules[at.line], word);
  }

  map.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const at = place();
    if (step === undefined || at === null || cells === null) return;
    event.preventDefault();
    choose(clamp(at.line + step[0], cells.modules.length), clamp(at.column + step[1], cells.columns.length));
  });
  [map, trend].forEach(keepSize);
  store.subscribe(["map.measure", "map.across", "map.only", "map.depth", "map.what"], draw);
  store.subscribe(["map.module", "map.column"], mark);
  return { element, show: draw };
}

/** Where one looks first. @param {import("map_cells").Cells} cells @param {import("map_measures").Measure} measure */
function worstCell({ values }, { together }) {
  const sign = together === "smallest" ? -1 : 1;
  let worst = { line: 0, column: 0 };
  const at = (/** @type {{line: number, column: number}} */ { line, column }) => values[line][column] * sign;
  values.forEach((numbers, line) =>
    numbers.forEach((value, column) => {
      if (value * sign > at(worst) || Number.isNaN(at(worst))) worst = { line, column };
    }),
  );
  return worst;
}

/** @param {number} number @param {number} count */
function clamp(number, count) {
  return Math.min(Math.max(number, 0), count - 1);
}

/**
 * What is to be shown; the address may say anything.
 * @param {any} state @param {import("data").Table} table @param {import("map_measures").Measure[]} measures
 * @returns {import("map_cells").Wanted}
 */
function chosen(state, table, measures) {
  const several = (/** @type {string} */ name) => distinct(table, name).length > 1;
  const across = ["step", "rank"].includes(state["map.across"]) ? state["map.across"] : several("step") || !several("rank") ? "step" : "rank";
  const others = distinct(table, across === "step" ? "rank" : "step");
  const kinds = table.has("what") ? table.words("what") : [];
  return {
    measure: measures.find(({ name }) => name === state["map.measure"]) ?? measures[0],
    across,
    only: others.includes(state["map.only"]) ? state["map.only"] : null,
    depth: Math.min(Math.max(1, Number(state["map.depth"]) || USUAL_DEPTH), deepest(table)),
    what: kinds.length ? (kinds.includes(state["map.what"]) ? state["map.what"] : kinds[0]) : null,
  };
}

/** @param {import("views").Context} context @param {import("data").Table} table @param {import("map_measures").Measure[]} measures @param {import("map_cells").Wanted} wanted */
function controls({ store, word }, table, measures, wanted) {
  const other = wanted.across === "step" ? "rank" : "step";
  const numbers = distinct(table, other);
  const depths = Array.from({ length: deepest(table) }, (_, at) => [String(at + 1), String(at + 1)]);
  const set = (/** @type {string} */ key) => (/** @type {any} */ value) => store.set({ [key]: value });
  return [
    picker(word("map.measure"), measures.map(({ name }) => [name, word(`measure.${name}`)]), wanted.measure.name, set("map.measure")),
    wanted.what === null ? null : picker(word("map.what"), table.words("what").map((name) => [name, word(`what.${name}`)]), wanted.what, set("map.what")),
    picker(word("map.across"), ["step", "rank"].map((name) => [name, word(`map.${name}`)]), wanted.across, set("map.across")),
    numbers.length < 2
      ? null
      : picker(word(`map.only.${other}`), [["", word("map.all")], ...numbers.map((number) => [String(number), String(number)])], wanted.only === null ? "" : String(wanted.only), (text) =>
          store.set({ "map.only": text === "" ? null : Number(text) }),
        ),
    depths.length < 2 ? null : picker(word("map.depth"), depths, String(wanted.depth), (text) => store.set({ "map.depth": Number(text) })),
  ];
}

/** @param {string} label @param {string[][]} options @param {string} value @param {(value: string) => void} change */
function picker(label, options, value, change) {
  const list = /** @type {HTMLSelectElement} */ (
    el("select", { on: { change: () => change(list.value) } }, options.map(([name, text]) => el("option", { value: name, selected: name === value }, text)))
  );
  return el("label", {}, label, " ", list);
}

/** @param {string} module @param {import("views").Context["word"]} word */
function label(module, word) {
  const name = module === OUTSIDE ? word("map.outside") : visible(module);
  return name.length > LONGEST_LABEL ? `…${name.slice(1 - LONGEST_LABEL)}` : name;
}

/** @param {any} node @param {import("map_cells").Cells} cells @param {import("map_cells").Wanted} wanted @param {import("views").Context["word"]} word @param {(line: number, column: number) => void} choose */
async function drawMap(node, cells, wanted, word, choose) {
  const Plotly = await plotly();
  const { measure } = wanted;
  const shade = (/** @type {number} */ value) => (!measure.log ? value : value > 0 ? Math.log10(value) : NaN);
  const layout = plotLayout();
  const shades = cells.values.map((line) => Array.from(line, (value) => finite(shade(value))));
  const data = {
    type: "heatmap",
    z: shades,
    x: cells.columns.map((_, at) => at),
    y: cells.modules.map((_, at) => at),
    text: cells.values.map((line) => Array.from(line, (value) => errorText(value))),
    texttemplate: cells.columns.length <= 12 && cells.modules.length <= 80 ? "%{text}" : undefined,
    hoverinfo: "text",
    colorscale: [[0, color("map-low")], [0.5, color("map-middle")], [1, color("map-high")]],
    reversescale: measure.together === "smallest",
    colorbar: { title: { text: word(`measure.${measure.name}`), side: "right" }, thickness: 12, ...scaleTicks(shades.flat(), measure.log) },
    xgap: 1,
    ygap: 1,
  };
  layout.height = Math.max(160, cells.modules.length * ROW_HEIGHT + 70);
  layout.xaxis = { ...layout.xaxis, title: { text: word(`map.${wanted.across}`) }, tickvals: ticks(cells.columns.length), ticktext: ticks(cells.columns.length).map((at) => String(cells.columns[at])), fixedrange: false };
  layout.yaxis = { ...layout.yaxis, autorange: "reversed", tickvals: data.y, ticktext: cells.modules.map((module) => escaped(label(module, word))) };
  await Plotly.react(node, [data], layout, plotConfig());
  node.removeAllListeners?.("plotly_click");
  node.on("plotly_click", (/** @type {any} */ event) => choose(event.points[0].y, event.points[0].x));
}

/** Five numbers along the colours. @param {(number | null)[]} shades @param {boolean} log */
function scaleTicks(shades, log) {
  const known = /** @type {number[]} */ (shades.filter((shade) => shade !== null));
  const low = known.reduce((least, shade) => Math.min(least, shade), Infinity);
  const high = known.reduce((most, shade) => Math.max(most, shade), -Infinity);
  if (!(high > low)) return { tickvals: known.slice(0, 1), ticktext: known.slice(0, 1).map((shade) => errorText(log ? 10 ** shade : shade)) };
  const tickvals = [0, 0.25, 0.5, 0.75, 1].map((part) => low + part * (high - low));
  return { tickvals, ticktext: tickvals.map((shade) => errorText(log ? 10 ** shade : shade)) };
}

/** A number that a colour can be found for. @param {number} value */
function finite(value) {
  return Number.isFinite(value) ? value : null;
}

/** At most some thirty places among so many. @param {number} count */
function ticks(count) {
  const step = Math.max(1, Math.ceil(count / 30));
  return Array.from({ length: Math.ceil(count / step) }, (_, at) => at * step);
}

/** A frame around the chosen cell. @param {any} node @param {{line: number, column: number}} at */
async function drawMark(node, { line, column }) {
  const Plotly = await plotly();
  if (!node.data) return;
  const shape = { type: "rect", x0: column - 0.5, x1: column + 0.5, y0: line - 0.5, y1: line + 0.5, line: { color: color("text"), width: 2 } };
  await Plotly.relayout(node, { shapes: [shape] });
}

/** @param {import("views").Context} context @param {import("map_cells").Cells} cells @param {{line: number, column: number}} at @param {import("map_cells").Wanted} wanted */
function told({ word }, cells, { line, column }, wanted) {
  return word("map.cell", {
    module: cells.modules[line] === OUTSIDE ? word("map.outside") : cells.modules[line],
    across: word(`map.${wanted.across}`),
    column: String(cells.columns[column]),
    measure: word(`measure.${wanted.measure.name}`),
    value: errorText(cells.values[line][column]),
  });
}

/** One line a rank over the steps (or a step over the ranks). @param {any} node @param {import("data").Table} table @param {import("map_cells").Wanted} wanted @param {string} module @param {import("views").Context["word"]} word */
async function drawTrend(node, table, wanted, module, word) {
  const Plotly = await plotly();
  const other = wanted.across === "step" ? "rank" : "step";
  const several = wanted.only === null ? distinct(table, other).slice(0, 64) : [wanted.only];
  const traces = several.flatMap((number) => {
    const cells = cellsOf(table, { ...wanted, only: several.length > 1 || wanted.only !== null ? number : null }, module);
    const line = cells.modules.indexOf(module);
    if (line < 0) return [];
    const y = Array.from(cells.values[line], (value) => (wanted.measure.log && value <= 0 ? null : finite(value)));
    return [{ type: "scatter", mode: "lines+markers", x: cells.columns, y, name: `${word(`map.${other}`)} ${number}`, marker: { size: 5 } }];
  });
  const layout = plotLayout();
  layout.height = 240;
  layout.showlegend = traces.length > 1;
  layout.title = { text: escaped(label(module, word)), font: { size: 13 }, x: 0 };
  layout.margin.t = 30;
  const columns = distinct(table, wanted.across);
  layout.xaxis = { ...layout.xaxis, title: { text: word(`map.${wanted.across}`) }, tickvals: ticks(columns.length).map((at) => columns[at]) };
  layout.yaxis = { ...layout.yaxis, type: wanted.measure.log ? "log" : "linear", exponentformat: "power", title: { text: word(`measure.${wanted.measure.name}`), standoff: 12 } };
  await Plotly.react(node, traces, layout, plotConfig());
}
