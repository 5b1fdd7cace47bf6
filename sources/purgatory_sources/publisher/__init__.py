"""What every source needs: lineages of marks, links to daemons, demand, reports."""
