"""Reports as one HTML page that opens offline: wording, parts, plots, and the pages made of them.

`report_page` and `replay_page` write a page each. They put it together from `parts` (what a page is made of) and
`plots` (how plots look). `document` alone turns parts into HTML, and escapes every text of a user there.
"""
