/**
 * The answer of a check or of a search for overflows: the verdict, what was found first, all else that was found.
 * @module found
 */
import { missing } from "answer_summary";
import { checkMargins } from "check_margins";
import { el } from "dom";
import { answerCard, findingList } from "finding";
import { countText } from "numbers";
import { overflowTensors } from "overflow_tensors";
import { overflowWay } from "overflow_way";

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
      findings.length
        ? [answerCard(context, findings[0]), overflowWay(context, findings[0]), overflowTensors(context, findings[0])]
        : verdictOnly(context),
      findingList(context, word("answer.also"), findings.slice(1), content.told.findings.slice(1)),
      findingList(context, word("found.notes"), notes, content.told.notes),
      checkMargins(context),
    ),
    el("div", { class: "column" }, counts(context), reasons(context), missing(context)),
  );
  return { element };
}

/** @param {import("views").Context} context */
function verdictOnly({ content, word }) {
  const { verdict } = content.summary;
  return el(
    "section",
    { class: `card hero ${verdict}` },
    el("p", { class: "verdict" }, word(`verdict.${verdict}`)),
    el("h2", {}, word(`found.${content.kind}.${verdict}`)),
  );
}

/** @param {import("views").Context} context */
function counts({ content, word }) {
  const lines = Object.entries(content.summary.counts).filter(([, number]) => Number(number) > 0);
  return el(
    "section",
    { class: "card" },
    el("h2", {}, word("found.counts")),
    el(
      "dl",
      { class: "counts" },
      lines.map(([name, number]) => [
        el("dt", {}, word(`count.${name}`)),
        el("dd", { class: "number" }, countText(Number(number))),
      ]),
    ),
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
