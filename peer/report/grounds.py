"""The topology of a run folder, to be drawn."""

from pathlib import Path

from peer.assembly.ground import Ground, ground_of
from peer.errors import ConfigError
from peer.experiment import from_dict
from peer.experiment.choices import is_factory
from peer.report.runs import Recorded


def ground_to_draw(run: Recorded) -> Ground:
    """Build the topology of a run anew. Raises ConfigError where that needs what is not there.

    A graph file is looked for beside the run's copy of the experiment, then in the folder in which the command is
    given. Code is not run: whoever looks at a run need not trust who made it.
    """
    e = run.experiment
    if is_factory(e.topology.family):
        raise ConfigError("", f"{e.topology.family} is code, and a report runs none")
    measures = run.summary["engine"] == "daemons"
    try:
        return ground_of(e, measures=measures)
    except ConfigError as error:
        if not _reads_files(run):
            raise
        here = from_dict(e.model_dump(exclude_none=True), folder=Path.cwd())
        try:
            return ground_of(here, measures=measures)
        except ConfigError:
            raise error from None


def _reads_files(run: Recorded) -> bool:
    t = run.experiment.topology
    return t.family.startswith("file:") or bool(t.among and t.among.startswith("file:")) or t.metric == "rtt"
