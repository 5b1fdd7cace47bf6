"""The page of a report, section by section."""
