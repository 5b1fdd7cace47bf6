// Partitions and keys: their marks, the replicas that hold the high watermark back, and the waiting operations.

import { copying, Curve, element, Figures, setText, Table, titled } from "./elements.js";
import { groupOf, lagLink } from "./lag.js";
import { followPending } from "./pending.js";
import { count, counted, duration, nameLink, nameText, offset, visible } from "./text.js";

const nameOf = (row) => [row.topicPartition?.topic ?? "", row.topicPartition?.partition ?? 0];

export function showPartitions(page) {
  const table = new Table("By name; open one to see its waits", [
    { title: "Topic and partition", cell: (row) => ({ text: nameText(nameOf(row)), href: nameLink(nameOf(row)) }) },
    { title: "High watermark", number: true, cell: (row) => offset(row.highWatermark ?? 0) },
    { title: "Log end", number: true, cell: (row) => offset(row.logEndOffset ?? 0) },
    { title: "Log start", number: true, cell: (row) => offset(row.logStartOffset ?? 0) },
    { title: "In sync", number: true, cell: (row) => count((row.inSyncReplicaIds ?? []).length) },
    { title: "Waits", number: true, cell: (row) => count(row.watched ?? 0) },
    { title: "Stale for", number: true, cell: (row) => (row.staleMs === undefined ? "–" : { text: duration(row.staleMs), className: "bad" }) },
  ], "A partition appears here once it is reported or waited for.");
  const search = element("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", value: page.parameters.get("q") ?? "" });
  const next = element("button", { type: "button", hidden: true }, "Next page");
  page.add(element("h1", {}, "Partitions"),
    element("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, element("label", { for: "search" }, "Topic begins with"), search),
    table.element, element("p", {}, next));
  let token = "";
  let following = "";
  const ask = page.following("/page/repeat/ListPartitions", (answer) => {
    table.setEmpty(search.value ? `No topic begins with “${visible(search.value)}”.` : "A partition appears here once it is reported or waited for.");
    table.show(answer.partitions ?? [], (row) => nameText(nameOf(row)));
    following = answer.nextPageToken ?? "";
    next.hidden = !following && !token;
    setText(next, following ? "Next page" : "First page");
  });
  const asked = () => ask({ request: JSON.stringify({ topicPrefix: search.value, pageSize: 50, pageToken: token }) });
  next.addEventListener("click", () => { token = following; asked(); });
  search.addEventListener("input", () => { token = ""; asked(); });
  asked();
}

