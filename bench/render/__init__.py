"""Results as plots and as the page's table."""
