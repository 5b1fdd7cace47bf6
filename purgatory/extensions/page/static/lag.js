// How far a group is behind, in offsets and in time: GET /v1/lag, again and again.

import { read, Refused } from "./calls.js";
import { copying, element, Figures, setText, Table, titled } from "./elements.js";
import { count, counted, duration, nameLink, nameText, offset, rate, visible } from "./text.js";

// The group of a mark as `purgatory lag` takes it: "billing" of kafka/billing/orders, "pg/main/all" itself. Empty: none.
export function groupOf(topic) {
  const parts = topic.split("/");
  if (parts.length < 3) return "";
  return parts[0] !== "kafka" ? topic : parts[1].includes("%") ? `kafka/${parts[1]}/` : parts[1];
}

export const lagLink = (group) => `#/lag?${new URLSearchParams({ group })}`;

function ageText(row) {
  if (row.ageMs === undefined) return "unknown";
  if (!row.lag) return "–";
  return `${duration(row.ageMs)} ${row.isAtLeast ? "or more" : `± ${duration(row.ageErrorMs)}`}`;
}

function outlook(row) {
  if (row.reason) return { text: visible(row.reason), className: "bad" };
  if (row.lag === undefined) return { text: "unknown", className: "bad" };
  if (!row.lag) return { text: "caught up", className: "good" };
  if (row.caughtUpInMs === undefined) return { text: "not at this pace", className: "warn" };
  return { text: `caught up in about ${duration(row.caughtUpInMs)}` };
}

export function showLag(page) {
  const group = page.parameters.get("group") ?? "";
  const lead = element("p", { class: "lead", id: "lag-lead" }, "Loading …");
  const figures = new Figures(["behind", "oldest position", "caught up in", "unknown"]);
  const nameOf = (row) => [row.mark, row.partition];
  const table = new Table("Each position, and how old it is", [
    { title: "Partition", cell: (row) => ({ text: nameText(nameOf(row)), href: nameLink(nameOf(row)) }) },
    { title: "Position", number: true, cell: (row) => offset(row.position ?? -1) },
    { title: "End", number: true, cell: (row) => offset(row.end ?? -1) },
    { title: "Behind", number: true, cell: (row) => offset(row.lag ?? -1) },
    { title: "Age", number: true, cell: ageText },
    { title: "Done / s", number: true, cell: (row) => rate(row.positionPerSecond) },
    { title: "Written / s", number: true, cell: (row) => rate(row.endPerSecond) },
    { title: "Outlook", cell: outlook },
  ], "No positions are known.", "lag-rows");
  page.add(titled(element("h1", {}, `Lag of ${visible(group)}`), copying(`purgatory lag ${group}`, "Copy as a command")), lead, figures.element,
    element("h2", {}, "Positions"), table.element);
  page.follow("/page/repeat/GetStatus", {}, () => {});  // detects whether the daemon is up
  const show = ({ partitions }) => {
    const known = partitions.filter((row) => row.lag !== undefined);
    const unknown = partitions.length - known.length;
    const behind = known.reduce((sum, row) => sum + row.lag, 0);
    const late = known.filter((row) => row.lag);
    const oldest = late.length ? ageText(late.reduce((one, row) => (row.ageMs > one.ageMs ? row : one))) : "–";
    const isSure = late.every((row) => row.caughtUpInMs !== undefined) && !unknown;
    figures.show("behind", known.length ? count(behind) : "–");
    figures.show("oldest position", oldest);
    figures.show("caught up in", late.length && isSure ? duration(Math.max(...late.map((row) => row.caughtUpInMs))) : "–");
    figures.show("unknown", count(unknown));
    table.show(partitions, (row) => nameText(nameOf(row)));
    if (!partitions.length) setText(lead, "No positions are known: nothing was committed, or no source follows this group.");
    else if (behind) setText(lead, `It is ${count(behind)} behind, and the age of its oldest position is ${oldest}.`);
    else setText(lead, unknown ? `The lag of ${counted(unknown, "partition")} is unknown.` : "It has caught up.");
  };
  (async () => {
    while (!page.signal.aborted) {
      let pause = 2_000;
      try {
        const answer = await read("/v1/lag", { group }, page.signal);
        pause = Math.max(1_000, Math.min(answer.pollMs, 10_000));
        show(answer);
      } catch (error) {
        if (page.signal.aborted) return;
        if (error instanceof Refused && error.status < 500 && error.status !== 429) {
          setText(lead, visible(error.message));
          if (error.status === 401) page.refused(error);
          return;
        }
      }
      await new Promise((done) => setTimeout(done, pause));
    }
  })();
}
