"""What an engine holds, as bytes and back."""
