"""Access control: authentication, roles, and the shares of each principal."""
