"""The audit's own count of threads and of the store: it shares no code with the servers that write them."""

from plugins.threads.audit.recount_memory import MemoryRecount
from plugins.threads.audit.recount_threads import ThreadRecount

RECOUNTS = (ThreadRecount, MemoryRecount)
