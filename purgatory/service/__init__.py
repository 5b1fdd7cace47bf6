"""The asyncio daemon around the engine: the wire, sessions, time, metrics. Import its modules; nothing lives here."""
