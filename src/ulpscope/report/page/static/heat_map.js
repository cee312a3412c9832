/**
 * A measure over modules, steps and ranks: a heat map, and the trend of the module that is chosen in it.
 * @module heat_map
 */
import { missing } from "answer_summary";
import { el, fill } from "dom";
import { cellsOf, deepest, distinct, otherThan, weightOf } from "map_cells";
import { cellText, drawMap, drawMark, drawTrend, lineName } from "map_drawing";
import { measuresOf } from "map_measures";
import { keepSize, listenToPoints } from "plotting";
import { createTip } from "tip";

/** @typedef {{line: number, column: number}} Cell */

const USUAL_DEPTH = 3;

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { store, word } = context;
  const { table, measures } = measuresOf(context.content);
  const status = el("p", { class: "map-status", "aria-live": "polite" });
  if (!measures.length) {
    fill(status, word("map.empty"));
    return { element: el("div", { class: "map" }, status, missing(context)) };
  }
  const bar = el("div", { class: "map-bar" });
  const map = el("div", { class: "map-plot", tabindex: "0", role: "application", "aria-label": word("map.keys") });
  const left = el("p", { class: "muted" });
  const trend = el("div", { class: "map-trend" });
  const tip = createTip();
  const element = el(
    "div",
    { class: "map" },
    bar,
    el("section", { class: "card" }, map, left, tip.element),
    status,
    el("section", { class: "card" }, trend),
    context.content.kind === "trace" ? missing(context) : null,
  );
  /** @type {import("map_cells").Cells} */
  let cells = { modules: [], columns: [], values: [], rows: [], left: 0 };
  let listens = false;

  const choices = () => chosen(store.get(), table, measures);

  function draw() {
    const wanted = choices();
    fill(bar, controls(context, table, measures, wanted));
    cells = cellsOf(table, wanted);
    fill(left, cells.left ? word("map.left", { shown: cells.modules.length, left: cells.left }) : "");
    drawMap(map, cells, wanted, word).then(listen);
    mark();
  }

  function listen() {
    if (listens) return;
    listens = true;
    const at = (/** @type {any} */ { points: [{ x, y }] }) => ({ line: y, column: x });
    listenToPoints(map, tip, { at, tell: (cell) => told(context, cells, cell, choices()), choose });
    keepSize(trend);
  }

  /** @param {Cell} cell */
  function choose({ line, column }) {
    store.set({ "map.module": cells.modules[line], "map.column": cells.columns[column] });
    const row = cells.rows[line][column];
    if (context.content.kind === "compare" && row >= 0) context.select(row);
  }

  function place() {
    const state = store.get();
    if (!cells.modules.length) return null;
    const line = cells.modules.indexOf(state["map.module"]);
    if (line < 0) return worstCell(cells, choices().measure);
    return { line, column: Math.max(0, cells.columns.indexOf(state["map.column"])) };
  }

  function mark() {
    const at = place();
    if (at === null) {
      fill(status, word("map.empty"));
      return;
    }
    const wanted = choices();
    fill(status, told(context, cells, at, wanted));
    drawMark(map, at);
    drawTrend(trend, table, wanted, cells.modules[at.line], word);
  }

  map.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const at = place();
    if (step === undefined || at === null) return;
    event.preventDefault();
    choose({
      line: clamp(at.line + step[0], cells.modules.length),
      column: clamp(at.column + step[1], cells.columns.length),
    });
  });
  store.subscribe(["map.measure", "map.across", "map.only", "map.depth", "map.what"], draw);
  store.subscribe(["map.module", "map.column"], mark);
  return { element, show: draw };
}

/** Where one looks first. @param {import("map_cells").Cells} cells @param {import("map_measures").Measure} measure */
function worstCell({ values }, measure) {
  const weights = values.map((line) => weightOf(line, measure));
  const line = weights.reduce((best, weight, at) => (weight > weights[best] ? at : best), 0);
  const column = values[line].findIndex((value) => Math.abs(value) === Math.abs(weights[line]));
  return { line, column: Math.max(0, column) };
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
  const usual = several("step") || !several("rank") ? "step" : "rank";
  const across = ["step", "rank"].includes(state["map.across"]) ? state["map.across"] : usual;
  const others = distinct(table, across === "step" ? "rank" : "step");
  const kinds = table.words("what");
  return {
    measure: measures.find(({ name }) => name === state["map.measure"]) ?? measures[0],
    across,
    only: others.includes(state["map.only"]) ? state["map.only"] : null,
    depth: Math.min(Math.max(1, Math.round(Number(state["map.depth"])) || USUAL_DEPTH), deepest(table)),
    what: kinds.includes(state["map.what"]) ? state["map.what"] : (kinds[0] ?? null),
  };
}

/**
 * @param {import("views").Context} context @param {import("data").Table} table
 * @param {import("map_measures").Measure[]} measures @param {import("map_cells").Wanted} wanted
 */
function controls({ store, word }, table, measures, wanted) {
  const other = otherThan(wanted);
  const numbers = distinct(table, other).map(String);
  const depths = Array.from({ length: deepest(table) }, (_, at) => String(at + 1));
  const kinds = table.words("what");
  const set = (/** @type {string} */ key) => (/** @type {any} */ value) => store.set({ [key]: value });
  const plain = (/** @type {string} */ name) => [name, name];
  const only = (/** @type {string} */ text) => store.set({ "map.only": text === "" ? null : Number(text) });
  return [
    picker(
      word("map.measure"),
      measures.map(({ name }) => [name, word(`measure.${name}`)]),
      wanted.measure.name,
      set("map.measure"),
    ),
    kinds.length > 0 &&
      picker(
        word("map.what"),
        kinds.map((name) => [name, word(`what.${name}`)]),
        String(wanted.what),
        set("map.what"),
      ),
    picker(
      word("map.across"),
      ["step", "rank"].map((name) => [name, word(`map.${name}`)]),
      wanted.across,
      set("map.across"),
    ),
    numbers.length > 1 &&
      picker(
        word(`map.only.${other}`),
        [["", word("map.all")], ...numbers.map(plain)],
        String(wanted.only ?? ""),
        only,
      ),
    depths.length > 1 &&
      picker(word("map.depth"), depths.map(plain), String(wanted.depth), (text) =>
        store.set({ "map.depth": Number(text) }),
      ),
  ];
}

/** @param {string} label @param {string[][]} options @param {string} value @param {(value: string) => void} change */
function picker(label, options, value, change) {
  const list = /** @type {HTMLSelectElement} */ (
    el(
      "select",
      { on: { change: () => change(list.value) } },
      options.map(([name, text]) => el("option", { value: name, selected: name === value }, text)),
    )
  );
  return el("label", {}, label, " ", list);
}

/**
 * @param {import("views").Context} context @param {import("map_cells").Cells} cells
 * @param {Cell} at @param {import("map_cells").Wanted} wanted
 */
function told({ word }, cells, { line, column }, wanted) {
  return word("map.cell", {
    module: lineName(cells.modules[line], word),
    across: word(`map.${wanted.across}`),
    column: String(cells.columns[column]),
    measure: word(`measure.${wanted.measure.name}`),
    value: cellText(cells.values[line][column], word),
  });
}
