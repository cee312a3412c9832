/**
 * The tabs and their views; a view is made when it is shown for the first time.
 * @module tabs
 */
import { el, fill } from "dom";

/**
 * @param {import("views").Context} context
 * @param {import("views").ViewEntry[]} entries
 */
export function createTabs(context, entries) {
  const { store, word } = context;
  const offered = entries.filter((entry) => isOffered(entry, context));
  /** @type {Map<string, Promise<import("views").View>>} */
  const made = new Map();
  const tabs = new Map(offered.map((entry) => [entry.name, tab(entry.name, word, open)]));
  const panels = new Map(offered.map((entry) => [entry.name, panel(entry.name)]));
  const bar = el("div", { class: "tabs", role: "tablist", "aria-label": word("tabs.label"), on: { keydown: move } }, [
    ...tabs.values(),
  ]);

  /** @param {string} name */
  function open(name) {
    store.set({ view: name });
  }

  /** @param {any} event */
  function move(event) {
    const names = [...tabs.keys()];
    const at = names.indexOf(current());
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 };
    const next = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (next === undefined) return;
    event.preventDefault();
    const name = names[(next + names.length) % names.length];
    open(name);
    tabs.get(name)?.focus();
  }

  function current() {
    const { view } = store.get();
    return tabs.has(view) ? view : [...tabs.keys()][0];
  }

  async function show() {
    const name = current();
    for (const [other, button] of tabs) {
      button.setAttribute("aria-selected", String(other === name));
      button.tabIndex = other === name ? 0 : -1;
      panels.get(other)?.classList.toggle("hidden", other !== name);
    }
    const place = panels.get(name);
    const entry = offered.find((one) => one.name === name);
    if (!place || !entry) return;
    if (!made.has(name)) made.set(name, make(entry, context, place));
    (await made.get(name))?.show?.();
    place.dataset.shown = "true";
    performance.mark(`shown ${name}`);
  }

  store.subscribe(["view"], show);
  return { bar, panels: el("main", { class: "panels" }, [...panels.values()]), show };
}

/** @param {import("views").ViewEntry} entry @param {import("views").Context} context */
function isOffered(entry, context) {
  return entry.kinds.includes(context.content.kind) && (entry.when?.(context) ?? true);
}

/**
 * @param {import("views").ViewEntry} entry @param {import("views").Context} context @param {HTMLElement} place
 * @returns {Promise<import("views").View>}
 */
async function make(entry, context, place) {
  try {
    const view = (await entry.load()).create(context);
    fill(place, view.element);
    return view;
  } catch (error) {
    const told = context.word("fault.view", { error: String(error) });
    fill(place, el("div", { class: "fault", role: "alert" }, told));
    console.error(error);
    return { element: place };
  }
}

/** @param {string} name @param {import("views").Context["word"]} word @param {(name: string) => void} open */
function tab(name, word, open) {
  return el(
    "button",
    { role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, on: { click: () => open(name) } },
    word(`view.${name}`),
  );
}

/** @param {string} name */
function panel(name) {
  return el("section", {
    class: "panel hidden",
    role: "tabpanel",
    id: `panel-${name}`,
    "aria-labelledby": `tab-${name}`,
    tabindex: "0",
  });
}
