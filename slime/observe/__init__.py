"""What a run leaves and what a person sees of it: run directory, metrics, trackers, timeline, console, summary."""

from slime.observe.console import Console, Phase
from slime.observe.metrics import Metrics, MetricsError, read_metrics
from slime.observe.recorder import Recorder, StepRecord
from slime.observe.report import print_summary, report
from slime.observe.run_dir import RunDir, RunDirError
from slime.observe.summary import Summary, summarize
from slime.observe.timeline import Timeline
from slime.observe.trackers import TrackerError, make_trackers

__all__ = [
    "Console",
    "Metrics",
    "MetricsError",
    "Phase",
    "Recorder",
    "RunDir",
    "RunDirError",
    "StepRecord",
    "Summary",
    "Timeline",
    "TrackerError",
    "make_trackers",
    "print_summary",
    "read_metrics",
    "report",
    "summarize",
]
