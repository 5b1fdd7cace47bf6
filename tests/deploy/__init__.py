"""Files deployed together with the daemon: alerts, the dashboard, manifests."""
