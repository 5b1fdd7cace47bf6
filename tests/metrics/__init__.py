"""The metrics page, and its documentation."""
