/**
 * Which operations fail in which dtype: a table of verdicts, and below it the outputs behind the chosen one.
 * @module check_matrix
 */
import { createOutputs } from "check_outputs";
import { NO_DTYPE, VERDICTS, passing, worst } from "check_verdicts";
import { el, fill } from "dom";
import { countText } from "numbers";

/** @typedef {import("check_verdicts").Wanted} Wanted */

const KEYS = ["check.op", "check.dtype", "check.verdict", "check.text"];

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { store } = context;
  const matrix = el("section", { class: "card scroll" });
  const outputs = createOutputs(context);
  const bar = createBar(context);
  const draw = () => {
    const wanted = chosen(store.get());
    bar.draw(wanted);
    drawMatrix(context, matrix, wanted);
    outputs.draw(wanted);
  };
  store.subscribe(KEYS, draw);
  return { element: el("div", { class: "map" }, bar.element, matrix, outputs.element), show: draw };
}

/** @param {any} state @returns {Wanted} */
function chosen(state) {
  const text = (/** @type {string} */ key) => (state[key] == null || state[key] === "" ? null : String(state[key]));
  return {
    op: text("check.op"),
    dtype: text("check.dtype"),
    verdict: VERDICTS.find((name) => name === state["check.verdict"]) ?? null,
    text: text("check.text") ?? "",
  };
}

/** @param {import("views").Context} context */
function createBar({ store, word }) {
  const input = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", placeholder: word("check.search"), "aria-label": word("check.search") })
  );
  input.addEventListener("input", () => store.set({ "check.text": input.value || null }));
  const verdict = /** @type {HTMLSelectElement} */ (
    el(
      "select",
      { "aria-label": word("check.verdict") },
      el("option", { value: "" }, word("check.any")),
      VERDICTS.map((name) => el("option", { value: name }, name)),
    )
  );
  verdict.addEventListener("change", () => store.set({ "check.verdict": verdict.value || null }));
  const showAll = () => store.set({ "check.op": null, "check.dtype": null });
  const clear = el("button", { on: { click: showAll } }, word("check.clear"));
  return {
    element: el("div", { class: "map-bar" }, input, verdict, clear),
    /** @param {Wanted} wanted */
    draw(wanted) {
      if (input.value !== wanted.text) input.value = wanted.text;
      verdict.value = wanted.verdict ?? "";
      clear.classList.toggle("hidden", wanted.op === null && wanted.dtype === null);
    },
  };
}

/** The last part of an operation's dotted name says enough in a narrow table. @param {string} op */
function short(op) {
  return op.split(".").slice(-2).join(".");
}

/**
 * How many outputs of an operation and dtype have which verdict.
 * @typedef {Record<string, number>} Cell
 * @param {import("data").Table} details @param {Wanted} wanted @returns {Map<string, Map<string, Cell>>}
 */
function counted(details, { text, verdict }) {
  /** @type {Map<string, Map<string, Cell>>} */
  const cells = new Map();
  for (const row of passing(details, { op: null, dtype: null, text, verdict })) {
    const [op, found] = [details.text("op", row) ?? "", details.text("verdict", row) ?? ""];
    const dtype = details.text("dtype", row) ?? NO_DTYPE;
    const line = cells.get(op) ?? new Map();
    const cell = line.get(dtype) ?? {};
    cell[found] = (cell[found] ?? 0) + 1;
    cells.set(op, line.set(dtype, cell));
  }
  return cells;
}

/** @param {import("views").Context} context @param {HTMLElement} node @param {Wanted} wanted */
function drawMatrix(context, node, wanted) {
  const { content, word } = context;
  const cells = counted(content.tables.details, wanted);
  const dtypes = [...new Set([...cells.values()].flatMap((line) => [...line.keys()]))];
  dtypes.sort((one, other) => Number(one === NO_DTYPE) - Number(other === NO_DTYPE) || (one < other ? -1 : 1));
  const lines = [...cells].sort(([one, a], [other, b]) => worstOf(a) - worstOf(b) || (one < other ? -1 : 1));
  const head = dtypes.map((dtype) => el("th", { scope: "col" }, dtype === NO_DTYPE ? word("check.no_dtype") : dtype));
  const body = lines.map(([op, line]) => {
    const cell = (/** @type {string} */ dtype) => cellButton(context, wanted, op, dtype, line.get(dtype));
    return el(
      "tr",
      {},
      el("th", { scope: "row", class: "mono name", title: op }, short(op)),
      dtypes.map((dtype) => el("td", {}, cell(dtype))),
    );
  });
  const table = el(
    "table",
    { class: "plain matrix" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, word("check.op")), head)),
    el("tbody", {}, body),
  );
  const nothing = el("p", { class: "muted" }, word("check.none"));
  fill(node, el("h2", {}, word("check.matrix")), lines.length ? table : nothing);
}

/**
 * @param {import("views").Context} context @param {Wanted} wanted @param {string} op @param {string} dtype
 * @param {Cell | undefined} cell
 */
function cellButton({ store }, wanted, op, dtype, cell) {
  if (cell === undefined) return null;
  const verdict = worst(cell);
  const total = Object.values(cell).reduce((sum, number) => sum + number, 0);
  const isChosen = wanted.op === op && wanted.dtype === dtype;
  const number = cell[verdict] === total ? countText(total) : `${countText(cell[verdict])} / ${countText(total)}`;
  const click = () => store.set({ "check.op": isChosen ? null : op, "check.dtype": isChosen ? null : dtype });
  const props = { class: `verdict-cell ${verdict}`, "aria-pressed": String(isChosen), on: { click } };
  return el("button", props, `${verdict} ${number}`);
}

/** @param {Map<string, Cell>} line */
function worstOf(line) {
  return Math.min(...[...line.values()].map((cell) => VERDICTS.indexOf(worst(cell))));
}
