"""What happens in a generated run, drawn before the engine is started."""
