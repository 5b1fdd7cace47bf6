"""Self-contained HTML pages that open offline: wording, parts, charts, and the templates that `document` renders.

The pages themselves are in `report.page` and `replay.page`. They are built from `parts` (sections, tables, plots) and
`charts` (the appearance of plots).
"""
