/**
 * Which operations fail in which dtype: a table of verdicts, and below it the outputs behind the chosen one.
 * @module check_matrix
 */
import { el, fill } from "dom";
import { countText, valueText } from "numbers";

/** The worst first. */
const VERDICTS = ["CRASH", "TIMEOUT", "FAIL", "WARN", "UNTESTED", "PASS", "SKIP"];
/** So many outputs are listed at once. */
const LISTED = 300;
const COLUMNS = ["name", "variant", "data", "device", "place", "direction", "dtype", "shape", "statistic", "worst", "worst_computed", "worst_exact", "message"];

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { store } = context;
  const matrix = el("section", { class: "card scroll" });
  const outputs = el("section", { class: "card scroll" });
  const bar = el("div", { class: "map-bar" });
  const draw = () => {
    const wanted = chosen(store.get());
    fill(bar, search(context, wanted));
    drawMatrix(context, matrix, wanted);
    drawOutputs(context, outputs, wanted);
  };
  store.subscribe(["check.op", "check.dtype", "check.verdict"], draw);
  store.subscribe(["check.text"], () => {
    drawMatrix(context, matrix, chosen(store.get()));
    drawOutputs(context, outputs, chosen(store.get()));
  });
  return { element: el("div", { class: "map" }, bar, matrix, outputs), show: draw };
}

/** @typedef {{op: string | null, dtype: string | null, verdict: string | null, text: string}} Wanted */

/** @param {any} state @returns {Wanted} */
function chosen(state) {
  const text = (/** @type {string} */ key) => (typeof state[key] === "string" && state[key] !== "" ? state[key] : null);
  return { op: text("check.op"), dtype: text("check.dtype"), verdict: text("check.verdict"), text: (text("check.text") ?? "").toLowerCase() };
}

/** @param {import("views").Context} context @param {Wanted} wanted */
function search({ store, word }, wanted) {
  const input = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", value: wanted.text, placeholder: word("check.search"), "aria-label": word("check.search"), on: { input: () => store.set({ "check.text": input.value }) } })
  );
  const verdict = /** @type {HTMLSelectElement} */ (
    el(
      "select",
      { "aria-label": word("check.verdict"), on: { change: () => store.set({ "check.verdict": verdict.value || null }) } },
      el("option", { value: "" }, word("check.any")),
      VERDICTS.map((name) => el("option", { value: name, selected: name === wanted.verdict }, name)),
    )
  );
  const open = wanted.op !== null || wanted.dtype !== null;
  const clear = open && el("button", { on: { click: () => store.set({ "check.op": null, "check.dtype": null }) } }, word("check.clear"));
  return [input, verdict, clear];
}

/** The last part of an operation's dotted name says enough in a narrow table. @param {string} op */
function short(op) {
  return op.split(".").slice(-2).join(".");
}

/** @param {import("data").Table} details @param {Wanted} wanted @param {boolean} inMatrix */
function passing(details, wanted, inMatrix) {
  const rows = [];
  for (let row = 0; row < details.length; row++) {
    const op = details.text("op", row) ?? "";
    if (wanted.text && !`${op} ${details.text("name", row)}`.toLowerCase().includes(wanted.text)) continue;
    if (wanted.verdict !== null && details.text("verdict", row) !== wanted.verdict) continue;
    if (!inMatrix && wanted.op !== null && op !== wanted.op) continue;
    if (!inMatrix && wanted.dtype !== null && (details.text("dtype", row) ?? "") !== (wanted.dtype === "–" ? "" : wanted.dtype)) continue;
    rows.push(row);
  }
  return rows;
}

