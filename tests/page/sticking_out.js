() => {
  const wide = document.documentElement.clientWidth;
  const out = document.documentElement.scrollWidth > wide ? ["the page itself"] : [];
  for (const one of document.querySelectorAll(".scroll")) {
    if (one.scrollWidth > one.clientWidth + 1) out.push("columns of " + one.ariaLabel);
  }
  for (const one of document.querySelectorAll("body *")) {
    if (one.closest(".scroll table, .skip, .unseen, dialog, svg")) continue;
    const box = one.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1)) out.push(one.tagName + " " + one.className);
  }
  return out;
}
