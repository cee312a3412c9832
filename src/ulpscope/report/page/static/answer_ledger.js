/**
 * What executing calls again has shown: who made which part of the differences.
 * @module answer_ledger
 */
import { callButton } from "answer_around";
import { findRow } from "calls";
import { el } from "dom";
import { countText, errorText } from "numbers";

const MOST_ROWS = 10;

/** @param {import("views").Context} context @returns {HTMLElement | null} */
export function ledger(context) {
  const { content, word } = context;
  const found = content.summary.ledger;
  if (!found) return null;
  const left = Object.entries(found.left ?? {});
  return el(
    "section",
    { class: "card ledger" },
    el("h2", {}, word("ledger.title")),
    el("p", {}, word("ledger.calls", { calls: found.calls, entries: found.entries })),
    left.map(([reason, calls]) => el("p", { class: "muted" }, word("ledger.left", { calls: Number(calls), reason }))),
    found.top?.length ? table(context, found.top.slice(0, MOST_ROWS)) : null,
    (found.finals ?? []).map((/** @type {any} */ final) => el("p", { class: "muted" }, finalText(word, final))),
  );
}

/** @param {import("views").Context} context @param {any[]} rows */
function table(context, rows) {
  const { word } = context;
  const names = [
    "column.call",
    "column.module",
    "ledger.made_by_target",
    "ledger.inherited",
    "ledger.made_by_reference",
    "ledger.ulp",
    "ledger.share",
    "ledger.maker",
  ];
  const head = names.map((name, at) => el("th", { scope: "col", class: at > 1 && at < 7 ? "number" : "" }, word(name)));
  return el(
    "table",
    { class: "plain", style: { "margin-top": "8px" } },
    el("thead", {}, el("tr", {}, head)),
    el(
      "tbody",
      {},
      rows.map((one) => row(context, one)),
    ),
  );
}

/** @param {import("views").Context} context @param {any} one */
function row(context, one) {
  const { content, word } = context;
  const { pairs } = content.tables;
  const place = { rank: one.rank, step: one.step, call: one.call };
  const found = findRow(pairs, { ...place, phase: one.direction }) ?? findRow(pairs, place);
  const number = (/** @type {any} */ value) => el("td", { class: "number" }, errorText(value));
  return el(
    "tr",
    {},
    el(
      "td",
      { class: "name" },
      callButton(context, one.call, found),
      el("span", { class: "muted" }, ` ${when(context, one)}`),
    ),
    el("td", { class: "name mono" }, one.module ?? ""),
    number(one.made_by_target?.norm),
    number(one.inherited?.norm),
    number(one.made_by_reference?.norm),
    number(one.made_by_target?.worst_ulp),
    el("td", { class: "number" }, shareText(one.share)),
    el("td", {}, word(`maker.${one.maker}`)),
  );
}

/** What tells calls of one name apart. @param {import("views").Context} context @param {any} one */
function when({ content, word }, one) {
  const step = content.summary.scope.steps.length > 1 ? word("where.step", { step: String(one.step) }) : "";
  return [step, one.direction === "backward" ? word("phase.backward") : ""].filter(Boolean).join(" ");
}

/** @param {import("views").Context["word"]} word @param {any} final */
function finalText(word, final) {
  const parts = {
    calls: shareText(part(final.calls, final)),
    start: shareText(part(final.start, final)),
    closure: shareText(final.closure),
  };
  return word("ledger.final", {
    call: final.call ?? "",
    step: String(final.step),
    difference: errorText(final.difference),
    ...parts,
  });
}

/** @param {any} value @param {any} final */
function part(value, final) {
  return typeof value === "number" && typeof final.difference === "number" && final.difference !== 0
    ? value / final.difference
    : null;
}

/** `12%`, `<1%`. @param {any} share */
function shareText(share) {
  if (typeof share !== "number") return "–";
  const percent = 100 * share;
  if (percent !== 0 && Math.abs(percent) < 1) return percent > 0 ? "<1%" : ">-1%";
  return `${countText(Math.round(percent))}%`;
}