/** @param {import("views").Context} context @param {HTMLElement} node @param {Wanted} wanted */
function drawMatrix({ content, store, word }, node, wanted) {
  const { details } = content.tables;
  /** @type {Map<string, Map<string, Record<string, number>>>} */
  const cells = new Map();
  const dtypes = new Set();
  for (const row of passing(details, wanted, true)) {
    const [op, dtype, verdict] = [details.text("op", row) ?? "", details.text("dtype", row) ?? "–", details.text("verdict", row) ?? ""];
    dtypes.add(dtype);
    const line = cells.get(op) ?? new Map();
    const cell = line.get(dtype) ?? {};
    cell[verdict] = (cell[verdict] ?? 0) + 1;
    cells.set(op, line.set(dtype, cell));
  }
  const columns = [...dtypes].sort((one, other) => (one === "–" ? 1 : other === "–" ? -1 : one < other ? -1 : 1));
  const lines = [...cells].sort(([one, a], [other, b]) => worstOf(a) - worstOf(b) || (one < other ? -1 : 1));
  const head = el("tr", {}, el("th", { scope: "col" }, word("check.op")), columns.map((dtype) => el("th", { scope: "col" }, dtype === "–" ? word("check.no_dtype") : dtype)));
  const body = lines.map(([op, line]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", class: "mono name", title: op }, short(op)),
      columns.map((dtype) => el("td", {}, line.has(dtype) && button(op, dtype, /** @type {any} */ (line.get(dtype))))),
    ),
  );
  /** @param {string} op @param {string} dtype @param {Record<string, number>} cell */
  function button(op, dtype, cell) {
    const verdict = worst(cell);
    const total = Object.values(cell).reduce((sum, number) => sum + number, 0);
    const pressed = wanted.op === op && wanted.dtype === dtype;
    const label = cell[verdict] === total ? `${verdict} ${countText(total)}` : `${verdict} ${countText(cell[verdict])} / ${countText(total)}`;
    return el("button", { class: `verdict-cell ${verdict}`, "aria-pressed": String(pressed), on: { click: () => store.set(pressed ? { "check.op": null, "check.dtype": null } : { "check.op": op, "check.dtype": dtype }) } }, label);
  }
  fill(node, el("h2", {}, word("check.matrix")), lines.length ? el("table", { class: "plain matrix" }, el("thead", {}, head), el("tbody", {}, body)) : el("p", { class: "muted" }, word("check.none")));
}

/** @param {Record<string, number>} cell */
function worst(cell) {
  return VERDICTS.find((verdict) => cell[verdict] > 0) ?? "";
}

/** @param {Map<string, Record<string, number>>} line */
function worstOf(line) {
  return Math.min(...[...line.values()].map((cell) => VERDICTS.indexOf(worst(cell))));
}

/** @param {import("views").Context} context @param {HTMLElement} node @param {Wanted} wanted */
function drawOutputs({ content, word }, node, wanted) {
  const { details } = content.tables;
  const weight = (/** @type {number} */ row) => VERDICTS.indexOf(details.text("verdict", row) ?? "");
  const rows = passing(details, wanted, false).sort((one, other) => weight(one) - weight(other) || one - other);
  const columns = COLUMNS.filter((name) => details.has(name));
  const head = el("tr", {}, ["verdict", ...columns].map((name) => el("th", { scope: "col" }, word(`check.column.${name}`))));
  const cell = (/** @type {string} */ name, /** @type {number} */ row) =>
    details.columns[name].type === "words" ? (details.text(name, row) ?? "") : valueText(details.number(name, row));
  const body = rows.slice(0, LISTED).map((row) =>
    el(
      "tr",
      {},
      el("td", {}, el("span", { class: `verdict-word ${details.text("verdict", row)}` }, details.text("verdict", row))),
      columns.map((name) => el("td", { class: name === "message" ? "name wide" : "name mono" }, cell(name, row))),
    ),
  );
  fill(
    node,
    el("h2", {}, word("check.outputs", { outputs: rows.length })),
    rows.length > LISTED && el("p", { class: "muted" }, word("check.listed", { listed: LISTED })),
    el("table", { class: "plain outputs" }, el("thead", {}, head), el("tbody", {}, body)),
  );
}
