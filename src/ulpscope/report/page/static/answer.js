/**
 * The answer of a comparison: the verdict, what went wrong and where, what to do next; then all else that was found.
 * @module answer
 */
import { around } from "answer_around";
import { ledger } from "answer_ledger";
import { summaryCards } from "answer_summary";
import { el } from "dom";
import { answerCard, findingList } from "finding";
import { told } from "words";

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { content, word } = context;
  const { findings, notes } = content.summary;
  const element = el(
    "div",
    { class: "answer" },
    el(
      "div",
      { class: "column" },
      findings.length ? answerCard(context, findings[0]) : verdictOnly(context),
      around(context),
      findingList(context, word("answer.also"), findings.slice(1), content.told.findings.slice(1)),
      advice(context),
      ledger(context),
      findingList(context, word("answer.notes"), notes, content.told.notes),
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
    extent(summary.extent ?? {}, word),
  );
}

/** How much was compared, where that is not all. @param {any} found @param {any} word */
function extent(found, word) {
  const names = ["steps", "ranks", "calls", "tensors"];
  const shares = names.filter((name) => found[name] && found[name].compared < found[name].of);
  if (!shares.length) return null;
  const parts = shares.map((name) => word(`extent.${name}`, found[name])).join(word("extent.between"));
  return el("p", { class: "sentence" }, word("answer.extent", { parts }));
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
