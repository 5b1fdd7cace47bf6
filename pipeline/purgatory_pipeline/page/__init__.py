"""HTML pages that open offline, in one file: wording, parts, charts, and the templates that `document` renders.

The pages themselves are in `report.page` and `replay.page`, made of `parts` (what a page is made of) and `charts` (how
plots look).
"""
