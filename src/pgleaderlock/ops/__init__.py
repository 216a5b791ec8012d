"""What operators look at: configuration, nodes, registry, metrics, alerts, the dashboard."""
