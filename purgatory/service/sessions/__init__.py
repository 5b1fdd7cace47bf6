"""Sessions, their result streams, and the results that they have yet to deliver."""
