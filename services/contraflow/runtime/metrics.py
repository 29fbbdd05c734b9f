"""Prometheus: metrics made from ``metric_names``, and their HTTP exposition."""

from __future__ import annotations

import errno

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from contraflow.runtime.address import Address
from contraflow.runtime.config import ConfigError, PortInUse
from contraflow.runtime.metric_names import Metric


def counter(registry: CollectorRegistry, metric: Metric) -> Counter:
    """A counter in ``registry``."""
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def gauge(registry: CollectorRegistry, metric: Metric) -> Gauge:
    """A gauge in ``registry``."""
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def histogram(registry: CollectorRegistry, metric: Metric) -> Histogram:
    """A histogram in ``registry``; the metric must name its buckets."""
    return Histogram(
        metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry
    )


def expose(registry: CollectorRegistry, address: Address) -> Address:
    """Serve ``/metrics`` from a thread of its own; returns the address that is bound.

    Raises ConfigError, PortInUse among them.
    """
    if address.unix_path:
        raise ConfigError(f"metrics can not be served on {address}, only on host:port")
    try:
        server, _ = start_http_server(address.port, address.host, registry)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(address) from error
        raise ConfigError(f"can not listen on {address}: {error.strerror or error}") from error
    return Address(host=address.host, port=server.server_port)
