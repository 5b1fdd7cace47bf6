"""Parts of the commands that inspect."""
