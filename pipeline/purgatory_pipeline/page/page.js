"use strict";
// Draws every plot of the page. Expressions are interpreted, not compiled, so the page needs no eval.
for (const figure of document.querySelectorAll("figure.plot")) {
  const drawing = figure.querySelector(".drawing");
  const spec = JSON.parse(figure.querySelector("script").textContent);
  vegaEmbed(drawing, spec, {
    actions: false,
    ast: true,
    defaultStyle: false,
    renderer: "svg",
    tooltip: { disableDefaultStyle: true },
  }).then(
    () => { figure.dataset.drawn = "yes"; },
    (error) => {
      figure.dataset.drawn = "no";
      drawing.textContent = "This plot could not be drawn: " + error.message;
      console.error(error);
    },
  );
}
