"""The asyncio daemon around the engine: the wire, sessions, time, metrics. Import its modules; this file is empty."""
