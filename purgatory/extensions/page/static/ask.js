// Asks before something that cannot be undone, makes the call, and reports its result on the view.

import { call, Refused } from "./calls.js";
import { element, setText } from "./elements.js";
import { visible } from "./text.js";

// Resolves to whether the answer was yes.
export async function ask(what, why, yes, no = "Keep it") {
  const dialog = element("dialog", { id: "confirm", "aria-labelledby": "confirm-what" }, element("form", { method: "dialog" },
    element("h2", { id: "confirm-what" }, what), element("p", {}, why),
    element("p", { class: "buttons" }, element("button", { value: "no" }, no), element("button", { value: "yes", class: "grave", id: "confirm-yes" }, yes))));
  document.body.append(dialog);
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  dialog.remove();
  return dialog.returnValue === "yes";
}

// The place of a view where results of calls are shown and announced.
export class Report {
  constructor() {
    this.element = element("p", { class: "notice", role: "status", hidden: true });
  }

  async call(method, request, text) {
    let shown = "The daemon did not answer. It may have received the request all the same.";
    try {
      shown = text(await call(method, request));
    } catch (error) {
      if (error instanceof Refused) shown = `Not done: ${visible(error.message)}`;
    }
    this.element.hidden = false;
    setText(this.element, shown);
  }
}
