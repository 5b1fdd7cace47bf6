(pictures) => new Promise((done) => {
  let seen = 0, empty = 0;
  new MutationObserver(() => {
    const rows = [...document.querySelectorAll("#operations tbody tr:not([hidden])")];
    const found = document.querySelector("#found").textContent;
    empty += rows.some((row) => row.querySelector("td.empty")) || found.startsWith("0 ");
    if ((seen += 1) === pictures) done(empty);
  }).observe(document.querySelector("#operations tbody"), {subtree: true, childList: true, characterData: true});
})
