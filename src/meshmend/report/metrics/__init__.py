"""A run for other programs: metrics for Prometheus, traces for Perfetto, logs for OpenTelemetry, TensorBoard."""
