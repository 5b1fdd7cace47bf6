async () => {
  const kinds = {elementRef: true, resultTypes: ["violations", "incomplete"]};
  const {violations, incomplete} = await axe.run(document, kinds);
  const said = (found) => found.flatMap((rule) => rule.nodes.map((node) => ({
    text: `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.replace(/\s+/g, " ")}`,
    isDrawn: node.element.closest("svg") !== null,
  })));
  const unsure = said(incomplete).filter((one) => !(one.isDrawn && one.text.startsWith("color-contrast:")));
  return [...said(violations), ...unsure].map((one) => one.text);
}
