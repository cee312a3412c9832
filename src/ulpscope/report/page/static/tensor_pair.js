/**
 * The selected pair of tensors element by element: from a server that has the saved data.
 * @module tensor_pair
 */
import { callName, shownText } from "calls";
import { commandLine } from "command";
import { selectedRow } from "details";
import { add, el, fill } from "dom";
import { rowOfFinding } from "lone_calls";
import { valueText } from "numbers";
import { ask, Refusal } from "tensor_asking";
import { concentration, createAxes } from "tensor_axes";
import { shareText } from "tensor_charts";
import { heatCard } from "tensor_heat";
import { errorsCard, valuesCard } from "tensor_histograms";
import { sliceCard } from "tensor_slice";
import { worstCard } from "tensor_worst";

const KINDS = ["dtype", "shape", "device", "trace"];
const STATS = ["min", "max", "mean", "norm", "nan", "pos_inf", "neg_inf", "zero", "subnormal"];

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { store, served } = context;
  const element = el("div", { class: "tensor" });
  let turn = 0;
  /** @type {number | null | undefined} */
  let drawn;

  async function draw() {
    const row = selectedRow(context);
    if (row === drawn || store.get().view !== "tensor_pair") return;
    drawn = row;
    const mine = ++turn;
    const wanted = () => mine === turn;
    if (!served) fill(element, howToServe(context));
    else if (row === null) fill(element, nothingSelected(context));
    else await drawPair(context, element, row, wanted);
  }

  store.subscribe(["selected"], draw);
  return { element, show: draw };
}

/**
 * @param {import("views").Context} context @param {HTMLElement} element @param {number} row
 * @param {() => boolean} wanted
 */
async function drawPair(context, element, row, wanted) {
  const { content, word } = context;
  const { pairs } = content.tables;
  const ids = ["rank", "value_reference", "value_target"].map((name) => pairs.number(name, row));
  const base = `pairs/${ids.join("/")}`;
  const bar = el("progress", { max: 1, value: 0, "aria-label": word("tensor.reading") });
  const title = head(context, row);
  try {
    if (!ids.every(Number.isInteger)) {
      throw new Refusal({ kind: "alone", what: word("tensor.problem.alone"), expected: "", next: "" });
    }
    const about = await ask(base, { wanted });
    if (!about) return;
    if (about.problem) {
      fill(element, title, problems(about).map((told) => problem(context, told)), stats(context, about.sides));
      return;
    }
    fill(element, title, el("div", { class: "card tensor-wait", role: "status" }, word("tensor.reading"), bar));
    const progress = (/** @type {number} */ share) => bar.setAttribute("value", String(share));
    const overview = await ask(`${base}/overview`, { wanted, progress });
    if (!overview || !wanted()) return;
    fill(element, title, cards(context, base, about, overview, wanted));
  } catch (error) {
    if (wanted()) fill(element, title, problem(context, toldOf(error)));
  }
}

/**
 * @param {import("views").Context} context @param {string} base @param {any} about @param {any} overview
 * @param {() => boolean} wanted
 */
function cards(context, base, about, overview, wanted) {
  const { word } = context;
  const axes = createAxes(context, about.shape, about.complex, overview);
  const failed = el("div", {});
  const grid = el("div", { class: "tensor-grid" });
  const asked = async (/** @type {string} */ path, /** @type {string} */ chart) => {
    const progress = (/** @type {number} */ share) => {
      const place = /** @type {HTMLElement | null} */ (grid.querySelector(`[data-chart=${chart}]`));
      if (place) place.dataset.wait = `${word("tensor.reading")} ${Math.round(100 * share)} %`;
    };
    try {
      return await ask(`${base}/${path}`, { wanted, progress });
    } catch (error) {
      fill(failed, problem(context, toldOf(error)));
      return null;
    }
  };
  const slice = sliceCard(context, axes, about.window, (query) => asked(`slice?${query}`, "slice"));
  const look = (/** @type {number} */ axis, /** @type {number} */ index) =>
    slice.look(axes.at().map((place, other) => (other === axis ? index : place)));
  const heat = (/** @type {number} */ rows, /** @type {number | null} */ columns) =>
    asked(columns === null ? `heat?rows=${rows}` : `heat?rows=${rows}&columns=${columns}`, "heat");
  add(
    grid,
    valuesCard(context, overview, () => asked("histogram", "values")),
    overview.different > 0 && [
      errorsCard(context, overview),
      heatCard(context, axes, overview, heat, look),
      worstCard(context, overview, (index) => slice.look(index)),
    ],
    slice.element,
  );
  return [sentence(context, axes, about, overview), failed, grid];
}

/**
 * What is said first: how many differ, and where the error sits.
 * @param {import("views").Context} context @param {import("tensor_axes").Axes} axes @param {any} about
 * @param {any} overview
 */
