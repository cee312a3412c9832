/**
 * The calls around the answer, with the errors that came in and went out.
 * @module answer_around
 */
import { errorOf, findRow, rowsNamed, rowsOfCall, worst } from "calls";
import { el } from "dom";
import { answerPlace, rowOfFinding } from "lone_calls";
import { errorText } from "numbers";

/** @param {import("views").Context} context @returns {HTMLElement | null} */
export function around(context) {
  const { content, word } = context;
  const neighbours = content.summary.neighbours ?? [];
  if (!neighbours.length) return null;
  const scale = logScale(neighbours.flatMap((/** @type {any} */ one) => [one.error_in, one.error_out]));
  const heads = ["", "column.call", "column.module", "figure.in", "figure.out", "column.judgement"];
  return el(
    "section",
    { class: "card around" },
    el("h2", {}, word("answer.around")),
    el(
      "table",
      { class: "plain" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((key) => el("th", { scope: "col" }, key ? word(key) : word("answer.nearness"))),
        ),
      ),
      el(
        "tbody",
        {},
        neighbours.map((/** @type {any} */ one) => row(context, one, scale)),
      ),
    ),
  );
}

/** @param {import("views").Context} context @param {any} one @param {(error: any) => number} scale */
function row(context, one, scale) {
  const { content, word } = context;
  const judgement = one.judgement || "not_compared";
  const found = nearestRow(content, one);
  const isBroken = found !== null && errorOf(content.tables.pairs, found) === Infinity;
  return el(
    "tr",
    { class: one.nearness },
    el("td", {}, word(`nearness.${one.nearness}`)),
    el("td", { class: "name" }, callButton(context, one.call, found)),
    el("td", { class: "name mono" }, one.module ?? ""),
    el("td", {}, errorCell(one.error_in, scale, "identical")),
    el("td", {}, errorCell(isBroken ? "inf" : one.error_out, scale, judgement)),
    el("td", {}, el("span", { class: `chip ${judgement}` }, word(`judgement.${judgement}`))),
  );
}

/**
 * The row of a neighbour: of calls of one name in several phases, that of the answer's own phase, or the nearest to it.
 * @param {any} content @param {any} one @returns {number | null}
 */
function nearestRow(content, one) {
  const { pairs } = content.tables;
  const [answer = {}] = content.summary.findings;
  if (one.nearness === "here") return rowOfFinding(content, answer);
  const { rank, step, phase } = answer;
  const same = findRow(pairs, { rank, step, phase, call: one.call });
  if (same !== null) return same;
  const here = answerPlace(content) ?? 0;
  const rows = rowsNamed(pairs, { rank, step, call: one.call });
  rows.sort((a, b) => Math.abs(a - here) - Math.abs(b - here));
  return rows.length ? worst(pairs, rowsOfCall(pairs, rows[0])) : null;
}

/**
 * The name of a call; a button where the tables know it.
 * @param {import("views").Context} context @param {string} call @param {number | null} row
 */
export function callButton({ select }, call, row) {
  return row === null ? call : el("button", { class: "link", on: { click: () => select(row) } }, call);
}

/** @param {any} error @param {(error: any) => number} scale @param {string} judgement */
function errorCell(error, scale, judgement) {
  const color = `var(--${judgement.replace("_", "-")})`;
  return [
    el("span", {}, errorText(error)),
    el(
      "span",
      { class: "bar", "aria-hidden": "true" },
      el("span", { style: { width: `${scale(error)}%`, background: color } }),
    ),
  ];
}

/**
 * Where an error stands between the smallest and the largest, in per cent of their logarithms.
 * @param {any[]} errors
 */
function logScale(errors) {
  const logs = errors
    .map(Number)
    .filter((error) => error > 0 && Number.isFinite(error))
    .map(Math.log10);
  const least = Math.min(...logs, -8) - 0.5;
  const most = Math.max(...logs, least + 1);
  return (/** @type {any} */ error) => {
    if (error === "inf" || error === "nan") return 100;
    const number = Number(error);
    return number > 0 ? Math.max(2, Math.min(100, (100 * (Math.log10(number) - least)) / (most - least))) : 0;
  };
}
