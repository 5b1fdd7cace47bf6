// The one search, in the header: topics, keys, sessions and operations that are pending. The key "/" leads to it.

const TYPING_MS = 200;
const input = document.getElementById("find");

// search(text): shows what matches.
export function startSearch(search) {
  let typing = 0;
  let sought = "";
  const now = () => {
    clearTimeout(typing);
    if (input.value !== sought) search(input.value);
    sought = input.value;
  };
  input.addEventListener("focus", () => { sought = input.value; });
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(now, TYPING_MS);
  });
  input.form.addEventListener("submit", (event) => {
    event.preventDefault();
    now();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
}

export const isSearching = () => document.activeElement === input;

// Shows the search of the present view, except while another one is being typed.
export function showSearch(text) {
  if (!isSearching()) input.value = text;
}
