"""Code shared by all sources: lineages of marks, links to daemons, demand, reports."""