function sentence({ word }, axes, { sides }, overview) {
  const { different, elements, mismatched, axes: ranked } = overview;
  const counts = { different, elements, share: shareText(different / elements) };
  const parts = [word(different ? "tensor.differ" : "tensor.equal", counts)];
  if (mismatched) parts.push(word("tensor.broken", { mismatched }));
  const [best] = [...ranked].sort((one, other) => concentration(other) - concentration(one));
  if (best !== undefined && concentration(best) > 1.5) {
    const { first, last, share } = best.worst[0];
    const index = first === last ? String(first) : `${first}–${last}`;
    parts.push(word("tensor.concentrated", { axis: axes.name(best.axis), index, share: shareText(share) }));
  }
  if (String(sides.reference.shape) !== String(sides.target.shape)) {
    parts.push(word("tensor.reshaped", { reference: `[${sides.reference.shape}]`, target: `[${sides.target.shape}]` }));
  }
  if (sides.reference.dtype !== sides.target.dtype) {
    parts.push(word("tensor.dtypes", { reference: sides.reference.dtype, target: sides.target.dtype }));
  }
  return el("p", { class: "tensor-sentence" }, parts.join(" "));
}

/** @param {import("views").Context} context @param {number} row */
function head({ content, word }, row) {
  const { pairs } = content.tables;
  const kind = (/** @type {string} */ side) =>
    ["dtype", "shape"].map((name) => pairs.text(`${name}_${side}`, row) ?? "").join(" ");
  const [reference, target] = [kind("reference"), kind("target")];
  const kinds = reference === target ? reference : word("tensor.sides", { reference, target });
  return el(
    "header",
    { class: "tensor-head" },
    el("h2", { class: "name" }, callName(pairs, row)),
    el("span", { class: "mono name" }, `${shownText(pairs, "role", row, word)} ${pairs.text("place", row)}`),
    el("span", { class: "muted mono name" }, kinds),
  );
}

/** What is wrong with each side, or with both. @param {any} about @returns {any[]} */
function problems({ sides, problem: both }) {
  const own = [sides.reference.problem, sides.target.problem].filter((told) => told !== null);
  return own.length ? own : [both];
}

/** @param {unknown} error */
function toldOf(error) {
  return error instanceof Refusal ? error.told : { kind: null, what: String(error), expected: "", next: "" };
}

/**
 * @param {import("views").Context} context
 * @param {{kind: string | null, what: string, expected: string, next: string}} told
 */
function problem({ word }, told) {
  return el(
    "section",
    { class: "fault", role: "alert", "data-problem": told.kind ?? "error" },
    el("h2", {}, word(`tensor.problem.${told.kind ?? "error"}`)),
    el("p", { class: "name" }, told.what),
    told.expected && el("p", { class: "muted name" }, word("tensor.problem.expected", { expected: told.expected })),
    told.next.startsWith("ulpscope ") ? commandLine(told.next, word) : el("p", { class: "name" }, told.next),
  );
}

/** @param {import("views").Context} context @param {any} sides */
function stats({ word }, sides) {
  const { reference, target } = sides;
  if (!reference.stats && !target.stats) return null;
  const line = (/** @type {string} */ name, /** @type {(side: any) => string} */ text) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, word(`tensor.stat.${name}`)),
      [reference, target].map((side) => el("td", { class: "mono name" }, text(side))),
    );
  const lines = [
    ...KINDS.map((name) => line(name, (side) => kindText(side[name]))),
    ...STATS.map((name) => line(name, (side) => statText(side.stats?.[name]))),
  ];
  const heads = ["side.reference", "side.target"].map((key) => el("th", { scope: "col" }, word(key)));
  return el(
    "section",
    { class: "card tensor-stats" },
    el("h2", {}, word("tensor.stats")),
    el("table", { class: "plain" }, el("thead", {}, el("tr", {}, el("td"), heads)), el("tbody", {}, lines)),
  );
}

/** @param {any} value */
function kindText(value) {
  return Array.isArray(value) ? `[${value.join(", ")}]` : String(value ?? "–");
}

/** @param {any} value */
function statText(value) {
  return typeof value === "number" ? valueText(value) : String(value ?? "–");
}

/** @param {import("views").Context} context */
function howToServe({ word }) {
  return el(
    "section",
    { class: "card tensor-empty" },
    el("h2", {}, word("tensor.unserved")),
    el("p", {}, word("tensor.unserved.more")),
    commandLine("ulpscope report RESULT --serve", word),
    el("p", { class: "muted" }, word("tensor.unserved.save")),
    commandLine("ulpscope run --save tensors -o TRACE -- YOUR COMMAND", word),
  );
}

/** @param {import("views").Context} context */
function nothingSelected({ content, select, word }) {
  const { pairs } = content.tables;
  const [found] = content.summary.findings;
  const row = found ? rowOfFinding(content, found) : null;
  const label = (/** @type {number} */ at) => word("tensor.nothing.finding", { call: callName(pairs, at) });
  return el(
    "section",
    { class: "card tensor-empty" },
    el("h2", {}, word("tensor.nothing")),
    el("p", {}, word("tensor.nothing.more")),
    row !== null && el("p", {}, el("button", { on: { click: () => select(row) } }, label(row))),
  );
}
