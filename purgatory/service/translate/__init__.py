"""Between the wire and the engine; nothing else knows both."""
