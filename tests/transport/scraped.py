"""The metrics of a server at one moment, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.transport.conftest import RunningServer
from transport.metrics import PREFIX


class Scraped:
    """The metrics of a moment."""

    def __init__(self, text: str, model: str = "fake") -> None:
        self.text = text
        self.model = model
        self.families = {f.name: f for f in text_string_to_metric_families(text)}
        self._samples = {
            (s.name, *sorted(s.labels.items())): s.value
            for family in self.families.values()
            for s in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """Return a sample's value."""
        given = {"model_name": self.model, **labels}
        return self._samples[(PREFIX + name, *sorted(given.items()))]


async def scrape(server: RunningServer, path: str = "/metrics") -> Scraped:
    """Read the metrics."""
    async with server.http() as http:
        answer = await http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return Scraped(answer.text)
