"""Benchmarks as a view of campaigns."""

from __future__ import annotations

from hpc_amp.bench.comparison import compare
from hpc_amp.bench.report import to_json, to_text, write_report
from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.measuring import MeasuringView


class BenchView(MeasuringView):
    """Compares settings by their speed."""

    name = "bench"
    noun = "benchmark"
    parent = "benches"
    follows = True

    def summary(self, campaign: Campaign, *, as_json: bool) -> str:
        """The report of the runs that are measured. Also writes its files."""
        comparison = compare(campaign, self.statuses(campaign))
        written = write_report(comparison, campaign.folder / "report")
        if as_json:
            return to_json(comparison).rstrip()
        return f"{to_text(comparison)}\n{written.describe()}"


BENCH = BenchView()
