/**
 * The controls that choose rows; table and chart share them.
 * @module filter_bar
 */
import { el, fill, visible } from "dom";
import { NOT_COMPARED, isOpen } from "filtering";
import { JUDGEMENTS, PHASES } from "theme";

const TYPING_MS = 60;
/** So many names of modules are proposed. */
const MOST_NAMES = 2000;
let bars = 0;

/** @param {import("views").Context} context @param {...any} extra controls of the view itself @returns {HTMLElement} */
export function createFilterBar(context, ...extra) {
  const { content, store, word } = context;
  const text = createSearch(context, "text", word("filter.text"), 170);
  const names = moduleNames(content);
  const module = createSearch(context, "module", word("filter.module"), 150, { list: names.id });
  const [first, second] = [el("div", { class: "controls" }), el("div", { class: "controls" })];
  const controls = el("div", { class: "controls" }, text.input, first, module.input, names, second);
  function draw() {
    const focused = focusedName(controls);
    [text, module].forEach((search) => search.draw());
    fill(first, choices(context, FIRST));
    fill(second, choices(context, SECOND), resetButton(context));
    if (focused) /** @type {HTMLElement | null} */ (controls.querySelector(`[name="${focused}"]`))?.focus();
  }
  store.subscribe(["filter"], draw);
  draw();
  return el("div", { class: "filter-bar" }, controls, extra);
}

/** @param {HTMLElement} controls */
function focusedName(controls) {
  const focused = /** @type {any} */ (document.activeElement);
  return controls.contains(focused) && focused.tagName !== "INPUT" ? focused.name : null;
}

const FIRST = ["judgement", "op"];
const SECOND = ["phase", "step", "rank", "role"];

/** @param {import("views").Context} context @param {string[]} names */
function choices(context, names) {
  const { content, word } = context;
  const { pairs } = content.tables;
  const { ranks, steps } = content.summary.scope;
  const judged = new Set([...pairs.words("judgement"), NOT_COMPARED]);
  const itself = (/** @type {string} */ name) => name;
  /** @type {Record<string, [any[], (value: any) => string]>} */
  const offered = {
    judgement: [JUDGEMENTS.filter((name) => judged.has(name)), (name) => word(`judgement.${name}`)],
    op: [[...pairs.words("op")].sort(), itself],
    phase: [PHASES.filter((name) => pairs.words("phase").includes(name)), (name) => word(`phase.${name}`)],
    step: [steps, (step) => word("where.step", { step: String(step) })],
    rank: [ranks, (rank) => word("where.rank", { rank: String(rank) })],
    role: [[...pairs.words("role")].sort(), (name) => word(`role.${name}`)],
  };
  return names.map((name) => choice(context, name, ...offered[name]));
}

/** @param {import("views").Context} context */
function resetButton({ store, word }) {
  const click = () => store.set({ filter: {} });
  return el("button", { name: "reset", disabled: isOpen(store.get().filter), on: { click } }, word("filter.reset"));
}

/**
 * A field that filters while it is typed in; it is never made anew, or what is being typed would be lost.
 * @param {import("views").Context} context @param {string} name @param {string} label @param {number} width
 * @param {Record<string, string>} [more]
 */
function createSearch({ store }, name, label, width, more = {}) {
  /** @type {any} */
  let waiting = null;
  const style = { width: `${width}px` };
  const input = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", name, placeholder: label, "aria-label": label, style, ...more })
  );
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      waiting = null;
      store.set({ filter: changed(store.get().filter, name, input.value) });
    }, TYPING_MS);
  });
  return {
    input,
    draw() {
      const wanted = String(store.get().filter[name] ?? "");
      if (waiting === null && input.value !== wanted) input.value = wanted;
    },
  };
}

/** @param {any} content */
function moduleNames({ tables }) {
  const modules = [...tables.pairs.words("module")].sort();
  const options = modules.slice(0, MOST_NAMES).map((name) => el("option", { value: name }));
  return el("datalist", { id: `module-names-${bars++}` }, options);
}

/**
 * @template Value
 * @param {import("views").Context} context @param {string} name @param {Value[]} values
 * @param {(value: Value) => string} shown
 */
function choice({ store, word }, name, values, shown) {
  if (values.length < 2) return null;
  const chosen = store.get().filter[name];
  const label = word(`column.${name}`);
  const options = values.map((value) =>
    el("option", { value: String(values.indexOf(value)), selected: value === chosen }, visible(shown(value))),
  );
  const choose = (/** @type {any} */ event) => {
    const value = event.target.value === "" ? undefined : values[Number(event.target.value)];
    store.set({ filter: changed(store.get().filter, name, value) });
  };
  return el(
    "select",
    { name, "aria-label": label, title: label, class: chosen === undefined ? "" : "chosen", on: { change: choose } },
    el("option", { value: "" }, word("filter.any", { name: label })),
    options,
  );
}

/** @param {any} filter @param {string} name @param {any} value */
function changed(filter, name, value) {
  const { [name]: _, ...others } = filter;
  return value === undefined || value === "" ? others : { ...others, [name]: value };
}
