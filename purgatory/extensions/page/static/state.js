// The state of the connection: the dot in the header, and a banner when what the page shows is not current.

import { setText } from "./elements.js";
import { timeOf } from "./text.js";

const byId = (id) => document.getElementById(id);
let heardAt = Date.now();

export const heard = () => { heardAt = Date.now(); };

export function say(text) {
  setText(byId("said"), text);
}

export function setState(state, text) {
  if (byId("state").dataset.state !== state) {
    byId("state").dataset.state = state;
    document.body.dataset.state = state;
    if (state !== "connecting") say(state === "live" ? "The page is live." : text);
    const isAway = state === "away";
    if (isAway) setText(byId("banner-text"), `The daemon at ${location.host} is unreachable. Everything below was last current at ${timeOf(heardAt)}. Trying to reconnect …`);
    byId("banner").hidden = !isAway;
    byId("sign-in").hidden = true;
  }
  setText(byId("state-text"), text);
}

export function setSignedOut(why) {
  setState("refused", "not signed in");
  setText(byId("banner-text"), `Not signed in: ${why}. Nothing is shown without a token.`);
  byId("banner").hidden = false;
  byId("sign-in").hidden = false;
}
