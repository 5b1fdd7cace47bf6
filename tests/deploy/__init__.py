"""What is deployed beside the daemon: alerts, the dashboard, manifests."""
