"""The harness: workers and servers, measuring in pairs, and result rows."""
