/**
 * What was found, told: a card for the answer, a list of all else.
 * @module finding
 */
import { commandLine } from "command";
import { el } from "dom";
import { loneSide, rowOfFinding } from "lone_calls";
import { countText, errorText } from "numbers";
import { told } from "words";

/** So many findings are listed; the rest is in the result's files. */
const LISTED = 50;

/** @param {import("views").Context} context @param {any} found @returns {HTMLElement} */
export function answerCard(context, found) {
  const { content, word } = context;
  const { verdict } = content.summary;
  return el(
    "section",
    { class: `card hero ${verdict}` },
    el("p", { class: "verdict" }, word(`verdict.${verdict}`), hasKinds(content) && ` · ${word(`kind.${found.kind}`)}`),
    el("h2", { class: "name" }, placeButton(context, found)),
    where(context, found),
    el("p", { class: "sentence" }, told(content.told.findings[0])),
    figures(word, found.evidence),
    changedArguments(word, found.evidence.arguments ?? []),
    source(word, found, content.stacks?.[0] ?? []),
    el("h3", { style: { "margin-top": "14px" } }, word("answer.next")),
    commandLine(found.next, word),
  );
}

/** @param {import("views").Context} context @param {string} title @param {any[]} found @param {any[]} sentences */
export function findingList(context, title, found, sentences) {
  const { content, word } = context;
  if (!found.length) return null;
  const left = found.length - LISTED;
  return el(
    "section",
    { class: "card" },
    el("h2", {}, found.length > 1 ? `${title} (${countText(found.length)})` : title),
    found.slice(0, LISTED).map((one, at) =>
      el(
        "div",
        { class: "finding" },
        el(
          "div",
          { class: "name" },
          hasKinds(content) && [el("span", { class: "kind" }, word(`kind.${one.kind}`)), " "],
          placeButton(context, one),
        ),
        el("p", {}, told(sentences[at])),
        el("details", {}, el("summary", {}, word("answer.next")), commandLine(one.next, word)),
      ),
    ),
    left > 0 && el("p", { class: "muted" }, word("found.more", { number: left })),
  );
}

/** Whether findings are of several kinds. @param {any} content */
function hasKinds({ kind }) {
  return kind === "compare";
}

/**
 * The name of what was found; a button where the tables know it, or the tree has it as a call of one run alone.
 * @param {import("views").Context} context @param {any} found
 */
export function placeButton({ content, select, store, word }, found) {
  const name = found.call ?? found.module ?? found.op ?? word(`kind.${found.kind}`);
  const row = rowOfFinding(content, found);
  const inTree = { view: "model", "model.text": name, "model.rank": found.rank, "model.step": found.step };
  if (row !== null) return button(word("answer.select"), () => select(row), name);
  if (loneSide(content, found) !== null) return button(word("answer.in_model"), () => store.set(inTree), name);
  return el("span", {}, name);
}

/** @param {string} title @param {() => void} click @param {string} name */
function button(title, click, name) {
  return el("button", { class: "link", title, on: { click } }, name);
}

/** @param {import("views").Context} context @param {any} found */
function where({ content, word }, found) {
  const { ranks, steps } = content.summary.scope ?? {};
  const isOnlyRank = found.rank === 0 && ranks?.length === 1;
  const when = [
    found.rank == null || isOnlyRank ? null : word("where.rank", { rank: String(found.rank) }),
    found.step == null || steps?.length === 0 ? null : word("where.step", { step: String(found.step) }),
    found.phase == null ? null : word(`phase.${found.phase}`),
  ];
  return el(
    "p",
    { class: "where" },
    found.module && found.call && el("span", { class: "name mono" }, spanOf(found)),
    el("span", {}, when.filter(Boolean).join(" · ")),
    found.tensor && el("span", { class: "name mono" }, found.tensor),
  );
}

/** A module; of operators of a network that could not all be compared, those before it, too. @param {any} found */
function spanOf({ module, evidence }) {
  const before = evidence.uncompared ?? (evidence.given_by ? [evidence.given_by] : []);
  return [...before.slice(0, LISTED), module].join(" … ");
}

/** The numbers behind a finding. @param {import("views").Context["word"]} word @param {any} evidence */
function figures(word, evidence) {
  const broken = evidence.not_finite;
  const shown = [
    ["in", evidence.error_in, errorText],
    ["expected", evidence.expected, errorText],
    // Errors tell of finite elements only.
    ["out", broken && evidence.error_out === 0 ? null : evidence.error_out, errorText],
    ["gain", evidence.gain, (/** @type {number} */ gain) => `× ${errorText(gain)}`],
    ["not_finite", broken, (/** @type {number[]} */ counts) => counts.map(countText).join(" / ")],
    ["followers", evidence.followers || null, countText],
    ["statistic", evidence.statistic, String],
    ["computed", evidence.worst_computed, text],
    ["exact", evidence.worst_exact, text],
    ["ulp", evidence.metrics?.max_ulp, text],
    ["worst", evidence.worst, (/** @type {number[]} */ index) => `[${index.join(", ")}]`],
  ].filter(([, value]) => value !== undefined && value !== null);
  if (!shown.length) return null;
  return el(
    "div",
    { class: "flow" },
    shown.map(([name, value, write]) =>
      el(
        "div",
        { class: name },
        el("div", { class: "label" }, word(`figure.${name}`)),
        el("div", { class: "figure name" }, write(value)),
      ),
    ),
  );
}

/** @param {any} value */
function text(value) {
  return typeof value === "number" ? errorText(value) : String(value);
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
      [place, reference, target].map((cell) => el("td", { class: "name mono" }, cell)),
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
  const line = frames[0]?.text;
  return el(
    "div",
    { class: "source" },
    el("h3", {}, word("answer.source")),
    el("span", { class: "mono name" }, found.source ?? `${frames[0].file}:${frames[0].line}`),
    line && el("code", { class: "line name" }, line),
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
