// Webhooks: deliveries, the sessions that have a callback, and dead letters, which can be sent again or deleted.

import { ask, Report } from "./ask.js";
import { element, Figures, setText, Table } from "./elements.js";
import { sessionLink } from "./session.js";
import { count, shortId, timeOf, visible } from "./text.js";

const SHOWN = 50;
const FIGURES = [
  ["delivered", "_attempts_total delivered", "POSTs in all"], ["refused", "_attempts_total refused", "answered with an error"],
  ["unreachable", "_attempts_total unreachable", "no answer"], ["not allowed", "_attempts_total not_allowed", "by the settings"],
  ["in flight", "s_in_flight", "now"], ["paused", "s_paused", "tried again later"],
  ["dead letters", "_dead_letters", "kept"], ["lost", "s_lost_total", "too many dead letters"],
];

export function showWebhooks(page) {
  const lead = element("p", { class: "lead", id: "webhooks-lead" }, "Loading …");
  const report = new Report();
  const figures = new Figures(FIGURES.map(([name]) => name));
  const sessions = new Table("Sessions with a callback", [
    { title: "Session", cell: (row) => ({ ...shortId(row.session), href: sessionLink(row) }) },
    { title: "Callback", cell: (row) => visible(row.callback) },
    { title: "Pending", number: true, cell: (row) => count(row.pending) },
    { title: "Undelivered", number: true, cell: (row) => ({ text: count(row.unacknowledged), className: row.unacknowledged ? "warn" : "" }) },
  ], "No session has a callback.", "callbacks");
  const resent = (answer) => `Letters that are being sent again: ${count(answer.resent ?? 0)}. They stay listed until they are delivered.`;
  const letters = new Table("Results that could not be delivered, oldest first", [
    { title: "Webhook", cell: (row) => visible(row.webhookId) },
    { title: "Operation", cell: (row) => ({ text: `${shortId(row.sessionId ?? "").text} / ${row.result?.operationId ?? 0}`, href: sessionLink({ session: row.sessionId ?? "", principal: row.principal }) }) },
    { title: "Callback", cell: (row) => visible(row.callbackUrl ?? "") },
    { title: "Attempts", number: true, cell: (row) => count(row.attempts ?? 0) },
    { title: "Last error", cell: (row) => ({ text: visible(row.lastError ?? ""), className: "bad" }) },
    { title: "Given up", number: true, cell: (row) => timeOf(Date.parse(row.givenUpTime)) },
    { title: "Resend", cell: () => ({ text: "Resend", button: (row) => report.call("ResendDeadLetters", { webhookIds: [row.webhookId] }, resent) }) },
    { title: "Delete", cell: () => ({ text: "Delete …", button: async (row) => {
      if (!await ask(`Delete the dead letter ${visible(row.webhookId)}?`, "Its result is lost, unless the receiver has it from another attempt.", "Delete it")) return;
      await report.call("DeleteDeadLetters", { webhookIds: [row.webhookId] }, (answer) => `Letters deleted: ${count(answer.deleted ?? 0)}.`);
    } }) },
  ], "There are no dead letters.", "letters");
  const next = element("button", { type: "button", hidden: true }, "Next page");
  const all = element("button", { type: "button", hidden: true, onclick: () => report.call("ResendDeadLetters", {}, resent) }, "Resend all");
  page.add(element("h1", {}, "Webhooks"), lead, report.element, figures.element,
    element("h2", {}, "Dead letters"), letters.element, element("p", { class: "search" }, next, all),
    element("h2", {}, "Callbacks"), sessions.element);
  let token = "";
  let following = "";
  const list = page.following("/page/repeat/ListDeadLetters", (answer) => {
    following = answer.nextPageToken ?? "";
    next.hidden = !following && !token;
    setText(next, following ? "Next page" : "First page");
    all.hidden = !(answer.deadLetters ?? []).length;
    letters.show(answer.deadLetters ?? [], (row) => row.webhookId);
  });
  const listed = () => list({ request: JSON.stringify({ pageSize: SHOWN, pageToken: token }) });
  next.addEventListener("click", () => { token = following; listed(); });
  let isListed = false;
  page.follow("/page/live/webhooks", {}, (picture) => {
    const isLoaded = Object.keys(picture.figures).length > 0;
    if (isLoaded && !isListed) listed();
    isListed ||= isLoaded;
    setText(lead, isLoaded ? `Sessions with a callback: ${count(picture.of)}.` : "The webhooks extension is not loaded.");
    for (const [name, key, note] of FIGURES) figures.show(name, isLoaded ? count(picture.figures[`purgatory_webhook${key}`] ?? 0) : "–", note);
    sessions.show(picture.sessions, (row) => `${row.principal} ${row.session}`);
  });
}
