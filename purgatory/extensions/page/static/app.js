// Navigation between views, their streams, and the state of the connection.

import { ask } from "./ask.js";
import { call, follow, Refused, setToken } from "./calls.js";
import { element, setText } from "./elements.js";
import { showEnds } from "./ends.js";
import { showNow } from "./now.js";
import { showOperation } from "./operation.js";
import { showKey, showPartition, showPartitions } from "./partition.js";
import { showHour } from "./hour.js";
import { showLag } from "./lag.js";
import { showSession } from "./session.js";
import { isSearching, showSearch, startSearch } from "./search.js";
import { showSessions } from "./sessions.js";
import { heard, say, setSignedOut, setState } from "./state.js";
import { count, duration, visible } from "./text.js";
import { showWaits } from "./waits.js";
import { showWebhooks } from "./webhooks.js";
import { showWheel } from "./wheel.js";

const VIEWS = {
  now: showNow,
  hour: showHour,
  wheel: showWheel,
  waits: showWaits,
  operation: showOperation,
  partitions: showPartitions,
  partition: showPartition,
  key: showKey,
  lag: showLag,
  session: showSession,
  sessions: showSessions,
  webhooks: showWebhooks,
  ends: showEnds,
};
const PARENTS = { operation: "waits", key: "waits", partition: "partitions", lag: "partitions", session: "sessions" };

const byId = (id) => document.getElementById(id);
const main = byId("view");
let leaving = new AbortController();
let knownRun = "";
let shown = null;
let whyToken = "";
let isAsked = false;  // once the viewer has closed the dialog, it opens again only on request

// The interface that views use.
class Page {
  constructor(parameters, signal) {
    this.parameters = parameters;
    this.signal = signal;
  }

  // Each h2 begins a section; sections are next to each other where there is room.
  add(...parts) {
    for (const part of parts) {
      if (part.localName === "h2") {
        this.sections ??= main.appendChild(element("div", { class: "sections" }));
        this.section = this.sections.appendChild(element("section"));
      }
      (this.section ?? main).append(part);
    }
  }

  follow(path, parameters, take) {
    const told = {
      run: (run) => {
        if (knownRun && run !== knownRun) {
          knownRun = run;
          show();
          say("The daemon has restarted; the page shows its new state.");
        }
        knownRun = run;
      },
      state: (state, text) => { if (!this.signal.aborted) setState(state, text); },
      refused: (error) => { if (!this.signal.aborted) this.refused(error); },
    };
    const taken = (data) => { heard(); take(data); };
    follow(path, parameters, taken, told, this.signal);
  }

  // Restarts the stream with other parameters: returns a function that takes them.
  following(path, take) {
    let stop = new AbortController();
    return (parameters) => {
      stop.abort();
      stop = new AbortController();
      const page = new Page(this.parameters, AbortSignal.any([this.signal, stop.signal]));
      page.follow(path, parameters, take);
    };
  }

  // Takes one picture of a stream.
  once(path, take) {
    const stop = new AbortController();
    new Page(this.parameters, AbortSignal.any([this.signal, stop.signal])).follow(path, {}, (data) => {
      stop.abort();
      take(data);
    });
  }

  refused(error) {
    if (error.status === 401 || error.code === "unauthenticated") {
      whyToken = visible(error.message);
      setSignedOut(whyToken);
      if (!isAsked) askToken();  // a view has several streams, and each is refused on its own
      return;
    }
    setState(error.code === "not_found" ? "live" : "refused", error.code === "not_found" ? "live" : "refused");
    if (this.onRefused) this.onRefused(error);
    else this.add(element("p", { class: "notice", role: "alert" }, visible(error.message)));
  }

  // Asks for confirmation, cancels, and shows the result. `action` is what the button says.
  async cancel(what, why, request, action) {
    if (!await ask(what, why, action, "Keep waiting")) return;
    try {
      const answer = await call("Cancel", request);
      say(`${count(answer.cancelled ?? 0)} cancelled.`);
    } catch (error) {
      // No response: the operation may have been cancelled all the same.
      const text = error instanceof Refused ? `Not cancelled: ${visible(error.message)}` : "The daemon did not answer. Check what is still pending once the page is live again.";
      say(text);
      this.add(element("p", { class: "notice", role: "alert" }, text));
    }
  }
}

async function askToken() {
  const dialog = byId("token");
  if (dialog.open) return;
  setText(byId("token-why"), whyToken);
  isAsked = true;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return;
  isAsked = false;
  setToken(byId("token-text").value.trim());
  byId("token-text").value = "";
  show();
}

function showUnknown(page) {
  page.add(element("h1", {}, "No such view"),
    element("p", { class: "notice" }, `This page has no view “${visible(location.hash)}”. `, element("a", { href: "#/now" }, "Go to Now"), "."));
  page.follow("/page/repeat/GetStatus", {}, () => {});  // detects whether the daemon is up
}

function show() {
  leaving.abort();
  leaving = new AbortController();
  const [, name, query] = /^#\/([^?]*)\??(.*)$/.exec(location.hash) ?? [null, location.hash.replace("#", ""), ""];
  const view = name || "now";
  main.replaceChildren();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${PARENTS[view] ?? view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  shown = new Page(new URLSearchParams(query), leaving.signal);
  showSearch(view === "waits" ? shown.parameters.get("q") ?? "" : "");
  (Object.hasOwn(VIEWS, view) ? VIEWS[view] : showUnknown)(shown);
  document.title = `${main.querySelector("h1")?.textContent ?? view} · Purgatory`;
}

window.addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return;
  show();
  if (!isSearching()) main.focus({ preventScroll: true });
});

startSearch((text) => {
  if (shown.onSearch) shown.onSearch(text);
  else if (text.trim()) location.hash = `#/waits?${new URLSearchParams({ q: text.trim() })}`;
});
byId("sign-in").addEventListener("click", askToken);

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus({ preventScroll: true });
});

export function about(picture) {
  const compiled = picture.compiled ? "" : ", engine not compiled";
  setText(byId("about"), `Purgatory ${picture.version}${compiled} · up ${duration(picture.up_ms)}${picture.draining ? " · shutting down" : ""}`);
  if (picture.docs) byId("docs").href = picture.docs;
  byId("docs").hidden = !picture.docs;
}

show();
