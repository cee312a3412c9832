/**
 * The model: reference and target side by side as a tree, and the operators of a module as a graph.
 * @module model
 */
import { rowsOfCall } from "calls";
import { selectedRow } from "details";
import { el, fill } from "dom";
import { createGraph } from "graph_view";
import { loneSide } from "lone_calls";
import { graphOf, headRow, rowCells } from "model_rows";
import { buildTree, flattened, pathTo } from "model_tree";
import { createVirtualList, movedBy } from "virtual_list";

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { content, store, select, word } = context;
  const { pairs } = content.tables;
  const { ranks, steps } = content.summary.scope;
  const head = el("div", { class: "head", role: "rowgroup" }, headRow(word));
  const body = el("div", { class: "rows", role: "rowgroup" });
  const grid = el(
    "div",
    { class: "grid tree", role: "treegrid", tabindex: "0", "aria-label": word("view.model") },
    el("div", { class: "sizer", role: "presentation" }, head, body),
  );
  const nothing = el("p", { class: "nothing muted" }, word("model.empty"));
  const graph = createGraph(context);
  const search = searchField();
  const bar = el("div", { class: "filter-bar" });
  const element = el(
    "div",
    { class: "model-view" },
    bar,
    el("div", { class: "split" }, el("div", { class: "grid-place" }, grid, nothing), graph.element),
    el("p", { class: "hint muted" }, word("model.hint")),
  );
  /** @type {Set<string>} */
  let open = new Set();
  /** @type {import("model_tree").Node} */
  let root;
  /** @type {import("model_tree").Node[]} */
  let shown = [];
  /** Where the keyboard is, as a place among the rows shown. */
  let current = -1;
  /** What is to be in sight when the tree is new. @type {import("model_tree").Node | undefined} */
  let wanted;
  let tree = "";
  const list = createVirtualList(
    grid,
    body,
    () => head.offsetHeight,
    (at) => bodyRow(at),
  );

  /** @param {string} phase */
  function outside(phase) {
    return word("model.outside", { phase: word(`phase.${phase}`) });
  }

  /** Rank and step of the tree: the chosen ones, else those of the selection, of the answer, or the first. */
  function place() {
    const row = selectedRow(context);
    const first = content.summary.findings[0];
    const of = (/** @type {"rank" | "step"} */ name, /** @type {number[]} */ all) => {
      const wanted = [
        store.get()[`model.${name}`],
        row === null ? null : pairs.number(name, row),
        first?.[name],
        all[0],
      ];
      return wanted.find((number) => all.includes(number)) ?? 0;
    };
    return { rank: of("rank", ranks), step: of("step", steps) };
  }

  function rebuild() {
    const { rank, step } = place();
    if (tree !== `${rank} ${step}`) {
      tree = `${rank} ${step}`;
      root = buildTree(content, rank, step, outside);
      open = new Set(alone(root));
      openWorst();
    }
    fill(
      bar,
      search,
      chooser("rank", ranks, rank),
      chooser("step", steps, step),
      el("button", { on: { click: showWorst } }, word("model.worst")),
      el("button", { on: { click: closeAll } }, word("model.close")),
    );
    // The graph takes room from the tree, so it comes first.
    graph.show({ rank, step });
    revealSelected();
  }

  /** Open what leads to the answer, or to the first of the worst calls. */
  function openWorst() {
    const { rank, step } = place();
    const first = content.summary.findings.find((/** @type {any} */ one) => one.rank === rank && one.step === step);
    const side = first ? loneSide(content, first) : null;
    const isAnswer = (/** @type {import("model_tree").Node} */ one) =>
      one.isCall &&
      one.full[side ?? "target"] === first.call &&
      one.phase === first.phase &&
      (side !== null) === (one.row === null);
    const answer = first ? pathTo(root, isAnswer) : [];
    const path = answer.length ? answer : pathTo(root, (one) => one.isCall && one.worst === root.worst);
    path.slice(0, -1).forEach((one) => open.add(one.key));
    wanted = path.at(-1);
  }

  function goToWanted() {
    refresh();
    current = wanted ? shown.indexOf(wanted) : current;
    wanted = undefined;
    if (current >= 0) list.reveal(current);
    list.draw();
  }

  function refresh() {
    const text = String(store.get()["model.text"] ?? "");
    if (search.value !== text) search.value = text;
    shown = flattened(root, open, text);
    nothing.classList.toggle("hidden", shown.length > 0 || text === "");
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    list.resize(shown.length);
    list.draw();
  }

  function revealSelected() {
    const row = selectedRow(context);
    if (row !== null) {
      const rows = rowsOfCall(pairs, row);
      const path = pathTo(root, (one) => one.isCall && one.row !== null && rows.includes(one.row));
      path.slice(0, -1).forEach((one) => open.add(one.key));
      wanted = path.at(-1);
    }
    goToWanted();
  }

  function follow() {
    if (element.offsetParent !== null) rebuild();
  }

  /** @param {import("model_tree").Node} one */
  function toggle(one) {
    if (open.has(one.key)) open.delete(one.key);
    else open.add(one.key);
    refresh();
  }

  /** @param {import("model_tree").Node} one */
  function choose(one) {
    if (one.isCall && one.row !== null) select(one.row);
    else if (!one.isCall) toggle(one);
  }

  function searchField() {
    const input = /** @type {HTMLInputElement} */ (
      el("input", {
        type: "search",
        placeholder: word("model.search"),
        "aria-label": word("model.search"),
        style: { width: "220px" },
      })
    );
    input.addEventListener("input", () => store.set({ "model.text": input.value }));
    return input;
  }

  /** @param {"rank" | "step"} name @param {number[]} all @param {number} chosen */
  function chooser(name, all, chosen) {
    if (all.length < 2) return null;
    const options = all.map((number) =>
      el("option", { value: number, selected: number === chosen }, word(`where.${name}`, { [name]: String(number) })),
    );
    return el(
      "select",
      {
        "aria-label": word(`column.${name}`),
        on: { change: (/** @type {any} */ event) => store.set({ [`model.${name}`]: Number(event.target.value) }) },
      },
      options,
    );
  }

  function showWorst() {
    openWorst();
    goToWanted();
  }

  function closeAll() {
    open = new Set(alone(root));
    current = -1;
    refresh();
  }

  /** @param {number} at */
  function bodyRow(at) {
    const one = shown[at];
    const isOpen = open.has(one.key);
    const row = selectedRow(context);
    const chosen = one.isCall && row !== null && one.row !== null && rowsOfCall(pairs, row).includes(one.row);
    const click = (/** @type {MouseEvent} */ event) => {
      current = at;
      if (!(/** @type {Element} */ (event.target).closest("button"))) choose(one);
      list.draw();
    };
    return el(
      "div",
      {
        class: `row ${chosen ? "chosen" : ""} ${at === current ? "current" : ""}`,
        role: "row",
        "aria-level": one.depth,
        "aria-expanded": one.isCall ? null : String(isOpen),
        "aria-rowindex": at + 2,
        on: { click },
      },
      rowCells(context, one, isOpen),
    );
  }

  /** The row of what holds the one in a row. @param {number} at */
  function above(at) {
    return shown.findLastIndex((one, place) => place < at && one.depth < shown[at].depth);
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (event.target !== grid) return;
    const one = shown[current];
    const next = movedBy(event.key, current, shown.length, list.page());
    if (next !== null) current = next;
    else if (event.key === "Enter" && one) choose(one);
    else if (event.key === "g" && one) store.set({ "model.graph": graphOf(one) });
    else if (event.key === "ArrowRight" && one && !one.isCall && !open.has(one.key)) toggle(one);
    else if (event.key === "ArrowLeft" && one && open.has(one.key)) toggle(one);
    else if (event.key === "ArrowLeft" && one && one.depth > 1) current = above(current);
    else if (event.key === "Escape") select(null);
    else return;
    event.preventDefault();
    if (current >= 0) list.reveal(current);
    list.draw();
  }

  grid.addEventListener("keydown", onKey);
  store.subscribe(["model.text"], () => refresh());
  store.subscribe(["model.rank", "model.step"], rebuild);
  store.subscribe(["selected"], follow);
  return { element, show: rebuild };
}

/**
 * A module that is alone at its level is open from the beginning.
 * @param {import("model_tree").Node} root @returns {string[]}
 */
function alone(root) {
  const modules = root.children.filter((child) => !child.isCall);
  const keys = modules.length <= 2 ? modules.map((one) => one.key) : [];
  return [...keys, ...(modules.length === 1 ? alone(modules[0]) : [])];
}
