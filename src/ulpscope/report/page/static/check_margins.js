/**
 * How near the outputs of a check are to their limits: the nearest ones, and the spread of each operation.
 * @module check_margins
 */
import { limitShare } from "check_verdicts";
import { el } from "dom";
import { shareText } from "numbers";

/** So many outputs are listed as the nearest. */
const NEAREST = 8;

/** @param {import("views").Context} context */
export function checkMargins(context) {
  const details = context.content.tables?.details;
  if (!details?.has("limit_share")) return null;
  const judged = [];
  for (let row = 0; row < details.length; row++) if (details.text("place", row) !== null) judged.push(row);
  if (!judged.length) return null;
  return [nearest(context, details, judged), spread(context, details, judged)];
}

/** @param {import("views").Context} context @param {import("data").Table} details @param {number[]} judged */
function nearest({ word }, details, judged) {
  const rows = [...judged].sort((one, other) => limitShare(details, other) - limitShare(details, one));
  const names = ["name", "place", "variant", "dtype"];
  const lines = rows.slice(0, NEAREST).map((row) =>
    el(
      "tr",
      {},
      names.map((name) => el("td", { class: "name mono" }, details.text(name, row) ?? "")),
      el("td", {}, bar(0, limitShare(details, row))),
      el("td", { class: "number" }, shareText(limitShare(details, row))),
    ),
  );
  const heads = [...names, "limit_share"].map((name) => word(`check.column.${name}`));
  return table(word("margin.nearest"), word("margin.meaning"), [...heads, ""], lines);
}

/** @param {import("views").Context} context @param {import("data").Table} details @param {number[]} judged */
function spread({ word }, details, judged) {
  /** @type {Map<string, number[]>} */
  const shares = new Map();
  for (const row of judged) {
    const op = details.text("op", row) ?? "";
    shares.set(op, [...(shares.get(op) ?? []), limitShare(details, row)]);
  }
  const spans = [...shares].map(([op, found]) => ({ op, count: found.length, ...quantiles(found) }));
  spans.sort((one, other) => other.most - one.most || (one.op < other.op ? -1 : 1));
  const shown = spans.filter(({ most }) => most > 0);
  const exact = word("margin.exact", { operations: spans.length - shown.length });
  const lines = shown.map(({ op, count, least, middle, most }) =>
    el(
      "tr",
      {},
      el("td", { class: "name mono" }, op),
      el("td", { class: "number" }, String(count)),
      el("td", {}, bar(least, most, middle)),
      el("td", { class: "number" }, `${shareText(middle)} / ${shareText(most)}`),
    ),
  );
  const heads = [word("check.op"), word("count.outputs"), word("check.column.limit_share"), word("margin.middle_most")];
  return table(word("margin.spread"), shown.length < spans.length ? exact : null, heads, lines);
}

/** @param {number[]} found */
function quantiles(found) {
  const sorted = [...found].sort((one, other) => one - other);
  return { least: sorted[0], middle: sorted[sorted.length >> 1], most: sorted[sorted.length - 1] };
}

/**
 * A part of the way to the limit, which is the right end.
 * @param {number} from @param {number} to @param {number} [at]
 */
function bar(from, to, at) {
  const percent = (/** @type {number} */ share) => `${(Math.min(Math.max(share, 0), 1) * 100).toFixed(1)}%`;
  const width = `max(2px, calc(${percent(to)} - ${percent(from)}))`;
  return el(
    "div",
    { class: "margin-bar", "aria-hidden": "true" },
    el("span", { class: to >= 1 ? "beyond" : "", style: { left: percent(from), width } }),
    at === undefined ? null : el("i", { style: { left: percent(at) } }),
  );
}

/** @param {string} title @param {string | null} meaning @param {string[]} heads @param {HTMLElement[]} lines */
function table(title, meaning, heads, lines) {
  return el(
    "section",
    { class: "card scroll" },
    el("h2", {}, title),
    meaning && el("p", { class: "muted" }, meaning),
    el(
      "table",
      { class: "plain margins" },
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, lines),
    ),
  );
}
