/**
 * What the table shows, as a CSV file.
 * @module csv
 */
import { shownNumber } from "calls";
import { el, visible } from "dom";

/** What a spreadsheet takes for the beginning of a formula, also in its full-width form. */
const FORMULA = /^[=+\-@＝＋－＠]/;

/**
 * @param {import("views").Context} context @param {Int32Array} rows
 * @param {import("columns").ShownColumn[]} columns
 */
export function saveCsv({ content }, rows, columns) {
  const url = URL.createObjectURL(new Blob([csvText(content.tables.pairs, rows, columns)], { type: "text/csv" }));
  const link = /** @type {HTMLAnchorElement} */ (el("a", { href: url, download: "tensors.csv" }));
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/** @param {import("data").Table} pairs @param {Int32Array} rows @param {import("columns").ShownColumn[]} columns */
export function csvText(pairs, rows, columns) {
  const names = columns.map((column) => column.name);
  const lines = [names.join(",")];
  for (const row of rows) lines.push(names.map((name) => cell(pairs, name, row)).join(","));
  return lines.join("\n") + "\n";
}

/** @param {import("data").Table} pairs @param {string} name @param {number} row */
function cell(pairs, name, row) {
  const column = pairs.columns[name];
  if (column.type !== "words") return numberCell(shownNumber(pairs, name, row));
  const text = visible(pairs.text(name, row) ?? "");
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {number} number */
function numberCell(number) {
  if (Number.isNaN(number)) return "";
  if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
  return String(Number.isInteger(number) ? number : Number(number.toPrecision(8)));
}
