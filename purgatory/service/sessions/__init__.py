"""Sessions, their connections and what they have yet to deliver."""