export function showPartition(page) {
  const topic = page.parameters.get("topic") ?? "";
  const partition = Number(page.parameters.get("partition") ?? 0);
  const topicPartition = { topic, partition };
  const figures = new Figures(["high watermark", "log end", "log start", "last stable", "leader", "epoch", "in sync", "waits"]);
  const held = element("p", { class: "lead", id: "held" }, "Loading …");
  const curve = new Curve("The high watermark over the last two minutes", { fromZero: false });
  const replicas = new Table("As reported by the leader", [
    { title: "Replica", cell: (row) => String(row.replicaId ?? 0) },
    { title: "Log end", number: true, cell: (row) => offset(row.logEndOffset ?? 0) },
    { title: "Behind", number: true, cell: (row) => (Number(row.logEndOffset ?? 0) < 0 ? "–" : count(Math.max(0, row.leaderEnd - Number(row.logEndOffset ?? 0)))) },
    { title: "In sync", cell: (row) => ({ text: row.inSync ? "in sync" : "not in sync", className: row.inSync ? "good" : "warn" }) },
    { title: "State", cell: (row) => ({ text: row.dead ? "dead" : row.fenced ? "fenced" : "alive", className: row.dead || row.fenced ? "bad" : "" }) },
  ], "No other replica is known.");
  const name = nameText([topic, partition]);
  const known = [curve.element, figures.element];
  const group = groupOf(topic);
  const lag = group ? [element("p", {}, element("a", { href: lagLink(group) }, `How far ${visible(group)} is behind`))] : [];
  page.add(titled(element("h1", {}, name), copying(`${topic}-${partition}`)), held, ...lag, ...known, element("h2", {}, "Replicas"), replicas.element);
  for (const one of known) one.hidden = true;
  let goals = [];
  page.onRefused = (error) => setText(held, error.code === "not_found" ? `Nothing has been reported for ${name}, and nothing waits for it. Is the name spelled as its source spells it?` : visible(error.message));
  page.follow("/page/repeat/GetPartition", { request: JSON.stringify({ topicPartition }) }, ({ partition: row }) => {
    const [mark, end] = [Number(row.highWatermark ?? 0), Number(row.logEndOffset ?? 0)];
    for (const one of known) one.hidden = mark < 0 && end < 0;
    curve.add(mark, goals);
    figures.show("high watermark", offset(mark), end >= 0 && mark >= 0 ? `${count(Math.max(0, end - mark))} below the log end` : "");
    figures.show("log end", offset(end));
    figures.show("log start", offset(row.logStartOffset ?? 0), `low watermark ${offset(row.lowWatermark ?? 0)}`);
    figures.show("last stable", offset(row.lastStableOffset ?? 0));
    figures.show("leader", Number(row.leaderId ?? 0) < 0 ? "–" : String(row.leaderId ?? 0), row.isLeader ? "leads here" : "leads elsewhere");
    figures.show("epoch", offset(row.leaderEpoch ?? 0), `${count(row.staleEvents ?? 0)} stale events`);
    const inSync = row.inSyncReplicaIds ?? [];
    figures.show("in sync", inSync.join(", ") || "–", `at least ${count(row.minInSyncReplicas ?? 0)}`);
    figures.show("waits", count(row.watched ?? 0));
    replicas.show((row.replicas ?? []).map((one) => ({ ...one, leaderEnd: end })), (one) => String(one.replicaId ?? 0));
    setText(held, mark < 0 && end < 0 ? `Nothing has been reported for ${name} yet. Is its source attached, and does it spell the name so?` : heldBack(row, mark, end, inSync));
  });
  showWaiting(page, { topic, partition }, { topicPartition }, name, (rows) => {
    const needed = rows.filter((row) => row.awaited && nameText(row.awaited.name) === name).map((row) => row.awaited.required_offset);
    goals = [...new Set(needed)].sort((one, other) => one - other);
  });
}

function heldBack(row, mark, end, inSync) {
  if (row.staleMs !== undefined) return `Its mark has been stale for ${duration(row.staleMs)}: ${visible(row.staleReason ?? "")}`;
  if (row.storageFailed) return "Its storage has failed.";
  if (!row.isLeader || end < 0 || mark >= end) return "The high watermark is not held back.";
  if (inSync.length < (row.minInSyncReplicas ?? 0)) return `The high watermark stands: ${inSync.length} in sync, ${row.minInSyncReplicas} must be.`;
  const behind = (row.replicas ?? []).filter((one) => one.inSync && Number(one.logEndOffset ?? 0) <= mark).map((one) => one.replicaId ?? 0);
  return behind.length ? `The high watermark is held back by replica ${behind.join(", ")}.` : "The high watermark will move shortly.";
}

export function showKey(page) {
  const key = page.parameters.get("key") ?? "";
  page.add(titled(element("h1", {}, visible(key)), copying(key)), element("p", { class: "lead" }, "A signal key."));
  page.follow("/page/repeat/GetStatus", {}, () => {});  // detects whether the daemon is up, and counts this page as a viewer
  showWaiting(page, { key }, { key }, visible(key));
}

// The operations that wait on a name.
function showWaiting(page, selection, filter, name, take = () => {}) {
  let waiting;
  const cancel = element("button", { type: "button", class: "grave", hidden: true, onclick: () => page.cancel(
    `Cancel ${waiting === undefined ? "all operations" : counted(waiting, "operation")} waiting on ${name}?`,
    "The callers get the outcome cancelled, also for operations that have been registered in the meantime. This cannot be undone.",
    filter, waiting === undefined ? "Cancel all operations" : `Cancel ${counted(waiting, "operation")}`) });
  const pending = followPending(page, "Operations that wait here: the first 50 in the chosen order", selection, (picture) => {
    // With a filter, or without the role admin everywhere, only some of them are counted.
    waiting = picture.sees_all && !page.parameters.get("kind") ? picture.operations : undefined;
    cancel.hidden = !picture.may_cancel || waiting === 0;
    setText(cancel, waiting === undefined ? "Cancel all operations …" : `Cancel ${counted(waiting, "operation")} …`);
    take(picture.rows);
  });
  page.add(element("h2", {}, "Waiting operations"), titled(pending.filter, cancel), pending.table.element);
}
