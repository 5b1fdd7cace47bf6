(isIdle) => {
  const main = document.querySelector("main");
  return !main.textContent.includes("Loading …") && (isIdle || main.querySelector("tbody tr:not([hidden])"));
}
