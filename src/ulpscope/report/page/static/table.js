/**
 * The table of all pairs.
 * @module table
 */
import { judgementOf } from "calls";
import { columnsShown, metricChoice } from "columns";
import { saveCsv } from "csv";
import { selectedRow } from "details";
import { el, fill } from "dom";
import { createFilterBar } from "filter_bar";
import { rowsShown } from "filtering";
import { createVirtualList, movedBy } from "virtual_list";

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { content, store, select, word } = context;
  const { pairs } = content.tables;
  const count = el("span", { class: "count muted", "aria-live": "polite" });
  const head = el("div", { class: "head", role: "rowgroup" });
  const body = el("div", { class: "rows", role: "rowgroup" });
  const nothing = el("p", { class: "nothing muted" }, word("table.empty"));
  const sizer = el("div", { class: "sizer", role: "presentation" }, head, body);
  const grid = el("div", { class: "grid", role: "grid", tabindex: "0", "aria-label": word("view.table") }, sizer);
  const csv = el("button", { on: { click: () => saveCsv(context, rows, columns) } }, word("table.csv"));
  const element = el(
    "div",
    { class: "table-view" },
    createFilterBar(context, metricChoice(context), csv, count),
    el("div", { class: "grid-place" }, grid, nothing),
    el("p", { class: "hint muted" }, word("table.hint")),
  );
  /** @type {Int32Array} */
  let rows = new Int32Array(0);
  let columns = columnsShown(context);
  /** Where the keyboard is, as a place among the rows shown. */
  let current = -1;
  const list = createVirtualList(
    grid,
    body,
    () => head.offsetHeight,
    (at) => {
      const state = { chosen: rows[at] === selectedRow(context), current: at === current };
      return bodyRow(context, columns, rows[at], at, state);
    },
  );

  function refresh() {
    const { filter, sort } = store.get();
    rows = rowsShown(pairs, filter, sort);
    columns = columnsShown(context);
    grid.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    grid.style.setProperty("--row-width", `${columns.reduce((sum, column) => sum + leastWidth(column.width), 0)}px`);
    grid.setAttribute("aria-rowcount", String(rows.length + 1));
    fill(head, headRow(context, columns));
    fill(count, word("table.count", { shown: rows.length, all: pairs.length }));
    nothing.classList.toggle("hidden", rows.length > 0);
    list.resize(rows.length);
    goTo(placeOf(selectedRow(context)));
  }

  /** @param {number | null} row */
  function placeOf(row) {
    return row === null ? -1 : rows.indexOf(row);
  }

  /** @param {number} at */
  function goTo(at) {
    current = at;
    if (current >= 0) {
      list.reveal(current);
      grid.setAttribute("aria-activedescendant", `row-${rows[current]}`);
    } else {
      grid.removeAttribute("aria-activedescendant");
    }
    list.draw();
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (event.target !== grid) return;
    if (event.key === "Enter" && current >= 0) select(rows[current]);
    if (event.key === "Escape") select(null);
    const next = movedBy(event.key, current, rows.length, list.page());
    if (next === null) return;
    event.preventDefault();
    goTo(next);
  }

  grid.addEventListener("keydown", onKey);
  body.addEventListener("click", (event) => {
    const row = /** @type {Element} */ (event.target).closest("[data-row]");
    if (row) select(Number(/** @type {HTMLElement} */ (row).dataset.row));
  });
  store.subscribe(["filter", "sort", "metrics"], refresh);
  store.subscribe(["selected"], () => goTo(placeOf(selectedRow(context))));
  refresh();
  return { element, show: () => goTo(placeOf(selectedRow(context))) };
}

/** The pixels that a column's width asks for at least. @param {string} width */
function leastWidth(width) {
  return Number(/\d+/.exec(width)?.[0] ?? 100);
}

/** @param {import("views").Context} context @param {import("columns").ShownColumn[]} columns */
function headRow({ store }, columns) {
  const { sort } = store.get();
  const cells = columns.map((column, at) => {
    const sorted = sort?.column === column.name ? (sort.descending ? "descending" : "ascending") : "none";
    const mark = { descending: " ▾", ascending: " ▴", none: "" }[sorted];
    const choose = () => store.set({ sort: nextSort(column, sort) });
    return el(
      "div",
      {
        class: `cell ${column.numeric ? "number" : ""}`,
        role: "columnheader",
        "aria-colindex": at + 1,
        "aria-sort": sorted,
      },
      el(
        "button",
        { class: "link", "data-column": column.name, title: column.label, on: { click: choose } },
        column.label,
        mark,
      ),
    );
  });
  return el("div", { class: "row", role: "row", "aria-rowindex": 1 }, cells);
}

/**
 * Numbers begin with the largest; a third click ends it.
 * @param {import("columns").ShownColumn} column @param {import("filtering").Sort | null} sort
 */
function nextSort(column, sort) {
  if (sort?.column !== column.name) return { column: column.name, descending: column.numeric };
  return sort.descending === column.numeric ? { column: column.name, descending: !column.numeric } : null;
}

/**
 * @param {import("views").Context} context @param {import("columns").ShownColumn[]} columns @param {number} row
 * @param {number} at
 * @param {{chosen: boolean, current: boolean}} state
 */
function bodyRow({ content }, columns, row, at, { chosen, current }) {
  const { pairs } = content.tables;
  const cells = columns.map((column, place) => {
    const text = column.text(row);
    const shown = column.name === "judgement" ? el("span", { class: `chip ${judgementOf(pairs, row)}` }, text) : text;
    const look = `cell ${column.numeric ? "number" : "name"}`;
    return el("div", { class: look, role: "gridcell", "aria-colindex": place + 1, title: column.full(row) }, shown);
  });
  return el(
    "div",
    {
      class: `row ${chosen ? "chosen" : ""} ${current ? "current" : ""}`,
      role: "row",
      id: `row-${row}`,
      "data-row": row,
      "aria-rowindex": at + 2,
      "aria-selected": String(chosen),
    },
    cells,
  );
}
