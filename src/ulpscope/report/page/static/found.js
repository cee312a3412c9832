/**
 * The answer of a check or of a search for overflows: the verdict, what was found first, all else that was found.
 * @module found
 */
import { missing } from "answer_summary";
import { commandLine } from "command";
import { el } from "dom";
import { countText, errorText } from "numbers";
import { overflowTensors } from "overflow_tensors";
import { overflowWay } from "overflow_way";
import { told } from "words";

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { content, word } = context;
  const { summary } = content;
  const others = list(context, word("found.also"), summary.findings.slice(1), content.told.findings.slice(1));
  const element = el(
    "div",
    { class: "answer" },
    el(
      "div",
      { class: "column" },
      hero(context),
      summary.findings.length ? [overflowWay(context, summary.findings[0]), overflowTensors(context, summary.findings[0])] : null,
      others,
      list(context, word("found.notes"), summary.notes, content.told.notes),
    ),
    el("div", { class: "column" }, counts(context), reasons(context), missing(context)),
  );
  return { element };
}

/** @param {import("views").Context} context */
function hero(context) {
  const { content, word } = context;
  const { summary } = content;
  const [first] = summary.findings;
  const verdict = el("p", { class: "verdict" }, word(`verdict.${summary.verdict}`));
  if (first === undefined) {
    return el("section", { class: `card hero ${summary.verdict}` }, verdict, el("h2", {}, word(`found.${content.kind}.${summary.verdict}`)));
  }
  return el(
    "section",
    { class: `card hero ${summary.verdict}` },
    verdict,
    el("h2", { class: "name" }, first.call ?? first.module ?? first.op ?? ""),
    where(context, first),
    el("p", { class: "sentence" }, told(content.told.findings[0])),
    figures(context, first.evidence),
    first.source && el("p", { class: "source" }, el("span", { class: "mono name" }, first.source)),
    el("h3", { class: "next" }, word("answer.next")),
    commandLine(first.next, word),
  );
}

/** @param {import("views").Context} context @param {any} found */
function where({ word }, found) {
  const parts = [
    found.module && found.call ? found.module : null,
    found.rank === null ? null : word("where.rank", { rank: found.rank }),
    found.step === null ? null : word("where.step", { step: found.step }),
    found.phase === null ? null : word(`phase.${found.phase}`),
    found.tensor,
  ].filter((part) => part !== null && part !== undefined);
  return el("p", { class: "where" }, parts.map((part) => el("span", { class: "name" }, part)));
}

/** What a check has measured at the worst element. @param {import("views").Context} context @param {any} evidence */
function figures({ word }, evidence) {
  const shown = [
    ["statistic", evidence.statistic],
    ["worst", evidence.worst ? `[${evidence.worst.join(", ")}]` : null],
    ["computed", evidence.worst_computed],
    ["exact", evidence.worst_exact],
    ["ulp", evidence.metrics?.max_ulp],
  ].filter(([, value]) => value !== null && value !== undefined);
  if (!shown.length) return null;
  const text = (/** @type {any} */ value) => (typeof value === "number" ? errorText(value) : String(value));
  return el(
    "div",
    { class: "flow" },
    shown.map(([name, value]) => el("div", {}, el("div", { class: "label" }, word(`found.${name}`)), el("div", { class: "figure name" }, text(value)))),
  );
}

/** @param {import("views").Context} context @param {string} title @param {any[]} found @param {any[]} sentences */
function list(context, title, found, sentences) {
  if (!found.length) return null;
  return el(
    "section",
    { class: "card" },
    el("h2", {}, `${title} (${countText(found.length)})`),
    found.slice(0, SHOWN).map((one, at) =>
      el(
        "div",
        { class: "finding" },
        el("div", { class: "mono name" }, one.call ?? one.module ?? ""),
        el("p", {}, told(sentences[at])),
        el("details", {}, el("summary", {}, context.word("answer.next")), commandLine(one.next, context.word)),
      ),
    ),
    found.length > SHOWN && el("p", { class: "muted" }, context.word("found.more", { number: found.length - SHOWN })),
  );
}

const SHOWN = 50;

/** @param {import("views").Context} context */
function counts({ content, word }) {
  const lines = Object.entries(content.summary.counts).filter(([, number]) => Number(number) > 0);
  return el(
    "section",
    { class: "card" },
    el("h2", {}, word("found.counts")),
    el("dl", { class: "counts" }, lines.map(([name, number]) => [el("dt", {}, word(`count.${name}`)), el("dd", { class: "number" }, countText(Number(number)))])),
  );
}

/** Why calls were not judged. @param {import("views").Context} context */
function reasons({ content, word }) {
  const { skipped = [], untested = [] } = content.summary;
  const all = [...skipped, ...untested];
  if (!all.length) return null;
  const items = all.map((one) => el("li", {}, `${countText(one.apis)}: ${one.reason}`));
  return el("section", { class: "card" }, el("h2", {}, word("found.left")), el("ul", { class: "flat" }, items));
}
