"""The audit's own count of verdicts, labels, data sets and retrainings: it shares no code with what writes them."""

from plugins.improve.audit.recount_annotations import AnnotationRecount
from plugins.improve.audit.recount_curation import CurationRecount
from plugins.improve.audit.recount_dataset import DatasetRecount
from plugins.improve.audit.recount_trigger import TriggerRecount

RECOUNTS = (TriggerRecount, CurationRecount, AnnotationRecount, DatasetRecount)
