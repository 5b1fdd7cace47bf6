() => [...document.querySelectorAll("figure.plot")].map((figure) => {
  const svg = figure.querySelector(".drawing svg");
  const shapes = svg ? [...svg.querySelectorAll("g.role-mark path, g.role-mark line, g.role-mark text")] : [];
  const seen = shapes.filter((shape) => {
    const box = shape.getBBox();
    return box.width > 0 || box.height > 0;
  });
  return {
    title: figure.querySelector("h3").textContent,
    drawn: figure.dataset.drawn === "yes",
    marks: seen.length,
    nonsense: svg ? /NaN|undefined|Infinity/.test(svg.outerHTML) : true,
    texts: svg ? [...svg.querySelectorAll("text")].map((text) => text.textContent) : [],
  };
})
