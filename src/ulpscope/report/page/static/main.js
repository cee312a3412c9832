/**
 * Puts the page together: the top, the tabs with their views, and the details of what is selected.
 * @module main
 */
import { unpack } from "data";
import { createDetails } from "details";
import { el, fill } from "dom";
import { closeCharts } from "plotting";
import { createStore } from "store";
import { applyTheme } from "theme";
import { createTabs } from "tabs";
import { createTop, titleOf } from "top";
import { VIEWS } from "views";
import { setLanguage, word } from "words";

const NO_FILTER = {};
/** What was chosen about the selection before and says nothing about another one. */
const OF_SELECTION = { "model.rank": null, "model.step": null, "tensor.at": null };

/** What the page carries under a name; it is handed out once, and its room given back. @param {string} id */
function embedded(id) {
  const element = /** @type {HTMLElement} */ (document.getElementById(id));
  const text = element.textContent ?? "";
  element.remove();
  return text;
}

/** Who has the keyboard keeps it when the page is drawn anew. @param {HTMLElement} page @param {() => void} redraw */
function keepingFocus(page, redraw) {
  const name = document.activeElement?.getAttribute("name");
  redraw();
  if (name) /** @type {HTMLElement | null} */ (page.querySelector(`[name="${CSS.escape(name)}"]`))?.focus();
}

/** What is shown where the address says nothing. @param {any} content */
function initialState(content) {
  return {
    view: VIEWS.find((view) => view.kinds.includes(content.kind))?.name ?? "answer",
    selected: null,
    filter: NO_FILTER,
    sort: null,
    metrics: null,
    language: content.language ?? "en",
    theme: "auto",
  };
}

/** A store that forgets its listeners when the page is drawn anew. @param {import("store").Store} store */
function scoped(store) {
  /** @type {(() => void)[]} */
  const ends = [];
  return {
    get: store.get,
    set: store.set,
    /** @param {string[]} keys @param {(state: any) => void} callback */
    subscribe(keys, callback) {
      const end = store.subscribe(keys, callback);
      ends.push(end);
      return end;
    },
    close: () => ends.splice(0).forEach((end) => end()),
  };
}

/** @param {HTMLElement} page @param {any} content */
function start(page, content) {
  const store = createStore(initialState(content));
  const served = JSON.parse(embedded("served"));
  const title = document.title;
  /** @type {ReturnType<typeof scoped> | null} */
  let scope = null;

  function draw() {
    const state = store.get();
    setLanguage(state.language);
    applyTheme(state.theme);
    document.title = titleOf(content, title, word);
    scope?.close();
    scope = scoped(store);
    const context = {
      content,
      store: scope,
      word,
      select: (/** @type {number | null} */ row) => store.set({ ...OF_SELECTION, selected: row }),
      served,
    };
    const tabs = createTabs(context, VIEWS);
    const details = content.tables.pairs === undefined ? null : createDetails(context);
    closeCharts(page);
    fill(page, createTop(context), tabs.bar, el("div", { class: "body" }, tabs.panels, details));
    tabs.show();
  }

  const redraw = () => keepingFocus(page, draw);
  store.subscribe(["language", "theme"], redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  draw();
}

async function main() {
  const page = /** @type {HTMLElement} */ (document.getElementById("page"));
  try {
    const { meta, tables } = await unpack(embedded("content"));
    start(page, { ...meta, tables });
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    fill(page, el("div", { class: "fault", role: "alert" }, word("fault.page", { error: String(error) })));
    throw error;
  }
}

await main();
