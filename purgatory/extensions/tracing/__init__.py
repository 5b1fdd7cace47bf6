"""OpenTelemetry: a span for each wait whose caller is traced."""
