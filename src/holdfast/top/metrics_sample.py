"""Reads the metrics of API processes."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import httpx
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

SECONDS: Final = 3.0
# A hundred processes with everything they count have less than this.
BYTES_MAX: Final = 20 * 1024 * 1024

# Every worker reports these about the same thing, so they do not add up.
SHARED: Final = frozenset({"holdfast_audit_findings", "holdfast_job_last_success_timestamp_seconds"})

Labels: TypeAlias = tuple[tuple[str, str], ...]


class MetricsError(Exception):
    """There are no metrics at this URL. The text says why, and what to do."""


class MetricsSample(Struct, frozen=True):
    """The values of all URLs together, by the name of the metric and its labels."""

    values: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all values with these labels. None if the processes do not have this metric."""
        found = [value for has, value in self.values.get(name, {}).items() if set(labels.items()) <= set(has)]
        return sum(found) if found else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The sums for each value of a label."""
        sums: Counter[str] = Counter()
        for has, value in self.values.get(name, {}).items():
            sums[dict(has).get(label, "")] += value  # type: ignore[assignment]
        return dict(sums)


class MetricsSampler:
    def __init__(self, urls: Sequence[str], token: str | None) -> None:
        self._urls = urls
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(timeout=SECONDS, headers=headers)

    async def sample(self) -> tuple[MetricsSample | None, list[str]]:
        """The metrics of all URLs that answer, or None if none does, and why the others do not."""
        found = await asyncio.gather(*(self._read(url) for url in self._urls), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, MetricsError):
                raise each
        samples = [sample for each in found if not isinstance(each, BaseException) for sample in each]
        failures = [str(each) for each in found if isinstance(each, MetricsError)]
        return (add_up(samples) if samples else None), failures

    async def close(self) -> None:
        await self._client.aclose()

    async def _read(self, url: str) -> list[Sample]:
        address = url.rstrip("/").removesuffix("/metrics") + "/metrics"
        try:
            async with asyncio.timeout(SECONDS), self._client.stream("GET", address) as response:
                if response.status_code in (401, 403):
                    raise MetricsError(f"{url} refuses the metrics. Set HOLDFAST_METRICS_TOKEN as the server has it.")
                if response.status_code == 404:
                    raise MetricsError(f"{url} has no metrics. Check --url.")
                if response.status_code != 200:
                    raise MetricsError(f"{url} answers with {response.status_code}.")
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > BYTES_MAX:
                        raise MetricsError(f"{url} answers with too much. Check --url.")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
            raise MetricsError(f"{url} does not answer ({type(error).__name__}). Check --url.") from None
        try:
            return parse(body.decode())
        except ValueError:
            raise MetricsError(f"{url} answers with something other than metrics. Check --url.") from None


def parse(text: str) -> list[Sample]:
    """Raises ValueError if this is not Prometheus' format."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def add_up(samples: Iterable[Sample]) -> MetricsSample:
    """The metrics of several servers together."""
    values: dict[str, dict[Labels, float]] = {}
    for sample in samples:
        _add(values, sample)
    return MetricsSample(values)


def _add(values: dict[str, dict[Labels, float]], sample: Sample) -> None:
    of_name = values.setdefault(sample.name, {})
    labels = tuple(sorted(sample.labels.items()))
    before = of_name.get(labels)
    if before is None:
        of_name[labels] = sample.value
    elif sample.name in SHARED:
        of_name[labels] = max(before, sample.value)
    else:
        of_name[labels] = before + sample.value
