/**
 * The answer: the verdict, what went wrong and where, what to do next; then all else that was found.
 * @module answer
 */
import { around } from "answer_around";
import { ledger } from "answer_ledger";
import { summaryCards } from "answer_summary";
import { findRow } from "calls";
import { commandLine } from "command";
import { el } from "dom";
import { errorText } from "numbers";
import { told } from "words";

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { content, word } = context;
  const { summary } = content;
  const [first, ...others] = summary.findings;
  const element = el(
    "div",
    { class: "answer" },
    el(
      "div",
      { class: "column" },
      first ? finding(context, first) : verdictOnly(context),
      around(context),
      list(context, word("answer.also"), others, content.told.findings.slice(1)),
      advice(context),
      ledger(context),
      list(context, word("answer.notes"), summary.notes, content.told.notes),
    ),
    el("div", { class: "column" }, summaryCards(context)),
  );
  return { element };
}

/** @param {import("views").Context} context */
function verdictOnly({ content, word }) {
  const { summary } = content;
  const { matched, tensors_compared: tensors } = summary.counts;
  return el(
    "section",
    { class: `card hero ${summary.verdict}` },
    el("p", { class: "verdict" }, word(`verdict.${summary.verdict}`)),
    el("h2", {}, word(`answer.${summary.verdict}`)),
    el("p", { class: "sentence" }, word(`answer.${summary.verdict}.more`, { calls: matched, tensors })),
  );
}

/** @param {import("views").Context} context @param {any} found */
function finding(context, found) {
  const { content, word } = context;
  return el(
    "section",
    { class: `card hero ${content.summary.verdict}` },
    el("p", { class: "verdict" }, word(`verdict.${content.summary.verdict}`), " · ", word(`kind.${found.kind}`)),
    el("h2", { class: "name" }, placeButton(context, found)),
    el(
      "p",
      { class: "where" },
      found.module && found.call && el("span", { class: "name mono" }, found.module),
      el("span", {}, when(context, found)),
      found.tensor && el("span", { class: "name mono" }, found.tensor),
    ),
    el("p", { class: "sentence" }, told(content.told.findings[0])),
    figures(word, found.evidence),
    changedArguments(word, found.evidence.arguments ?? []),
    source(word, found, content.stacks[0] ?? []),
    el("h3", { style: { "margin-top": "14px" } }, word("answer.next")),
    commandLine(found.next, word),
  );
}

/** @param {import("views").Context} context @param {any} found */
function when({ content, word }, found) {
  const { ranks, steps } = content.summary.scope;
  const parts = [word("where.step", { step: found.step }), word(`phase.${found.phase}`)];
  if (ranks.length > 1 || found.rank !== 0) parts.unshift(word("where.rank", { rank: found.rank }));
  return (steps.length ? parts : parts.slice(-1)).join(" · ");
}

/**
 * The name of what was found; a button where the tables know it.
 * @param {import("views").Context} context @param {any} found
 */
function placeButton({ content, select, word }, found) {
  const name = found.call ?? found.module ?? word(`kind.${found.kind}`);
  const row = findRow(content.tables.pairs, found);
  if (row === null) return el("span", {}, name);
  return el("button", { class: "link", title: word("answer.select"), on: { click: () => select(row) } }, name);
}

/** @param {import("views").Context["word"]} word @param {any} evidence */
function figures(word, evidence) {
  const shown = [
    ["in", evidence.error_in],
    ["expected", evidence.expected],
    ["out", evidence.error_out],
    ["gain", evidence.gain],
  ].filter(([, value]) => value !== undefined && value !== null);
  if (!shown.length) return null;
  return el(
    "div",
    { class: "flow" },
    shown.map(([name, value]) =>
      el(
        "div",
        { class: String(name) },
        el("div", { class: "label" }, word(`figure.${name}`)),
        el("div", { class: "figure" }, name === "gain" ? `× ${errorText(value)}` : errorText(value)),
      ),
    ),
    evidence.followers
      ? el(
          "div",
          {},
          el("div", { class: "label" }, word("figure.followers")),
          el("div", { class: "figure" }, evidence.followers.toLocaleString("en-US")),
        )
      : null,
  );
}

/**
 * @param {import("views").Context["word"]} word
 * @param {{place: string, reference: string, target: string}[]} changed
 */
function changedArguments(word, changed) {
  if (!changed.length) return null;
  const head = ["answer.argument", "side.reference", "side.target"].map((key) => el("th", { scope: "col" }, word(key)));
  const rows = changed.map(({ place, reference, target }) =>
    el(
      "tr",
      {},
      [place, reference, target].map((text) => el("td", { class: "name mono" }, text)),
    ),
  );
  return el(
    "table",
    { class: "plain", style: { "margin-top": "12px", "max-width": "720px" } },
    el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, rows),
  );
}

/** @param {import("views").Context["word"]} word @param {any} found @param {any[]} frames */
function source(word, found, frames) {
  if (!found.source && !frames.length) return null;
  const text = frames[0]?.text;
  return el(
    "div",
    { class: "source" },
    el("h3", {}, word("answer.source")),
    el("span", { class: "mono name" }, found.source ?? `${frames[0].file}:${frames[0].line}`),
    text && el("code", { class: "line name" }, text),
    frames.length > 1 &&
      el("details", {}, el("summary", {}, word("answer.stack", { frames: frames.length })), stack(frames)),
  );
}

/** @param {any[]} frames */
function stack(frames) {
  return el(
    "ol",
    { class: "stack" },
    frames.map((frame) =>
      el(
        "li",
        {},
        el("span", { class: "mono name" }, `${frame.file}:${frame.line}`),
        el("span", { class: "muted" }, ` ${frame.function}`),
        frame.text && el("code", { class: "line name", style: { display: "block" } }, frame.text),
      ),
    ),
  );
}

/** @param {import("views").Context} context @param {string} title @param {any[]} found @param {any[]} sentences */
function list(context, title, found, sentences) {
  if (!found.length) return null;
  return el(
    "section",
    { class: "card" },
    el("h2", {}, title),
    found.map((one, at) =>
      el(
        "div",
        { class: "finding" },
        el("div", {}, el("span", { class: "kind" }, context.word(`kind.${one.kind}`)), " ", placeButton(context, one)),
        el("p", {}, told(sentences[at])),
        el("details", {}, el("summary", {}, context.word("answer.next")), commandLine(one.next, context.word)),
      ),
    ),
  );
}

/** @param {import("views").Context} context */
function advice({ content, word }) {
  if (!content.told.advice.length) return null;
  return el(
    "section",
    { class: "card" },
    el("h2", {}, word("answer.advice")),
    el(
      "ul",
      { class: "flat" },
      content.told.advice.map((/** @type {any} */ one) => el("li", {}, told(one))),
    ),
  );
}
