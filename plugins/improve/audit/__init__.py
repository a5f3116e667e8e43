"""The audit's own count of verdicts, data sets and retrainings: it shares no code with what writes them."""

from streams.tools.audit.recount_curation import CurationRecount
from streams.tools.audit.recount_dataset import DatasetRecount
from streams.tools.audit.recount_trigger import TriggerRecount

RECOUNTS = (TriggerRecount, CurationRecount, DatasetRecount)
