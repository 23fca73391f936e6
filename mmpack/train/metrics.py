"""Metrics of a run to TensorBoard, Weights & Biases or Prometheus, where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mmpack.errors import ConfigError
from mmpack.train.contract import TrainConfig


class MetricLoggers:
    """What a run's records are sent to, beside its file.

    Raises:
        ConfigError: one that was asked for is not installed.
    """

    def __init__(self, config: TrainConfig, *, active: bool = True) -> None:
        self._writer: Any = None
        self._run: Any = None
        self._prometheus: PrometheusPage | None = None
        if not active:
            return
        if config.create_tensorboard_logger:
            module = _installed("torch.utils.tensorboard", "create_tensorboard_logger", "tensorboard")
            self._writer = module.SummaryWriter(config.output_dir / "tensorboard")
        if config.create_wandb_logger:
            module = _installed("wandb", "create_wandb_logger", "wandb")
            self._run = module.init(project=config.wandb_project, name=config.wandb_name, dir=str(config.output_dir))

        if config.prometheus_port is not None:
            self._prometheus = PrometheusPage(config.prometheus_port)

    @property
    def prometheus_url(self) -> str | None:
        """Where Prometheus finds the metrics."""
        return None if self._prometheus is None else self._prometheus.url

    def log(self, record: Mapping[str, Any]) -> None:
        """Sends the numbers of a record."""
        step = int(record["step"])
        for name, value in metrics_of(record).items():
            if self._writer is not None:
                self._writer.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log(metrics_of(record), step=step)
        if self._prometheus is not None:
            self._prometheus.show(record)

    def close(self) -> None:
        """Writes what is still held."""
        if self._writer is not None:
            self._writer.close()
        if self._run is not None:
            self._run.finish()
        if self._prometheus is not None:
            self._prometheus.close()


class PrometheusPage:
    """The numbers of the newest step as gauges ``mmpack_train_...``, and what was left out by dataset and reason.

    Raises:
        ConfigError: prometheus-client is not installed, or the port is taken.
    """

    def __init__(self, port: int) -> None:
        self._client = _installed("prometheus_client", "prometheus_port", "prometheus-client")
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._left_out = self._client.Gauge(
            "mmpack_left_out", "samples left out or changed so far", ["dataset", "reason"], registry=self._registry
        )
        try:
            self._server, _ = self._client.start_http_server(port, registry=self._registry)
        except OSError as error:
            raise ConfigError(f"prometheus_port={port}: {error}; choose another, or 0 for any") from None
        self.url = f"http://localhost:{self._server.server_port}/metrics"

    def show(self, record: Mapping[str, Any]) -> None:
        """The numbers of a record become those of the page."""
        for name, value in {**metrics_of(record), f"{_group(record)}/step": float(record["step"])}.items():
            if name not in self._gauges:
                self._gauges[name] = self._client.Gauge(
                    f"mmpack_{name.replace('/', '_')}", "of the newest record", registry=self._registry
                )
            self._gauges[name].set(value)
        for dataset, reasons in record.get("drops", {}).items():
            for reason, entry in reasons.items():
                self._left_out.labels(dataset, reason).set(entry["count"])

    def close(self) -> None:
        """Takes the page down."""
        self._server.shutdown()
        self._server.server_close()


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, each under ``train/`` or ``val/``.

    >>> metrics_of({"kind": "val", "step": 3, "val_loss": 1.5})
    {'val/val_loss': 1.5}
    """
    group = _group(record)
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}
    return {f"{group}/{name}": float(value) for name, value in numbers.items()}


def _group(record: Mapping[str, Any]) -> str:
    return "val" if record["kind"] == "val" else "train"


def _installed(module: str, setting: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"{setting}=True needs {package}, which is not installed: pip install {package}") from None
