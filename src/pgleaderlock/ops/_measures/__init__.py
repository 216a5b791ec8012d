"""What is measured of an election, for Prometheus and OpenTelemetry alike: each name and its meaning are here once."""
