/**
 * The pair that is selected: what it is, how it differs, and the other tensors of its call.
 * @module details
 */
import { callName, errorOf, judgementOf, rowsOfCall, shownNumber, shownText } from "calls";
import { el, fill } from "dom";
import { errorText, valueText } from "numbers";
import { told } from "words";

const ERRORS = ["error", "error_in", "expected"];
const STATS = ["min", "max", "mean", "std", "norm", "not_finite"];
const OTHER = ["distance", "cosine", "max_abs", "max_rel", "max_ulp", "mean_ulp", "rmse", "mismatched"];

/** @param {import("views").Context} context @returns {HTMLElement} */
export function createDetails(context) {
  const { store, word } = context;
  const panel = el("aside", { class: "details", "aria-label": word("details.label"), tabindex: "0" });
  function draw() {
    const row = selectedRow(context);
    panel.classList.toggle("hidden", row === null);
    fill(panel, row === null ? null : about(context, row));
  }
  store.subscribe(["selected"], draw);
  draw();
  return panel;
}

/**
 * The selected row, if the address names one that there is.
 * @param {import("views").Context} context @returns {number | null}
 */
export function selectedRow({ content, store }) {
  const { selected } = store.get();
  const { pairs } = content.tables;
  return pairs && Number.isInteger(selected) && selected >= 0 && selected < pairs.length ? selected : null;
}

/** @param {import("views").Context} context @param {number} row */
function about(context, row) {
  const { content, select, word } = context;
  const { pairs } = content.tables;
  const judgement = judgementOf(pairs, row);
  const reason = pairs.text("reason", row);
  return [
    el(
      "header",
      {},
      el("h2", { class: "name" }, callName(pairs, row)),
      el(
        "button",
        { "aria-label": word("details.close"), title: word("details.close"), on: { click: () => select(null) } },
        "×",
      ),
    ),
    el("p", {}, el("span", { class: `chip ${judgement}` }, word(`judgement.${judgement}`))),
    reason && el("p", { class: "muted name" }, told(content.reasons[reason] ?? reason)),
    place(context, row),
    errors(context, row),
    stats(context, row),
    el("h3", {}, word("details.tensors")),
    tensors(context, row),
    actions(context, row),
  ];
}

/** @param {import("views").Context} context @param {number} row */
function place({ content, word }, row) {
  const { pairs } = content.tables;
  const fields = ["module", "op", "role", "place", "rank", "step", "phase", "measured"];
  const partner = pairs.text("call_reference", row);
  const lines = fields.map((name) => [word(`column.${name}`), shownText(pairs, name, row, word)]);
  if (partner && partner !== callName(pairs, row)) lines.unshift([word("column.call_reference"), partner]);
  return keyed(lines.filter(([, value]) => value));
}

/** @param {(string | null)[][]} lines */
function keyed(lines) {
  const rows = lines.map(([name, value]) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "name" }, value)),
  );
  return el("table", { class: "plain", style: { "margin-top": "6px" } }, el("tbody", {}, rows));
}

/** @param {import("views").Context} context @param {number} row */
function errors({ content, word }, row) {
  const { pairs } = content.tables;
  const names = [...ERRORS, ...OTHER].filter((name) => !Number.isNaN(pairs.number(name, row)));
  if (!names.length) return null;
  const text = (/** @type {string} */ name) => {
    const number = shownNumber(pairs, name, row);
    return ERRORS.includes(name) ? errorText(number) : valueText(number);
  };
  return [el("h3", {}, word("details.difference")), keyed(names.map((name) => [word(`column.${name}`), text(name)]))];
}

/** @param {import("views").Context} context @param {number} row */
function stats({ content, word }, row) {
  const { pairs } = content.tables;
  const lines = STATS.map((name) => [
    word(`stat.${name}`),
    ...["reference", "target"].map((side) => valueText(pairs.number(`${name}_${side}`, row))),
  ]);
  const kinds = ["dtype", "shape"].map((name) => [
    word(`stat.${name}`),
    ...["reference", "target"].map((side) => pairs.text(`${name}_${side}`, row) ?? ""),
  ]);
  const heads = ["", "side.reference", "side.target"].map((key) =>
    key ? el("th", { scope: "col" }, word(key)) : el("td"),
  );
  const cells = (/** @type {string[]} */ [name, ...values]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      values.map((value) => el("td", { class: "mono name" }, value)),
    );
  return [
    el("h3", {}, word("details.values")),
    el(
      "table",
      { class: "plain" },
      el("thead", {}, el("tr", {}, heads)),
      el("tbody", {}, [...kinds, ...lines].filter(([, one, other]) => one || other).map(cells)),
    ),
  ];
}

/** @param {import("views").Context} context @param {number} row */
function tensors({ content, select, word }, row) {
  const { pairs } = content.tables;
  const shown = (/** @type {number} */ other) => {
    const judgement = judgementOf(pairs, other);
    const name = `${shownText(pairs, "role", other, word)} ${pairs.text("place", other)}`;
    return el(
      "button",
      {
        "aria-current": other === row ? "true" : null,
        title: word(`judgement.${judgement}`),
        on: { click: () => select(other) },
      },
      el("span", { class: `chip name ${judgement}` }, name),
      el("span", { class: "number" }, errorText(errorOf(pairs, other))),
    );
  };
  const rows = rowsOfCall(pairs, row);
  return el(
    "div",
    { class: "tensors" },
    rows.slice(0, 60).map(shown),
    rows.length > 60 && el("p", { class: "muted" }, word("details.more", { more: rows.length - 60 })),
  );
}

/** @param {import("views").Context} context @param {number} row */
function actions({ content, store, word }, row) {
  const { pairs } = content.tables;
  const go = (/** @type {string} */ view, /** @type {any} */ patch = {}) =>
    el("button", { on: { click: () => store.set({ view, ...patch }) } }, word(`details.in.${view}`));
  const filter = { op: pairs.text("op", row) };
  return el(
    "div",
    { class: "actions" },
    go("table"),
    go("run"),
    go("model"),
    go("tensor_pair"),
    el("button", { on: { click: () => store.set({ view: "table", filter }) } }, word("details.same_op")),
  );
}
