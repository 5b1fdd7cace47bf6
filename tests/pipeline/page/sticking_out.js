() => {
  const wide = document.documentElement.clientWidth;
  const out = document.documentElement.scrollWidth > wide ? ["the page itself"] : [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest(".scroll table") || element.closest("#vg-tooltip-element")) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1)) {
      out.push(element.tagName + " " + element.textContent.slice(0, 40));
    }
  }
  return out;
}
