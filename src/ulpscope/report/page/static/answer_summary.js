/**
 * Beside the answer: how much was compared, what both runs began with, what is missing.
 * @module answer_summary
 */
import { el } from "dom";
import { countText, errorText } from "numbers";
import { JUDGEMENTS } from "theme";
import { hasWord, told } from "words";

/** What only one run has. */
const ALONE = ["steps_reference_only", "steps_target_only", "ranks_reference_only", "ranks_target_only"];

/** @param {import("views").Context} context */
export function summaryCards(context) {
  return [counts(context), anchor(context), scope(context), missing(context)];
}

/** @param {import("views").Context} context */
function counts({ content, store, word }) {
  const { counts: found } = content.summary;
  const { explained, unexplained } = leftOut(content);
  const numbers = { ...found, not_compared: explained + unexplained };
  const shown = JUDGEMENTS.filter((name) => numbers[name] > 0);
  const show = (/** @type {string} */ judgement) => store.set({ view: "table", filter: { judgement } });
  return el(
    "section",
    { class: "card" },
    el("h2", {}, word("answer.counts", { tensors: found.tensors_compared })),
    el(
      "div",
      { class: "share", "aria-hidden": "true" },
      shown.map((name) =>
        el("span", { style: { "flex-grow": String(numbers[name]), background: `var(--${name.replace("_", "-")})` } }),
      ),
    ),
    el(
      "dl",
      { class: "counts" },
      shown.map((name) => [
        el(
          "dt",
          {},
          el(
            "button",
            { class: "link", on: { click: () => show(name) } },
            el("span", { class: `chip ${name}` }, word(`judgement.${name}`)),
          ),
        ),
        el("dd", { class: "number" }, countText(numbers[name])),
      ]),
    ),
    el(
      "p",
      { class: "muted", style: { "margin-top": "10px" } },
      word("answer.calls", { matched: found.matched, reference: found.calls_reference, target: found.calls_target }),
    ),
  );
}

/**
 * How many tensors were left out with a reason, and how many rows have neither verdict nor reason.
 * @param {any} content
 */
function leftOut({ summary, tables }) {
  const { pairs } = tables;
  const explained = summary.scope.not_compared.reduce(
    (/** @type {number} */ sum, /** @type {any} */ one) => sum + one.tensors,
    0,
  );
  const rows = pairs.codes("judgement").reduce((sum, code) => sum + Number(code < 0), 0);
  return { explained, unexplained: Math.max(0, rows - explained) };
}

/** @param {import("views").Context} context */
function anchor({ content, word }) {
  const parts = content.summary.anchor ?? [];
  if (!parts.length) return null;
  const rows = parts.map((/** @type {any} */ part) => {
    const same = part.compared === part.identical;
    const state = !part.compared
      ? word("anchor.not_compared")
      : same
        ? word("anchor.identical")
        : word("anchor.differs", {
            different: part.compared - part.identical,
            compared: part.compared,
            worst: errorText(part.worst),
          });
    return [
      el("dt", { class: "name" }, hasWord(`anchor.${part.what}`) ? word(`anchor.${part.what}`) : part.what),
      el("dd", { class: "number" }, state),
    ];
  });
  return el("section", { class: "card" }, el("h2", {}, word("answer.anchor")), el("dl", { class: "counts" }, rows));
}

/** @param {import("views").Context} context */
function scope({ content, word }) {
  const { scope: found } = content.summary;
  const measured = Object.entries(found.measured).map(([name, number]) => [
    word(`measured.${name}`),
    countText(Number(number)),
  ]);
  const alone = ALONE.filter((name) => found[name]?.length).map((name) => [word(`scope.${name}`), ranges(found[name])]);
  const { reference, target } = found.levels ?? {};
  const lines = [
    [word("scope.steps"), ranges(found.steps)],
    [word("scope.ranks"), ranges(found.ranks)],
    ...alone,
    ...(reference === target ? [] : [[word("scope.levels"), `${reference} / ${target}`]]),
    ...measured,
    [word("scope.standard"), found.standard],
  ];
  const left = found.not_compared.map((/** @type {any} */ one) =>
    el("li", {}, `${countText(one.tensors)}: ${told(content.reasons[one.reason] ?? one.reason)}`),
  );
  const { unexplained } = leftOut(content);
  if (unexplained) left.push(el("li", {}, word("scope.unjudged", { tensors: unexplained })));
  return el(
    "section",
    { class: "card" },
    el("h2", {}, word("answer.scope")),
    el(
      "dl",
      { class: "counts" },
      lines.map(([name, value]) => [el("dt", {}, name), el("dd", { class: "number" }, value)]),
    ),
    left.length
      ? [el("h3", { style: { "margin-top": "10px" } }, word("scope.left")), el("ul", { class: "flat" }, left)]
      : null,
  );
}

/** @param {import("views").Context} context */
export function missing({ content, word }) {
  const found = content.told?.missing ?? content.summary?.missing ?? content.missing ?? [];
  if (!found.length) return null;
  const items = found.map((/** @type {any} */ text) => el("li", {}, told(text)));
  return el("section", { class: "card" }, el("h2", {}, word("answer.missing")), el("ul", { class: "flat" }, items));
}

/** `0-3, 5`. @param {number[]} numbers */
function ranges(numbers) {
  /** @type {[number, number][]} */
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ") || "–";
}
